"""Steps that are given as columns: checked and cast; and the columns of steps that were read."""

import time
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_names
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_values import tag_float
from sqlbuffer.display import shown
from sqlbuffer.encoding.blocks import fields_of_steps
from sqlbuffer.encoding.packing import EMPTY_LAYOUT, Layout
from sqlbuffer.encoding.priority_values import checked_priorities
from sqlbuffer.encoding.records import (
    GROUP_WITHOUT_EPISODE,
    MAX_KEY_BYTES,
    NAMED_FACTS,
    Record,
    decode_reals,
    encode_extra,
    encode_flag,
    encode_key,
    encode_messages,
    encode_parent,
    encode_step,
)
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import ON_REQUEST, Casting, FieldSpec, near_name, value_or_default
from sqlbuffer.spaces import Structure
from sqlbuffer.steps import PAYLOADS, Batch, DataRow, uuid7s

# Next to the declared fields; the keys may be one value for all rows.
FLAGS = ("terminated", "truncated")
_REALS = {"reward_t": "reward", **{name: name for name in ON_REQUEST}}  # columns by name of a tag
_KEYS = (
    "id", "task_id", "agent_id", "step", "model_version", "session_id", "episode_id", "group_id",
    "parent_id",
)  # fmt: skip
_INTEGERS = ("step", "model_version")
_ONE_OR_EACH = (*_KEYS[1:], "priority")
BUILT_IN = ("reward", *ON_REQUEST, *FLAGS, *PAYLOADS, "priority")  # of a single step
_REAL = {name: FieldSpec(name, np.dtype("<f8")) for name in _REALS.values()}
_FLAG = {name: FieldSpec(name, np.dtype("?")) for name in FLAGS}
_PLAIN = {"reward", *FLAGS}
_PLAIN_AND_KEYS = {*_PLAIN, *_KEYS[1:]}
_MINUS_ZERO = np.iinfo(np.int64).min  # its bytes, as an integer
_NO_KEYS: dict[str, Any] = dict.fromkeys(_KEYS) | dict.fromkeys(("task_id", "agent_id"), "default")
_NO_PAYLOADS = (None,) * len(PAYLOADS)

Key = str | list[str]


@dataclass(frozen=True)
class GivenColumns:
    """The columns of n steps, checked and cast; `fields` may share memory with the input.

    Attributes:
        n_steps: Number of steps.
        fields: For each declared field an array of shape (n, *shape), or a list of n arrays where
            the length varies.
        reward: Shape (n,), NaN where the tags hold the value; None if no step has a reward.
        reward_tags: Values that the column of rewards cannot hold (NaN, -0.0), tagged, by position.
        terminated: Shape (n,); None if it was not given.
        truncated: Flags in the same form.
        ids: The ids of the steps, if they were given.
        task_id: One key for all steps, or one for each.
        agent_id: One agent for all steps, or one for each.
        model_version: One version for all steps, one for each, or None.
        session_id: One session for all steps, one for each, or None.
        steps: Shape (n,).
        priority: Initial priorities, if they were given.
        payloads: n values of state, actions, messages and extra each, or None.
        more_keys: Other keys that steps of a chunk have in common, likewise one or one for each.
        more_values: Other values of each step, lists of n; None means no value.
        encoded: Their payloads instead, encoded, None for none.
        makes_steps: Whether the numbers of the steps were made, and not given.
    """

    n_steps: int
    fields: dict[str, Any]
    reward: NDArray[np.float64] | None
    reward_tags: dict[int, dict[str, Any]]
    terminated: NDArray[np.bool_] | None
    truncated: NDArray[np.bool_] | None
    ids: list[str] | None
    task_id: Key
    agent_id: Key
    model_version: int | list[int] | None
    session_id: Key | None
    steps: NDArray[np.int64]
    priority: list[float] | None
    payloads: tuple[Sequence[Any] | None, ...]
    more_keys: Mapping[str, Any] = field(default_factory=dict)
    more_values: Mapping[str, list[Any]] = field(default_factory=dict)
    encoded: list[Any] | None = None
    makes_steps: bool = False

    @property
    def keys(self) -> dict[str, Any]:
        """Values that all steps of a chunk share: one value or a list by attribute of the chunk."""
        return {
            "task_id": self.task_id,
            "agent_id": self.agent_id,
            "model_version": self.model_version,
            "session_key": self.session_id,
            **self.more_keys,
        }


