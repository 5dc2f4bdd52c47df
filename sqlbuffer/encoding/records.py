"""A row as the columns of `experiences`, and back; and rows given as columns."""

import dataclasses
import math
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np
from orjson import loads
from pydantic import BaseModel

from sqlbuffer.codec.decoder import Blob, decode, untag
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.equality import equal
from sqlbuffer.codec.plain_values import INT64_MAX, INT64_MIN, dumps, is_storable_text, tag_float
from sqlbuffer.display import shown, shown_size
from sqlbuffer.encoding.blocks import fields_of_steps
from sqlbuffer.encoding.packing import EMPTY_LAYOUT, Layout
from sqlbuffer.encoding.priority_values import checked_priorities
from sqlbuffer.errors import FieldError
from sqlbuffer.steps import DataRow, Experience, ExpMeta, uuid7

MAX_JSON_BYTES = 2**28 - 1  # JSONB holds no more in one value


def check_row_size(texts: Mapping[str, str | None], n_arrays: int, limit: int, where: str) -> None:
    """Raise if a payload is too large to be stored.

    Args:
        texts: Its JSON by name.
        n_arrays: Bytes of its arrays.
        limit: Bytes that a payload may have.
        where: How an error names the row, with a space at its end.

    Raises:
        FieldError: Names the row and its size.
    """
    total = n_arrays
    for name, text in texts.items():
        size = len((text or "").encode())
        total += size
        if size > MAX_JSON_BYTES:
            raise FieldError(
                f"{where}{name}: {shown_size(size)} of JSON, and a database takes "
                f"{shown_size(MAX_JSON_BYTES)}; give long lists of numbers as numpy arrays and "
                f"long text as bytes, or store it in several rows"
            )
    if total > limit:
        raise FieldError(
            f"{where}the payload has {total:,} bytes ({shown_size(n_arrays)} of arrays), and the "
            f"buffer takes {limit:,} (max_row_bytes); store it in several rows, or make a buffer "
            f"with a larger max_row_bytes"
        )


MAX_KEY_BYTES = 600  # three of them and a little fit an index entry of PostgreSQL
MAX_NAME_BYTES = 8192
GROUP_WITHOUT_EPISODE = (
    "a group is made of rollouts, and a rollout is an episode: give its episode_id too"
)
PARENT_WITHOUT_EPISODE = "only an episode comes from another one: give its episode_id too"
# Facts of an episode that its steps may name; the first one decides.
NAMED_FACTS = ("group_id", "parent_id")


