"""Episodes: what is kept of them beside their steps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Text, cast, literal, update

from sqlbuffer.codec import Encoder
from sqlbuffer.errors import FieldError
from sqlbuffer.packing import Layout
from sqlbuffer.storage.functions import utc_now
from sqlbuffer.storage.models import JSON, episodes


@dataclass(frozen=True)
class Ending:
    """How an episode that is stored whole ends.

    Attributes:
        key: The user's id of the episode.
        task_id: Its task.
        length: Its steps.
        return_: Sum of its rewards; None without rewards.
        meta: JSON of what the user says of it.
        final_arrays: The observation after its last step, packed.
    """

    key: str
    task_id: str
    length: int
    return_: float | None
    meta: str | None
    final_arrays: bytes | None


def encode_meta(meta: Mapping[str, Any]) -> str | None:
    """Return the JSON of what a user says of an episode."""
    encoder = Encoder()
    text = encoder.json(dict(meta), "meta") if meta else None
    if encoder.blob:
        raise FieldError("meta: arrays and bytes are not kept with an episode; give JSON values")
    return text


def pack_final(layout: Layout, final: Mapping[str, Any] | None, casting: str) -> bytes | None:
    """Return an observation as bytes.

    Args:
        layout: The observation fields.
        final: A value for each; None without an observation.
        casting: See `FieldSpec.cast`.
    """
    if not final:
        return None
    for name in dict.fromkeys([*layout.specs, *final]):
        if name not in layout.specs or name not in final:
            raise FieldError(
                f"the final observation has the fields {', '.join(layout.specs) or 'none'}, and "
                f"was given with {', '.join(final)}"
            )
    values = {name: spec.cast(final[name], casting=casting) for name, spec in layout.specs.items()}
    columns = {
        name: [value] if layout.specs[name].is_variable else value[None]
        for name, value in values.items()
    }
    return layout.pack(columns, 1)[0]


def end(connection: Connection, buffer_id: int, ending: Ending, seqs: Iterable[int]) -> None:
    """Note how an episode ended, in the transaction that stored its steps."""
    numbers = list(seqs)
    table = episodes.c
    connection.execute(
        update(episodes)
        .where(
            table.buffer_id == buffer_id, table.key == ending.key, table.task_id == ending.task_id
        )
        .values(
            {
                "status": "complete",
                "length": ending.length,
                "return": ending.return_,
                "first_seq": min(numbers),
                "last_seq": max(numbers),
                "meta": None if ending.meta is None else cast(literal(ending.meta, Text()), JSON),
                "final_arrays": ending.final_arrays,
                "ended_at": utc_now(),
            }
        )
    )