def check_columns(layout: Layout, columns: Mapping[str, Any], casting: Casting) -> GivenColumns:
    """Return the columns of steps, checked and cast.

    Args:
        layout: The declared fields.
        columns: For each declared field n values; `reward`, `terminated`, `truncated`, `id`
            likewise; `state`, `actions`, `messages`, `extra` n values as `add` takes them;
            `task_id`, `agent_id`, `step`, `model_version`, `session_id`, `episode_id` and
            `priority` n values or one.
        casting: See `FieldSpec.cast_rows`.

    Raises:
        FieldError: An unknown or missing field, another shape or number of rows, a value that the
            field cannot hold; the message names the field.
    """
    values = _plain_values(layout, columns) or _checked_values(layout, columns, casting)
    n = values.n_steps
    keys = _NO_KEYS
    if not keys.keys().isdisjoint(columns):
        keys = {name: _key(name, columns, n) for name in _KEYS}
    ids, task_id, agent_id, steps, version, session_id, episode, group, parent = keys.values()
    if group is not None and episode is None:
        raise FieldError(f"group_id: {GROUP_WITHOUT_EPISODE}")
    if parent is not None:
        _check_parents(parent, episode, n)
    given_priority = columns.get("priority")
    more_keys = {}
    if episode is not None:
        more_keys = {"episode_key": episode, "group_key": group, "parent_key": parent}
    return GivenColumns(
        n, values.fields, values.reward, values.reward_tags, values.terminated, values.truncated,
        ids, task_id, agent_id, version, session_id, _steps(steps, n),
        None if given_priority is None else checked_priorities(given_priority, n), values.payloads,
        {name: keys for name, keys in more_keys.items() if keys is not None}, values.more_values,
        makes_steps=steps is None,
    )  # fmt: skip


class _Values(NamedTuple):
    """The values of n steps without their keys; as in `GivenColumns`."""

    n_steps: int
    fields: dict[str, Any]
    reward: NDArray[np.float64] | None
    reward_tags: dict[int, dict[str, Any]]
    terminated: NDArray[np.bool_] | None
    truncated: NDArray[np.bool_] | None
    payloads: tuple[Sequence[Any] | None, ...]
    more_values: Mapping[str, list[Any]]


def _checked_values(layout: Layout, columns: Mapping[str, Any], casting: Casting) -> _Values:
    n = _check_names(layout, columns)
    # Not copied yet: `Layout.records` does.
    fields = {
        name: _column(spec, columns, n, casting, copy=False) for name, spec in layout.specs.items()
    }
    tags: dict[int, dict[str, Any]] = {}
    reward, *reals = (_reals(tag, columns, n, casting, tags) for tag in _REALS)
    terminated, truncated = (_flags(name, columns, n) for name in FLAGS)
    payloads = tuple(None if columns.get(name) is None else columns[name] for name in PAYLOADS)
    more_values = {
        name: [None if value != value else value for value in column.tolist()]
        for name, column in zip(ON_REQUEST, reals, strict=True)
        if column is not None
    }
    return _Values(n, fields, reward, tags, terminated, truncated, payloads, more_values)


def _plain_values(layout: Layout, columns: Mapping[str, Any]) -> _Values | None:
    """Return plain arrays that need no cast, in a tenth of the time; None for others."""
    more_names = columns.keys() - layout.specs.keys()
    if not more_names <= _PLAIN_AND_KEYS or not layout.specs.keys() <= columns.keys():
        return None
    reward, terminated, truncated = given = [columns.get(name) for name in ("reward", *FLAGS)]
    shape = next((array.shape[:1] for array in given if type(array) is np.ndarray), None)
    dtypes = (_REAL["reward"].dtype, bool, bool)
    if shape is None or not all(
        array is None or _is_plain(array, dtype, shape)
        for array, dtype in zip(given, dtypes, strict=True)
    ):
        return None
    if not all(
        spec.dtype.kind in "biufc" and _is_plain(columns[name], spec.dtype, (*shape, *spec.shape))
        for name, spec in layout.specs.items()
    ):
        return None
    if reward is not None:
        # Counting takes a quarter of the time of `all` and `any`.
        n_reals = np.count_nonzero(np.isfinite(reward))
        if n_reals < len(reward) or np.count_nonzero(reward.view(np.int64) == _MINUS_ZERO):
            return None
        reward = reward + 0.0
    return _Values(
        shape[0], {name: columns[name] for name in layout.specs}, reward, {},
        _truths(terminated), _truths(truncated), _NO_PAYLOADS, {},
    )  # fmt: skip


