"""Episodes: what is kept of them beside their steps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Double, bindparam, case, func, or_, update

from sqlbuffer.codec import Encoder
from sqlbuffer.errors import EpisodeExistsError, FieldError
from sqlbuffer.packing import Layout
from sqlbuffer.specs import FieldSpec
from sqlbuffer.storage.buffers.keys import INSERT_EPISODE
from sqlbuffer.storage.schema.functions import utc_now
from sqlbuffer.storage.schema.models import episodes


@dataclass(frozen=True)
class Beginning:
    """How an episode begins.

    Attributes:
        key: The user's id of the episode.
        task_id: Its task.
        agent_id: Who acts.
        model_version: Version of the model that acts.
        meta: JSON of what the user says of it.
        session: Key of the session that its steps belong to.
    """

    key: str
    task_id: str
    agent_id: str
    model_version: int | None = None
    meta: str | None = None
    session: str | None = None


@dataclass(frozen=True)
class Ending:
    """How an episode ends.

    Attributes:
        key: The user's id of the episode.
        task_id: Its task.
        status: complete or aborted.
        length: Its steps.
        return_: Sum of its rewards; None without rewards.
        first: The id of its first step, or the number where it is known.
        last: That of its last step.
        final_arrays: The observation after its last step, packed.
        reward: The episode's own reward.
    """

    key: str
    task_id: str
    status: str
    length: int
    return_: float | None
    first: str | int | None
    last: str | int | None
    final_arrays: bytes | None
    reward: float | None = None


_FIRST = bindparam("first_", type_=BigInteger())
_RETURN: Any = bindparam("return_", type_=Double())
# Of an open episode the column holds by how much annotations have changed it so far.
_WHOLE_RETURN = case(
    (
        (episodes.c.status == "open") & episodes.c["return"].is_not(None),
        func.coalesce(_RETURN, 0.0) + episodes.c["return"],
    ),
    else_=_RETURN,
)
_END = (
    update(episodes)
    .where(
        episodes.c.buffer_id == bindparam("of_buffer"),
        episodes.c.key == bindparam("of_key"),
        episodes.c.task_id == bindparam("of_task"),
        # Or it was sent again after its steps had left.
        or_(
            episodes.c.status == "open",
            episodes.c.first_seq < _FIRST,
        ),
    )
    .values(
        {
            "status": bindparam("status_"),
            "length": bindparam("length_"),
            "return": _WHOLE_RETURN,
            "reward": bindparam("reward_"),
            "first_seq": _FIRST,
            "last_seq": bindparam("last_"),
            "final_arrays": bindparam("final_"),
            "ended_at": utc_now(),
        }
    )
)


def encode_meta(
    meta: Mapping[str, Any], specs: Mapping[str, FieldSpec], casting: str = "same_kind"
) -> str | None:
    """Return the JSON of what a user says of an episode.

    Args:
        meta: Values by name; those that are not declared may be any JSON.
        specs: The declared fields of an episode.
        casting: See `FieldSpec.cast`.

    Raises:
        FieldError: A declared value is missing or does not fit, or another is no JSON.
    """
    encoder = Encoder()
    declared = {name: _meta_value(spec, meta.get(name), casting) for name, spec in specs.items()}
    whole = {**meta, **declared}
    text = encoder.json(whole, "meta") if whole else None
    if encoder.blob:
        raise FieldError("meta: arrays and bytes are not kept with an episode; give JSON values")
    return text


def _meta_value(spec: FieldSpec, value: Any, casting: str) -> Any:
    """Return a declared value as JSON has it: a list, where the field is an array."""
    if value is not None:
        return spec.cast(value, casting=casting).tolist()
    if spec.default_value is None:
        raise FieldError(f"meta field {spec.name!r} is missing: expected {spec}")
    return spec.default_value.tolist()


def pack_final(layout: Layout, final: Mapping[str, Any] | None, casting: str) -> bytes | None:
    """Return an observation as the bytes that are stored.

    Args:
        layout: The observation fields.
        final: A value for each; None without an observation.
        casting: See `FieldSpec.cast`.
    """
    if final is not None and not isinstance(final, Mapping):
        raise FieldError(
            f"the final observation is a dict with a value for each observation field "
            f"({', '.join(layout.specs) or 'none'}), got {type(final).__name__}"
        )
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
    (stored,) = layout.compress(layout.pack(columns, 1))
    return None if stored is None else bytes(stored)


def begin(connection: Connection, buffer_id: int, beginning: Beginning) -> bool:
    """Make the row of an episode; tell whether there was none."""
    values = {"buffer_id": buffer_id, **vars(beginning)}
    return bool(connection.execute(INSERT_EPISODE, values).rowcount)


def exists(key: str, task_id: str, status: str) -> EpisodeExistsError:
    """Return the error of an id that is taken."""
    return EpisodeExistsError(
        f"episode {key!r} of task {task_id!r} is stored already (it is {status}); take another "
        f"episode_id, or leave it out to have one made"
    )


def end(
    connection: Connection, buffer_id: int, endings: Iterable[Ending], seqs: Mapping[str, int]
) -> None:
    """Note how open episodes ended, in the transaction that stores their last steps.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        endings: They.
        seqs: The number of each id that was stored.
    """

    def number(step: str | int | None) -> int | None:
        return seqs.get(step) if isinstance(step, str) else step

    # In one order: two writers may end several of the same ones.
    rows = [
        {
            "of_buffer": buffer_id,
            "of_key": ending.key,
            "of_task": ending.task_id,
            "status_": ending.status,
            "length_": ending.length,
            # SQLite has no NaN, which inf - inf is.
            "return_": None if ending.return_ != ending.return_ else ending.return_,
            "first_": number(ending.first),
            "last_": number(ending.last),
            "final_": ending.final_arrays,
            "reward_": ending.reward,
        }
        for ending in sorted(endings, key=lambda ending: (ending.key, ending.task_id))
    ]
    if rows:
        connection.execute(_END, rows)
