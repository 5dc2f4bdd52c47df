"""Steps given as columns, as records; and rows back as columns."""

import time
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.scalar_tags import tag_float
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.priority_values import checked_priorities
from sqlbuffer.encoding.records import (
    Record,
    decode_extra,
    encode_extra,
    encode_key,
    encode_step,
)
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.ids import uuid7

Payload = tuple[str | None, str | None, str | None, str | None]

# Beside the declared fields; the keys may be one value for all rows.
_FLAGS = ("terminated", "truncated")
_KEYS = ("id", "task_id", "agent_id", "step", "model_version", "session_id")
_ONE_OR_EACH = (*_KEYS[1:], "priority")
_PAYLOADS = ("state", "actions", "messages", "extra")
_REWARD = FieldSpec("reward", np.dtype("<f8"))
_FLAG = {name: FieldSpec(name, np.dtype("?")) for name in _FLAGS}


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
    n_rows = _check_names(layout, columns)
    values = {name: _column(spec, columns, n_rows, casting) for name, spec in layout.specs.items()}
    packed = layout.pack(values, n_rows)
    fields = _comparable(layout, values, n_rows)
    rewards, tags = _rewards(columns, n_rows, casting)
    flags = [_flags(name, columns, n_rows) for name in _FLAGS]
    ids, tasks, agents, steps, versions, sessions = (_keys(name, columns, n_rows) for name in _KEYS)
    payloads, blobs = _payloads(columns, tags, packed)
    priorities = _priorities(columns, n_rows)
    ts = [None] * n_rows if episode is None else range(n_rows)
    now = time.time()
    rows = zip(
        ids, tasks, agents, steps, ts, payloads, fields, rewards, *flags, versions,
        sessions, blobs, priorities, strict=True,
    )  # fmt: skip
    return [
        Record(
            id_, task, None, agent, None, step, t, now, episode, session, state, actions, messages,
            extra, field_values, reward, None, None, terminated, truncated, version, blob or None,
            None, priority,
        )
        for id_, task, agent, step, t, (state, actions, messages, extra), field_values, reward,
            terminated, truncated, version, session, blob, priority in rows
    ]  # fmt: skip


def _comparable(layout: Layout, values: Mapping[str, Any], n_rows: int) -> Sequence[str | None]:
    """Return the JSON of those fields that conditions can use."""
    names = [name for name, spec in layout.specs.items() if spec.column]
    if not names:
        return [None] * n_rows
    encoder = Encoder()  # numbers and texts: none of them is kept as bytes
    rows = zip(*(values[name].tolist() for name in names), strict=True)
    return [encoder.json(dict(zip(names, row, strict=True)), "fields") for row in rows]


def _payloads(
    columns: Mapping[str, Any], tags: Sequence[dict[str, Any] | None], packed: list[bytes]
) -> tuple[list[Payload], Sequence[bytes | bytearray]]:
    """Return the JSON of each row, and its bytes with those of arrays inside the JSON behind."""
    n_rows = len(packed)
    given = [columns.get(name) for name in _PAYLOADS]
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


def _check_names(layout: Layout, columns: Mapping[str, Any]) -> int:
    known = {*layout.specs, "reward", *_FLAGS, *_KEYS, *_PAYLOADS, "priority"}
    for name in columns:
        if name not in known:
            raise FieldError(
                f"unknown field {name!r}; the buffer has {', '.join(layout.specs) or 'none'}, and "
                f"{', '.join(('reward', *_FLAGS, *_KEYS, *_PAYLOADS, 'priority'))}"
            )
    for name, values in columns.items():
        if isinstance(values, (str, bytes, bytearray, Mapping, Set)) and (
            name == "id" or name not in _KEYS
        ):
            raise FieldError(f"{name}: expected a column, a value for each row, got {values!r}")
    for name, spec in layout.specs.items():
        if columns.get(name) is None and spec.default is None:
            raise FieldError(f"field {name!r} is missing: expected {spec} for each row")
    sizes = {
        name: _size(name, values)
        for name, values in columns.items()
        if values is not None and name not in _ONE_OR_EACH
    }
    if len(set(sizes.values())) > 1:
        raise FieldError(f"every column has the same number of rows, got {sizes}")
    if not sizes:
        raise FieldError("no column tells how many rows there are; give at least one field")
    return next(iter(sizes.values()))


