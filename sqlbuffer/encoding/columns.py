"""Steps given as columns, as records; and rows back as columns."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_names
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.encoding.given_columns import FLAGS, check_columns
from sqlbuffer.encoding.packing import EMPTY_LAYOUT, Layout
from sqlbuffer.encoding.record_blocks import rows_of_blocks
from sqlbuffer.encoding.records import Record, decode_reals, encode_extra, encode_messages
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.declarations import ON_REQUEST
from sqlbuffer.fields.specs import Casting
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.steps.ids import uuid7s

Payload = tuple[str | None, str | None, str | None, str | None]


def encode_columns(
    columns: Mapping[str, Any], *, casting: Casting = "same_kind", episode: str | None = None
) -> list[Record]:
    """Return the records of n steps without typed fields.

    Args:
        columns: `reward`, `terminated`, `truncated` and `id`, n values each; `state`, `actions`,
            `messages`, `extra` n values as `add` takes them; `task_id`, `agent_id`, `step`,
            `model_version`, `session_id`, `episode_id` and `priority` n values or one.
        casting: See `FieldSpec.cast_rows`; of the rewards.
        episode: The episode that the n steps are, from its first to its last.

    Raises:
        FieldError: An unknown field, another number of rows, a value that cannot be stored; names
            the field.
    """
    given = check_columns(EMPTY_LAYOUT, columns, casting)
    n_rows = given.n_steps
    tags = [given.reward_tags.get(i) for i in range(n_rows)]
    payloads, blobs = _payloads(given.payloads, tags)
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
        _each(given.more_keys.get("episode_key", episode), n_rows),
        payloads,
        rewards,
        *(_each(given.more_values.get(name), n_rows) for name in ON_REQUEST),
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
            id_, task, None, agent, None, step, t, now, key, session, state, actions, messages,
            extra, None, reward, adv_t, v_t, terminated, truncated, version, blob or None,
            None, priority,
        )
        for id_, task, agent, step, t, key, (state, actions, messages, extra), reward,
            adv_t, v_t, terminated, truncated, version, session, blob, priority in rows
    ]  # fmt: skip


def _each(values: Any, n_rows: int) -> list[Any]:
    """Return a value for each row of an array, of a list, or of one value for all."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    return values if isinstance(values, list) else [values] * n_rows


def _payloads(
    given: Sequence[Sequence[Any] | None], tags: Sequence[dict[str, Any] | None]
) -> tuple[list[Payload], Sequence[bytes | bytearray]]:
    """Return the JSON of each row, and the bytes of arrays inside the JSON."""
    n_rows = len(tags)
    if all(column is None for column in given) and not any(tags):
        return [(None, None, None, None)] * n_rows, [b""] * n_rows
    values = [[None] * n_rows if column is None else list(column) for column in given]
    texts: list[Payload] = []
    blobs: list[bytes | bytearray] = []
    for i, (tag, *row) in enumerate(zip(tags, *values, strict=True)):
        encoder = Encoder()
        state, actions, messages, extra = row
        try:
            texts.append(
                (
                    encoder.json(state, "state"),
                    encoder.json(actions, "actions"),
                    encode_messages(messages, "messages", encoder),
                    encode_extra(extra, tag or {}, encoder),
                )
            )
        except FieldError as error:
            raise FieldError(f"row {i}: {error}") from None
        blobs.append(encoder.blob)
    return texts, blobs


def rows_as_arrays(
    layout: Layout, rows: Sequence[DataRow], fields: Sequence[str] | None = None
) -> Batch:
    """Return rows as the batch that `sample_arrays` makes of them.

    Args:
        layout: The declared fields.
        rows: The rows.
        fields: Fields to read; all, without advantages and values, by default.
    """
    built_in = ("reward", *FLAGS) if fields is None else ("reward", *FLAGS, *ON_REQUEST)
    if fields is not None:
        fields = checked_names(fields, "fields", "['obs', 'reward']")
    wanted = None if fields is None else [name for name in fields if name not in built_in]
    columns = {name: [row.fields[name] for row in rows] for name in layout.specs}
    arrays = layout.unpack_expanded(layout.pack(columns, len(rows)), wanted)
    data = [row.exp_data for row in rows]
    for name in built_in:
        if fields is None or name in fields:
            values = [getattr(one, "reward_t" if name == "reward" else name) for one in data]
            dtype = bool if name in FLAGS else np.float64
            array: NDArray[Any] = np.array(values, dtype)
            arrays[name] = array if name in FLAGS else _as_float32(array)
    info = {
        "seq": np.array([row.seq for row in rows], np.int64),
        "task_id": np.array([row.exp_meta.task_id for row in rows], object),
        "agent_id": np.array([row.exp_meta.agent_id for row in rows], object),
        "step": np.array([row.exp_meta.step for row in rows], np.int64),
    }
    return Batch(arrays, info)


def _as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
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
