"""Steps given as columns, as records; and rows back as columns."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.encoding.given_columns import FLAGS, check_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import rows_of_blocks
from sqlbuffer.encoding.records import Record, decode_reals, encode_extra
from sqlbuffer.errors import FieldError
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.ids import uuid7s

Payload = tuple[str | None, str | None, str | None, str | None]


def encode_columns(
    layout: Layout,
    columns: Mapping[str, Any],
    *,
    casting: str = "same_kind",
    episode: str | None = None,
) -> list[Record]:
    """Return the records of n steps.

    Args:
        layout: The declared fields.
        columns: For each declared field n values; `reward`, `terminated`, `truncated`, `id`
            likewise; `state`, `actions`, `messages`, `extra` n values as `add` takes them;
            `task_id`, `agent_id`, `step`, `model_version`, `session_id` and `priority` n values or
            one.
        casting: See `FieldSpec.cast_rows`.
        episode: The episode that the n steps are, from its first to its last.

    Raises:
        FieldError: An unknown or missing field, another shape or number of rows, a value that the
            field cannot hold; names the field.
    """
    given = check_columns(layout, columns, casting)
    n_rows = given.n_steps
    packed = layout.pack(given.fields, n_rows)
    tags = [given.reward_tags.get(i) for i in range(n_rows)]
    payloads, blobs = _payloads(given.payloads, tags, packed)
    rewards = _each(given.reward, n_rows)
    for i, reward in enumerate(rewards):
        rewards[i] = None if reward != reward else reward
    now = time.time()
    rows = zip(
        given.ids or uuid7s(n_rows),
        _each(given.task_id, n_rows),
        _each(given.agent_id, n_rows),
        given.steps.tolist(),
        [None] * n_rows if episode is None else range(n_rows),
        payloads,
        _comparable(layout, given.fields, n_rows),
        rewards,
        _each(given.terminated, n_rows),
        _each(given.truncated, n_rows),
        _each(given.model_version, n_rows),
        _each(given.session_id, n_rows),
        blobs,
        _each(given.priority, n_rows),
        strict=True,
    )
    return [
        Record(
            id_, task, None, agent, None, step, t, now, episode, session, state, actions, messages,
            extra, field_values, reward, None, None, terminated, truncated, version, blob or None,
            None, priority,
        )
        for id_, task, agent, step, t, (state, actions, messages, extra), field_values, reward,
            terminated, truncated, version, session, blob, priority in rows
    ]  # fmt: skip


def _each(values: Any, n_rows: int) -> list[Any]:
    """Return a value for each row of an array, of a list, or of one value for all."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    return values if isinstance(values, list) else [values] * n_rows


def _comparable(layout: Layout, values: Mapping[str, Any], n_rows: int) -> Sequence[str | None]:
    """Return the JSON of those fields that conditions can use."""
    names = [name for name, spec in layout.specs.items() if spec.column]
    if not names:
        return [None] * n_rows
    encoder = Encoder()  # numbers and texts: none of them is kept as bytes
    rows = zip(*(values[name].tolist() for name in names), strict=True)
    return [encoder.json(dict(zip(names, row, strict=True)), "fields") for row in rows]


def _payloads(
    given: Sequence[Sequence[Any] | None],
    tags: Sequence[dict[str, Any] | None],
    packed: list[bytes],
) -> tuple[list[Payload], Sequence[bytes | bytearray]]:
    """Return the JSON of each row, and its bytes with those of arrays inside the JSON behind."""
    n_rows = len(packed)
    if all(column is None for column in given) and not any(tags):
        return [(None, None, None, None)] * n_rows, packed
    values = [[None] * n_rows if column is None else list(column) for column in given]
    texts: list[Payload] = []
    blobs: list[bytes | bytearray] = []
    for i, (blob, tag, *row) in enumerate(zip(packed, tags, *values, strict=True)):
        encoder = Encoder(blob)
        state, actions, messages, extra = row
        try:
            texts.append(
                (
                    encoder.json(state, "state"),
                    encoder.json(actions, "actions"),
                    encoder.json(messages, "messages"),
                    encode_extra(extra, tag or {}, encoder),
                )
            )
        except FieldError as error:
            raise FieldError(f"row {i}: {error}") from None
        blobs.append(encoder.blob)
    return texts, blobs


def decode_columns(
    layout: Layout, rows: Sequence[Sequence[Any]], fields: Sequence[str] | None = None
) -> Batch:
    """Return the batch of rows of `statements.COLUMNS`.

    Args:
        layout: The declared fields.
        rows: The rows.
        fields: Which of the fields; all by default.
    """
    built_in = ("reward", *FLAGS)
    if isinstance(fields, str):
        raise FieldError(f"fields are given as a list of names, got {fields!r}")
    wanted = None if fields is None else [name for name in fields if name not in built_in]
    seqs, tasks, agents, steps, rewards, terminated, truncated, extras, blobs = (
        zip(*rows, strict=True) if rows else [()] * 9
    )
    arrays = layout.unpack(blobs, wanted, seqs=seqs)
    own: dict[str, NDArray[Any]] = {
        "reward": _as_float32(reward_array(rewards, extras)),
        "terminated": np.array(terminated, bool),
        "truncated": np.array(truncated, bool),
    }
    arrays |= {name: own[name] for name in built_in if fields is None or name in fields}
    info = {
        "seq": np.array(seqs, np.int64),
        "task_id": np.array(tasks, object),
        "agent_id": np.array(agents, object),
        "step": np.array(steps, np.int64),
    }
    return Batch(arrays, info)


def _as_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def decode_step(layout: Layout, block: bytes, place: int = 0) -> dict[str, Any]:
    """Return the fields of one step of a block, each of its own shape."""
    found = layout.unpack(rows_of_blocks(layout, [block], [place]))
    return {name: found[name][0] for name in layout.specs}


def reward_array(
    rewards: Sequence[float | None], extras: Sequence[str | None]
) -> NDArray[np.float64]:
    """Return rewards with those that their column cannot hold; NaN where there is none."""
    found = np.array(rewards, np.float64)  # None is NaN
    for i, extra in enumerate(extras):
        if extra is not None and '"$reals"' in extra:
            found[i] = decode_reals(extra).get("reward_t", found[i])
    return found