def _size(name: str, values: Any) -> int:
    try:
        return len(values)
    except TypeError:
        raise FieldError(f"field {name!r}: expected a row for each step, got {values!r}") from None


def _column(spec: FieldSpec, columns: Mapping[str, Any], n_rows: int, casting: str) -> Any:
    if columns.get(spec.name) is None:
        default: Any = spec.default_value
        return [default] * n_rows if spec.is_variable else np.broadcast_to(
            default, (n_rows, *spec.shape)
        )  # fmt: skip
    values = columns[spec.name]
    if spec.is_variable:
        return [spec.cast(value, casting=casting) for value in values]
    if not n_rows:
        return np.empty((0, *spec.shape), spec.dtype)
    return spec.cast_rows(values, casting=casting)


def _rewards(
    columns: Mapping[str, Any], n_rows: int, casting: str
) -> tuple[Sequence[float | None], list[dict[str, Any] | None]]:
    """Return what the column holds, and the tags of those that it cannot hold."""
    tags: list[dict[str, Any] | None] = [None] * n_rows
    if columns.get("reward") is None:
        return [None] * n_rows, tags
    rewards = _column(_REWARD, columns, n_rows, casting)
    values: list[float | None] = rewards.tolist()
    for i in np.flatnonzero(np.isnan(rewards) | ((rewards == 0.0) & np.signbit(rewards))):
        tags[i] = {"reward_t": tag_float(float(rewards[i]))}
        values[i] = None if np.isnan(rewards[i]) else 0.0
    return values, tags


def _flags(name: str, columns: Mapping[str, Any], n_rows: int) -> list[bool | None]:
    if columns.get(name) is None:
        return [None] * n_rows
    given = np.asarray(columns[name])
    if given.dtype.kind in "iu" and np.isin(given, (0, 1)).all():
        columns = {name: given.astype(bool)}
    flags: list[bool | None] = _column(_FLAG[name], columns, n_rows, "same_kind").tolist()
    return flags


def _keys(name: str, columns: Mapping[str, Any], n_rows: int) -> list[Any]:
    given = columns.get(name)
    if given is None:
        return _default_keys(name, n_rows)
    if isinstance(given, np.ndarray) and not given.ndim:
        given = given.item()
    if name == "id" or (
        isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, (str, bytes))
    ):
        values = given.tolist() if isinstance(given, np.ndarray) else list(given)
    else:
        values = [given] * n_rows
    if len(values) != n_rows:
        raise FieldError(f"{name}: expected {n_rows} values or one, got {len(values)}")
    check = encode_step if name in ("step", "model_version") else encode_key
    return [check(value, name) for value in values]


def _priorities(columns: Mapping[str, Any], n_rows: int) -> Sequence[float | None]:
    given = columns.get("priority")
    return [None] * n_rows if given is None else checked_priorities(given, n_rows)


def _default_keys(name: str, n_rows: int) -> list[Any]:
    if name == "id":
        return [uuid7() for _ in range(n_rows)]
    if name == "step":
        return list(range(n_rows))
    return [None if name in ("model_version", "session_id") else "default"] * n_rows


def decode_columns(
    layout: Layout, rows: Sequence[Sequence[Any]], fields: Sequence[str] | None = None
) -> Batch:
    """Return the batch of rows of `statements.COLUMNS`.

    Args:
        layout: The declared fields.
        rows: The rows.
        fields: Which of the fields; all by default.
    """
    built_in = ("reward", *_FLAGS)
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


def decode_row(layout: Layout, arrays: bytes) -> dict[str, Any]:
    """Return the fields of one row, each of its own shape."""
    found = layout.unpack([arrays])
    return {name: found[name][0] for name in layout.specs}


def reward_array(
    rewards: Sequence[float | None], extras: Sequence[str | None]
) -> NDArray[np.float64]:
    """Return rewards with those that their column cannot hold; NaN where there is none."""
    found = np.array(rewards, np.float64)  # None is NaN
    for i, extra in enumerate(extras):
        if extra is not None and '"$reals"' in extra:
            reals: dict[str, Any] = {}
            decode_extra(extra, None, reals)
            found[i] = reals.get("reward_t", found[i])
    return found