class Record(NamedTuple):
    """One row, encoded; the columns in the order in which they are written and read.

    `episode_key`, `group_key`, `parent_key` and `session_key` are the user's keys; the tables hold
    numbers, and the group and the parent with the episode. `t` is the step within an episode that
    was stored as one. `fields` repeats those of `arrays` that conditions can use. If
    `payload_bytes` is set, `arrays` has that many bytes, which go to `payload_parts` unchanged. If
    no `initial_priority` is given, the transaction that writes uses the buffer's.
    """

    id: str
    task_id: str
    task_name: str | None
    agent_id: str
    pre_agent: str | None
    step: int
    t: int | None
    execute_time: float | None
    episode_key: str | None
    session_key: str | None
    state: str | None
    actions: str | None
    messages: str | None
    extra: str | None
    fields: str | None
    reward_t: float | None
    adv_t: float | None
    v_t: float | None
    terminated: bool | None
    truncated: bool | None
    model_version: int | None
    arrays: bytes | bytearray | None
    payload_bytes: int | None = None
    initial_priority: float | None = None
    group_key: str | None = None
    parent_key: str | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of its arrays."""
        return len(self.arrays or b"")

    @property
    def n_steps(self) -> int:
        """1, as of a step that will be part of a chunk."""
        return 1

    @property
    def episodes(self) -> tuple[tuple[str | None, str]]:
        """Its episode, or None, and its task."""
        return ((self.episode_key, self.task_id),)

    def without(self, episodes: AbstractSet[tuple[str | None, str]]) -> "Record | None":
        """Return the row; None if it is of one of these episodes."""
        return None if (self.episode_key, self.task_id) in episodes else self


def encode_rows(
    rows: Sequence[DataRow], model_version: int | None = None, priority: Any = None
) -> list[Record]:
    """Return the records of rows.

    Args:
        rows: The rows.
        model_version: Version for rows that name none.
        priority: One number for all, or one for each; None: that of the buffer.

    Raises:
        FieldError: A value cannot be stored; the message names the row and the path inside it.
    """
    records = []
    for i, row in enumerate(rows):
        try:
            records.append(encode_row(row, model_version))
        except FieldError as error:
            raise FieldError(f"row {i}: {error}") from None
    if priority is None:
        return records
    priorities = checked_priorities(priority, len(records))
    return [
        record._replace(initial_priority=initial)
        for record, initial in zip(records, priorities, strict=True)
    ]


def encode_row(row: DataRow, model_version: int | None = None) -> Record:
    """Return the record of one row."""
    if not isinstance(row.exp_meta, ExpMeta) or not isinstance(row.exp_data, Experience):
        raise FieldError(
            f"expected exp_meta and exp_data to be ExpMeta and Experience, got "
            f"{type(row.exp_meta).__name__} and {type(row.exp_data).__name__}"
        )
    meta, data, encoder = row.exp_meta, row.exp_data, Encoder()
    tags: dict[str, Any] = {}
    seconds = time.time() if meta.execute_time is None else meta.execute_time
    reward, advantage, value = data.reward_t, data.adv_t, data.v_t
    name, pre_agent, episode, session = (
        meta.task_name, meta.pre_agent, meta.episode_id, meta.session_id,
    )  # fmt: skip
    # Most rows leave most columns out, so no function is called for a None.
    execute_time = encode_real(seconds, "execute_time", "exp_meta.execute_time", tags)
    reward_t = (
        None if reward is None else encode_real(reward, "reward_t", "exp_data.reward_t", tags)
    )
    adv_t = None if advantage is None else encode_real(advantage, "adv_t", "exp_data.adv_t", tags)
    v_t = None if value is None else encode_real(value, "v_t", "exp_data.v_t", tags)
    version = model_version if meta.model_version is None else meta.model_version
    actions, messages = data.actions, data.messages
    has_extra = bool(tags) or data.extra is not None
    # In the order of the columns: by position costs a third of what it costs by name.
    return Record(
        # A row of plain SQL, read and stored elsewhere, may have none.
        uuid7() if row.id is None else encode_key(row.id, "id"),
        encode_key(meta.task_id, "exp_meta.task_id"),
        None if name is None else encode_key(name, "exp_meta.task_name", MAX_NAME_BYTES),
        encode_key(meta.agent_id, "exp_meta.agent_id"),
        None if pre_agent is None else encode_key(pre_agent, "exp_meta.pre_agent", MAX_NAME_BYTES),
        encode_step(meta.step, "exp_meta.step"),
        None,
        execute_time,
        None if episode is None else encode_key(episode, "exp_meta.episode_id"),
        None if session is None else encode_key(session, "exp_meta.session_id"),
        encoder.json(data.state, "exp_data.state"),
        None if actions is None else encoder.json(actions, "exp_data.actions"),
        None if messages is None else encode_messages(messages, "exp_data.messages", encoder),
        encode_extra(data.extra, tags, encoder) if has_extra else None,
        None,
        reward_t,
        adv_t,
        v_t,
        None if data.terminated is None else encode_flag(data.terminated, "exp_data.terminated"),
        None if data.truncated is None else encode_flag(data.truncated, "exp_data.truncated"),
        None if version is None else encode_step(version, "exp_meta.model_version"),
        encoder.blob or None,
        group_key=None if meta.group_id is None else _group_key(meta.group_id, episode),
        parent_key=None
        if meta.parent_id is None
        else encode_parent(meta.parent_id, episode, "exp_meta.parent_id"),
    )


def _group_key(group: Any, episode: Any) -> str:
    if episode is None:
        raise FieldError(f"exp_meta.group_id: {GROUP_WITHOUT_EPISODE}")
    return encode_key(group, "exp_meta.group_id")


def encode_parent(parent: Any, episode: Any, name: str = "parent_id") -> str:
    """Return the id of the episode that an episode came from, checked.

    Args:
        parent: The id.
        episode: Id of the episode itself.
        name: Name of the argument.

    Raises:
        FieldError: It is not text, it is the episode itself, or there is no episode.
    """
    if episode is None:
        raise FieldError(f"{name}: {PARENT_WITHOUT_EPISODE}")
    key = encode_key(parent, name)
    if key == episode:
        raise FieldError(f"{name}: episode {key!r} cannot be its own parent")
    return key


def encode_key(value: Any, name: str, limit: int = MAX_KEY_BYTES) -> str:
    if type(value) is str and len(value) <= limit and value.isascii() and "\0" not in value:
        return value
    if not isinstance(value, str):
        raise FieldError(f"{name}: expected text, got {shown(value)}")
    if not is_storable_text(value):
        raise FieldError(
            f"{name}: {shown(value)} has U+0000 or a lone surrogate, which text columns cannot hold"
        )
    if len(value) > limit or (len(value) * 4 > limit and len(value.encode()) > limit):
        raise FieldError(f"{name}: longer than {limit} bytes; put long text into exp_data.extra")
    return value


def encode_step(value: Any, name: str) -> int:
    if type(value) is int and INT64_MIN <= value <= INT64_MAX:
        return value
    try:
        integer = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        integer = None
    if integer is None or not INT64_MIN <= integer <= INT64_MAX:
        raise FieldError(f"{name}: expected an integer of 64 bits, got {shown(value)}")
    return integer


def encode_flag(value: Any, name: str) -> bool | None:
    """Return the value of a boolean column."""
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise FieldError(f"{name}: expected True, False or None, got {shown(value)}")
    return None if value is None else bool(value)


def encode_real(value: Any, name: str, path: str, tags: dict[str, Any]) -> float | None:
    """Return the value of the real column; NaN and -0.0, which columns may lose, go into tags."""
    if value is None:
        return None
    if type(value) is float and (value < 0.0 or value > 0.0):
        return value
    if not isinstance(value, (float, int, np.floating, np.integer)):
        raise FieldError(f"{path}: expected a number, got {shown(value)}")
    try:
        real = float(value)
    except OverflowError:
        raise FieldError(f"{path}: an integer is too large for a float") from None
    if real != real:
        tags[name] = tag_float(real)
        return None
    if real == 0.0 and math.copysign(1.0, real) < 0:
        tags[name] = tag_float(real)
        return 0.0
    return real


def encode_extra(extra: Any, tags: dict[str, Any], encoder: Encoder) -> str | None:
    if extra is not None and not isinstance(extra, Mapping):
        raise FieldError(f"exp_data.extra: expected a dict, got {type(extra).__name__}")
    if not tags:
        return encoder.json(extra, "exp_data.extra")
    tree = {"$none": True} if extra is None else encoder.tree(extra, "exp_data.extra")
    return dumps({**tree, "$reals": tags})


def encode_messages(messages: Any, path: str, encoder: Encoder) -> str | None:
    """Return the JSON of a conversation; refuse a single message, which readers take for a list."""
    is_one = isinstance(messages, (Mapping, BaseModel)) or dataclasses.is_dataclass(messages)
    if is_one:
        raise FieldError(
            f"{path}: expected a list of messages, got one {type(messages).__name__}; give "
            f"messages=[message]"
        )
    return encoder.json(messages, path)


# In rows that are read, this column has the fields that were given late.
_LATE = 1 + Record._fields.index("fields")
_MOST_AT_ONCE, _BYTES_AT_ONCE = 64, 2**18
Rebuild = Callable[[Any], Any]
new: Callable[[Any], Any] = object.__new__  # nothing is validated again


class Decoder:
    """Makes rows from a SELECT over the columns of `Record`; nothing is validated again.

    Args:
        state: Function that rebuilds a state from its plain value.
        action: Function that rebuilds each action.
        layout: Layout of `arrays` and of the typed fields.
        fields: Fields to read; all by default.

    Attributes:
        n_at_once: Number of rows to make in one call, where a page of rows is streamed: expanded it
            may be many times as large.
    """

    def __init__(
        self,
        state: Rebuild | None = None,
        action: Rebuild | None = None,
        layout: Layout = EMPTY_LAYOUT,
        fields: Sequence[str] | None = None,
    ) -> None:
        self._state, self._action, self._layout = state, action, layout
        self._names = None if fields is None else tuple(fields)
        self._expands = layout.compression is not None
        self._rebuilds = state is not None or action is not None
        size = 0 if layout.has_tails else layout.size_bytes
        self.n_at_once = max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // size)) if size else 1

    def rows(self, stored_rows: Iterable[Sequence[Any]]) -> list[DataRow]:
        """Return the rows of tuples (seq, *Record), which end with the block of bytes, the place in
        it and the number of its layout where typed fields are read.
        """
        if not (self._layout.specs if self._names is None else self._names):
            return [self._row(values) for values in stored_rows]
        by_column = [list(column) for column in zip(*stored_rows, strict=True)]
        *columns, blocks, places, layouts = by_column or [[], [], []]
        rows = [self._row(values) for values in zip(*columns, strict=True)]
        seqs = [row.seq for row in rows]
        typed = fields_of_steps(self._layout, blocks, places, layouts, self._names, seqs)
        for row, fields in zip(rows, typed, strict=True):
            row.fields = fields
        if rows and any(late := columns[_LATE]):
            self._put_late(rows, late)
        return rows

    def _put_late(self, rows: Sequence[DataRow], late: Sequence[str | None]) -> None:
        """Put fields that were given late in place of the stored ones."""
        for row, text in zip(rows, late, strict=True):
            for name, value in loads(text).items() if text is not None else ():
                if name in row.fields:
                    row.fields[name] = self._layout.specs[name].dtype.type(value)

    def row(self, values: Sequence[Any]) -> DataRow:
        """Return the row of one such tuple."""
        return self.rows([values])[0]

    def _row(self, values: Sequence[Any]) -> DataRow:
        (
            seq, id_, task_id, task_name, agent_id, pre_agent, step, _t, execute_time, episode_key,
            session_key, state, actions, messages, extra, _fields, reward_t, adv_t, v_t,
            terminated, truncated, model_version, arrays, payload_bytes, _priority, group_key,
            parent_key,
        ) = values  # fmt: skip
        if payload_bytes is not None:
            arrays = memoryview(arrays)
        elif self._expands and any(
            text and '"$' in text for text in (state, actions, messages, extra)
        ):
            (arrays,) = self._layout.expand([arrays], [seq])
        # Written out: at nine in ten rows nothing is tagged, and the calls would cost more than the
        # work.
        if extra is not None and '"$' in extra:
            reals = {"reward_t": reward_t, "adv_t": adv_t, "v_t": v_t, "execute_time": execute_time}
            extra = decode_extra(extra, arrays, reals)
            reward_t, adv_t, v_t, execute_time = reals.values()
        elif extra is not None:
            extra = loads(extra)
        state = None if state is None else decode(state, arrays)
        actions = None if actions is None else decode(actions, arrays)
        if self._rebuilds:
            state, actions = self._rebuilt_state(state, id_), self._rebuilt_actions(actions, id_)
        data, meta = new(Experience), new(ExpMeta)
        row: DataRow = new(DataRow)
        data.__dict__ = {
            "state": state,
            "actions": actions,
            "reward_t": reward_t,
            "adv_t": adv_t,
            "v_t": v_t,
            "messages": None if messages is None else decode(messages, arrays),
            # SQLite has 0 and 1.
            "terminated": None if terminated is None else terminated == 1,
            "truncated": None if truncated is None else truncated == 1,
            "extra": extra,
        }
        meta.__dict__ = {
            "task_id": task_id,
            "task_name": task_name,
            "agent_id": agent_id,
            "step": step,
            "execute_time": execute_time,
            "pre_agent": pre_agent,
            "episode_id": episode_key,
            "group_id": group_key,
            "parent_id": parent_key,
            "model_version": model_version,
            "session_id": session_key,
        }
        row.__dict__ = {"exp_meta": meta, "exp_data": data, "fields": {}, "id": id_, "seq": seq}
        return row

    def _rebuilt_state(self, state: Any, id_: str) -> Any:
        return _rebuilt(self._state, state, id_, "exp_data.state")

    def _rebuilt_actions(self, actions: Any, id_: str) -> Any:
        if self._action is None or not isinstance(actions, (list, tuple)):
            return _rebuilt(self._action, actions, id_, "exp_data.actions")
        rebuilt = (
            _rebuilt(self._action, action, id_, f"exp_data.actions[{i}]")
            for i, action in enumerate(actions)
        )
        return type(actions)(rebuilt)


def _rebuilt(rebuild: Rebuild | None, value: Any, id_: str, path: str) -> Any:
    if rebuild is None or value is None:
        return value
    try:
        return rebuild(value)
    except ValueError as error:
        raise FieldError(
            f"row {id_!r}: {path} is not what the buffer's type takes: {error}"
        ) from error


def decode_extra(text: str | None, arrays: Blob | None, reals: dict[str, Any]) -> Any:
    """Return the user's `extra` and put tagged numbers into `reals`."""
    if text is None or '"$reals"' not in text:
        return decode(text, arrays)
    reals.update(decode_reals(text))
    tree = loads(text)
    tree.pop("$reals", None)
    return None if tree.pop("$none", False) else untag(tree, arrays or b"")


def decode_reals(text: str) -> dict[str, float]:
    """Return the numbers that `extra` holds because their columns cannot, by column."""
    # Without the key it is a text of the user.
    reals: dict[str, float] = untag(loads(text).get("$reals", {}), b"")
    return reals


def same_content(
    new: Record,
    held: Sequence[Any],
    *,
    ignore: frozenset[str] = frozenset(),
    layout: Layout = EMPTY_LAYOUT,
) -> bool:
    """Return True if a record equals a stored one (a tuple of the columns of `Record`) bit by bit.

    The group and the parent are not compared: the episode has them, and only its first row must
    name them.

    Args:
        new: The record.
        held: Stored record.
        ignore: Fields that may differ.
        layout: Layout of `arrays`.
    """
    plain = Decoder(layout=layout)
    left, right = plain._row((0, *new)), plain._row((0, *held))
    for part in ("exp_meta", "exp_data"):
        ours, theirs = vars(getattr(left, part)), vars(getattr(right, part))
        for name, value in ours.items():
            if name in ignore or name in NAMED_FACTS:
                continue
            if not equal(value, theirs[name], strict=True):
                return False
    return True