def _is_plain(array: Any, dtype: Any, shape: tuple[int, ...]) -> bool:
    return type(array) is np.ndarray and array.dtype == dtype and array.shape == shape


def _truths(flags: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return a copy with no bytes but 0 and 1: a view of other bytes as bool has more of them."""
    if flags is None:
        return None
    truths: NDArray[np.bool_] = np.ascontiguousarray(flags).view(np.uint8) != 0
    return truths


@lru_cache(maxsize=16)
def _first_numbers(n: int) -> NDArray[np.int64]:
    """Return 0 to n - 1; to make them releases the interpreter's lock, which may take long."""
    numbers = np.arange(n)
    numbers.flags.writeable = False
    return numbers


def _check_names(layout: Layout, columns: Mapping[str, Any]) -> int:
    known = {*layout.specs, *BUILT_IN, *_KEYS}
    for name in columns:
        if name not in known:
            nearest = near_name(name, known)
            hint = f" (did you mean {nearest}?)" if nearest else ""
            raise FieldError(
                f"unknown field {shown(name)}{hint}; the buffer has "
                f"{', '.join(layout.specs) or 'none'}, and "
                f"{', '.join(('reward', *FLAGS, *_KEYS, *ON_REQUEST, *PAYLOADS, 'priority'))}"
            )
    for name, values in columns.items():
        if isinstance(values, (str, bytes, bytearray, Mapping, Set)) and (
            name == "id" or name not in _KEYS
        ):
            raise FieldError(
                f"{name}: expected a column, a value for each row, got {shown(values)}"
            )
        if name in PAYLOADS and not callable(getattr(values, "columns", print)):
            raise FieldError(
                f"{name}: expected a list with a value for each row, got a "
                f"{type(values).__qualname__}; give its rows: table.to_dict('records')"
            )
    for name, spec in layout.specs.items():
        if columns.get(name) is None:
            value_or_default(spec, None)
    sizes = {
        name: _size(name, values)
        for name, values in columns.items()
        if values is not None and name not in _ONE_OR_EACH
    }
    if len(set(sizes.values())) > 1:
        raise FieldError(f"every column has the same number of rows, got {sizes}")
    if not sizes:
        raise FieldError("the number of rows is unknown without a column; give at least one field")
    return next(iter(sizes.values()))


def _size(name: str, values: Any) -> int:
    try:
        return len(values)
    except TypeError:
        raise FieldError(
            f"field {shown(name)}: expected a row for each step, got {shown(values)}"
        ) from None


def _column(
    spec: FieldSpec, columns: Mapping[str, Any], n: int, casting: Casting, *, copy: bool
) -> Any:
    if columns.get(spec.name) is None:
        default: Any = spec.default_value
        return [default] * n if spec.is_variable else np.broadcast_to(default, (n, *spec.shape))
    values = columns[spec.name]
    if spec.is_variable:
        return [spec.cast(value, casting=casting) for value in values]
    if not n:
        return np.empty((0, *spec.shape), spec.dtype)
    return spec.cast_rows(values, casting=casting, copy=copy)


def _reals(
    tag: str, columns: Mapping[str, Any], n: int, casting: Casting, tags: dict[int, dict[str, Any]]
) -> NDArray[np.float64] | None:
    """Return a column of numbers, NaN for None; note values that it cannot hold among the tags.

    Masked values of a masked array are None.
    """
    name = _REALS[tag]
    column = columns.get(name)
    if column is None:
        return None
    is_given: Any = True
    if isinstance(column, np.ma.MaskedArray):
        is_given, columns = ~np.ma.getmaskarray(column), {name: column.filled(np.nan)}
    values: NDArray[np.float64] = _column(_REAL[name], columns, n, casting, copy=False)
    is_odd = np.isnan(values) | ((values == 0.0) & np.signbit(values))
    odd = np.flatnonzero(is_odd & is_given)
    for i in odd.tolist():
        tags.setdefault(i, {})[tag] = tag_float(float(values[i]))
    return values + 0.0  # no -0.0


def _flags(name: str, columns: Mapping[str, Any], n: int) -> NDArray[np.bool_] | None:
    if columns.get(name) is None:
        return None
    values = np.asarray(columns[name])
    if values.dtype.kind in "iu" and np.isin(values, (0, 1)).all():
        columns = {name: values.astype(bool)}
    return _truths(_column(_FLAG[name], columns, n, "same_kind", copy=False))


def _key(name: str, columns: Mapping[str, Any], n: int) -> Any:
    """Return a key: one value for all steps, or a list or an array with one for each."""
    column = columns.get(name)
    if column is None:
        return "default" if name in ("task_id", "agent_id") else None
    if isinstance(column, np.ndarray) and not column.ndim:
        column = column.item()
    is_column = isinstance(column, (Sequence, np.ndarray)) and not isinstance(column, (str, bytes))
    if name != "id" and not is_column:
        return encode_step(column, name) if name in _INTEGERS else encode_key(column, name)
    if len(column) != n:
        raise FieldError(f"{name}: expected {n} values or one, got {len(column)}")
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    if name in _INTEGERS:
        return [encode_step(value, name) for value in values]
    if _are_short_texts(values):
        return values
    return [
        None if value is None and name in NAMED_FACTS else encode_key(value, name)
        for value in values
    ]


def _check_parents(parents: Any, episodes: Any, n: int) -> None:
    """Raise FieldError if an episode is its own parent, or a step with a parent has none."""
    for parent, episode in dict.fromkeys(zip(_each(parents, n), _each(episodes, n), strict=True)):
        if parent is not None:
            encode_parent(parent, episode)


def _are_short_texts(values: list[Any]) -> bool:
    """Return True if all values pass `encode_key` as they are, in a tenth of its time."""
    if set(map(type, values)) != {str}:
        return False
    distinct = set(values)
    joined = "".join(distinct)
    return joined.isascii() and "\0" not in joined and max(map(len, distinct)) <= MAX_KEY_BYTES


def _steps(steps: Any, n: int) -> NDArray[np.int64]:
    if steps is None:
        return _first_numbers(n)
    return np.full(n, steps) if isinstance(steps, int) else np.array(steps, np.int64)


def check_step_names(step: Mapping[str, Any], fields: Collection[str]) -> None:
    """Raise FieldError if a step has a value that is neither of a field nor built in."""
    for name in step:
        if name not in fields and name not in BUILT_IN:
            nearest = near_name(name, [*fields, *BUILT_IN])
            hint = f" (did you mean {nearest}?)" if nearest else ""
            raise FieldError(
                f"unknown field {shown(name)}{hint}; the buffer has "
                f"{', '.join(sorted(fields)) or 'none'}, and {', '.join(BUILT_IN)}"
            )


def flag_of(value: Any, name: str) -> bool | None:
    """Return the flag of one step; 0 and 1 are taken for one, as in a column of them."""
    is_number = isinstance(value, (int, np.integer)) and value in (0, 1)
    return bool(value) if is_number else encode_flag(value, name)


Payload = tuple[str | None, str | None, str | None, str | None]


def encode_columns(
    columns: Mapping[str, Any], *, casting: Casting = "same_kind", episode: str | None = None
) -> list[Record]:
    """Return the records of n steps without typed fields.

    Args:
        columns: `reward`, `terminated`, `truncated` and `id`, n values each; `state`, `actions`,
            `messages`, `extra` n values as `add` takes them; `task_id`, `agent_id`, `step`,
            `model_version`, `session_id`, `episode_id`, `group_id`, `parent_id` and `priority` n
            values or one.
        casting: See `FieldSpec.cast_rows`; of the rewards.
        episode: The episode that the n steps are, from its first to its last.

    Raises:
        FieldError: An unknown field, another number of rows, a value that cannot be stored; names
            the field.
    """
    checked = check_columns(EMPTY_LAYOUT, columns, casting)
    n_rows = checked.n_steps
    tags = [checked.reward_tags.get(i) for i in range(n_rows)]
    payloads, blobs = _payloads(checked.payloads, tags)
    rewards = _each(checked.reward, n_rows)
    for i, reward in enumerate(rewards):
        rewards[i] = None if reward != reward else reward
    packed_at = time.time()
    rows = zip(
        checked.ids or uuid7s(n_rows),
        _each(checked.task_id, n_rows),
        _each(checked.agent_id, n_rows),
        checked.steps.tolist(),
        [None] * n_rows if episode is None else range(n_rows),
        _each(checked.more_keys.get("episode_key", episode), n_rows),
        payloads,
        rewards,
        *(_each(checked.more_values.get(name), n_rows) for name in ON_REQUEST),
        _each(checked.terminated, n_rows),
        _each(checked.truncated, n_rows),
        _each(checked.model_version, n_rows),
        _each(checked.session_id, n_rows),
        blobs,
        _each(checked.priority, n_rows),
        _each(checked.more_keys.get("group_key"), n_rows),
        _each(checked.more_keys.get("parent_key"), n_rows),
        strict=True,
    )
    return [
        Record(
            id_, task, None, agent, None, step, t, packed_at, key, session, state, actions,
            messages, extra, None, reward, adv_t, v_t, terminated, truncated, version, blob or None,
            None, priority, group, parent,
        )
        for id_, task, agent, step, t, key, (state, actions, messages, extra), reward,
            adv_t, v_t, terminated, truncated, version, session, blob, priority, group,
            parent in rows
    ]  # fmt: skip


def _each(values: Any, n_rows: int) -> list[Any]:
    """Return a value for each row of an array, of a list, or of one value for all."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    return values if isinstance(values, list) else [values] * n_rows


def _payloads(
    columns: Sequence[Sequence[Any] | None], tags: Sequence[dict[str, Any] | None]
) -> tuple[list[Payload], Sequence[bytes | bytearray]]:
    """Return the JSON of each row, and the bytes of arrays inside the JSON."""
    n_rows = len(tags)
    if all(column is None for column in columns) and not any(tags):
        return [(None, None, None, None)] * n_rows, [b""] * n_rows
    values = [[None] * n_rows if column is None else list(column) for column in columns]
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
    layout: Layout,
    rows: Sequence[DataRow],
    fields: Sequence[str] | None = None,
    structure: Structure | None = None,
) -> Batch:
    """Return rows as the batch that `sample_arrays` makes of them.

    Args:
        layout: The declared fields.
        rows: The rows.
        fields: Fields to read; all, without advantages and values, by default.
        structure: How the fields are nested; None if they are not.
    """
    built_in = ("reward", *FLAGS) if fields is None else ("reward", *FLAGS, *ON_REQUEST)
    if fields is not None:
        fields = checked_names(fields, "fields", "['obs', 'reward']")
    typed_names = None if fields is None else [name for name in fields if name not in built_in]
    columns = {name: [row.fields[name] for row in rows] for name in layout.specs}
    arrays = layout.unpack_expanded(layout.pack(columns, len(rows)), typed_names)
    data = [row.exp_data for row in rows]
    for name in built_in:
        if fields is None or name in fields:
            values = [
                getattr(experience, "reward_t" if name == "reward" else name) for experience in data
            ]
            dtype = bool if name in FLAGS else np.float64
            array: NDArray[Any] = np.array(values, dtype)
            arrays[name] = array if name in FLAGS else _as_float32(array)
    info = {
        "seq": np.array([row.seq for row in rows], np.int64),
        "task_id": np.array([row.exp_meta.task_id for row in rows], object),
        "agent_id": np.array([row.exp_meta.agent_id for row in rows], object),
        "step": np.array([row.exp_meta.step for row in rows], np.int64),
    }
    return Batch(arrays, info, structure)


def _as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def decode_step(layout: Layout, block: bytes, place: int, number: int) -> dict[str, Any]:
    """Return the fields of one step of a block with a layout's number, each of its own shape."""
    (step,) = fields_of_steps(layout, [block], [place], [number])
    return step


def reward_array(
    rewards: Sequence[float | None], extras: Sequence[str | None]
) -> NDArray[np.float64]:
    """Return rewards with those that their column cannot hold; NaN where there is none."""
    values = np.array(rewards, np.float64)  # None is NaN
    for i, extra in enumerate(extras):
        if extra is not None and '"$reals"' in extra:
            values[i] = decode_reals(extra).get("reward_t", values[i])
    return values
