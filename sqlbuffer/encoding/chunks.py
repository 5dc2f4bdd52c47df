"""Chunks: steps of one episode, or of one task and agent, column by column.

Payloads are a JSON object for each step, and bytes. The object has those of `state`, `actions`,
`messages` and `extra` that the step has. Where these refer to bytes, `arrays: [start, n_bytes]` is
the place of the step's bytes in the bytes of its chunk; references inside the JSON count from that
start. Where the buffer compresses, the bytes of each step are compressed on their own, and `arrays`
is the place of the result.
"""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from orjson import loads

from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.equality import equal
from sqlbuffer.codec.plain_values import WHOLE_FLOAT_LIMIT, dumps, tag_float, tag_text
from sqlbuffer.encoding.blocks import expanded_rows, fields_of_rows, pack_blocks, stored_blocks
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import (
    check_row_size,
    decode_extra,
    encode_extra,
    encode_messages,
)
from sqlbuffer.steps import PAYLOADS


class StepPayload(NamedTuple):
    """The payload of one step, as it is collected.

    Attributes:
        members: JSON of its parts by name, without the braces around them.
        arrays: The bytes that they refer to.
        n_bytes: Bytes of both.
    """

    members: str
    arrays: bytearray
    n_bytes: int


class PayloadParts(NamedTuple):
    """JSON of each part of a payload, and the bytes that they refer to."""

    state: str | None
    actions: str | None
    messages: str | None
    extra: str | None
    arrays: Any = b""


def encode_payload(values: Sequence[Any], tags: dict[str, Any]) -> StepPayload | None:
    """Return the payload of a step; None if it has none.

    Args:
        values: Its state, actions, messages and extra; the last one a dict or None.
        tags: Numbers that their columns cannot hold, kept in `extra`.

    Raises:
        FieldError: A value cannot be stored.
    """
    encoder = Encoder()
    state, actions, messages, extra = values
    texts = {
        "state": encoder.json(state, "state"),
        "actions": encoder.json(actions, "actions"),
        "messages": encode_messages(messages, "messages", encoder),
    }
    parts = [f'"{name}":{text}' for name, text in texts.items() if text is not None]
    if tags or extra is not None:
        parts.append(f'"extra":{encode_extra(extra, tags, encoder)}')
    return _payload(parts, encoder.blob)


def _payload(parts: Sequence[str], arrays: bytearray) -> StepPayload | None:
    if not parts:
        return None
    members = ",".join(parts)
    n_members = len(members) if members.isascii() else len(members.encode())
    return StepPayload(members, arrays, n_members + len(arrays))


def collected_payload(parts: PayloadParts) -> StepPayload | None:
    """Return the payload of a step that was split, as it was collected."""
    texts = zip(PAYLOADS, parts, strict=False)
    members = [f'"{name}":{text}' for name, text in texts if text is not None]
    return _payload(members, bytearray(parts.arrays))


def check_step_size(payload: StepPayload | None, n_fields: int, limit: int, where: str) -> None:
    """Raise FieldError if a step is too large; see `check_row_size`.

    Args:
        payload: The payload of the step.
        n_fields: Bytes of its typed fields.
        limit: Bytes that both may have.
        where: How an error names the step.
    """
    if payload is None:
        check_row_size({}, n_fields, limit, where)
    else:
        texts = {name: dumps(part) for name, part in loads(f"{{{payload.members}}}").items()}
        check_row_size(texts, n_fields + len(payload.arrays), limit, where)


def join_payloads(
    layout: Layout, payloads: Sequence[StepPayload | None]
) -> tuple[list[str | None] | None, bytes | None]:
    """Return the payloads of the steps of a chunk as they are stored: `PackedChunk.payloads` and
    `payload_arrays`.
    """
    if not any(payloads):
        return None, None
    if not any(payload and payload.arrays for payload in payloads):
        return [payload and f"{{{payload.members}}}" for payload in payloads], None
    stored = layout.compress([payload and payload.arrays for payload in payloads])
    texts: list[str | None] = []
    start = 0
    for payload, arrays in zip(payloads, stored, strict=True):
        if not arrays:
            texts.append(payload and f"{{{payload.members}}}")
        elif payload:
            texts.append(f'{{{payload.members},"arrays":[{start},{len(arrays)}]}}')
            start += len(arrays)
    return texts, b"".join(filter(None, stored))


def split_payload(
    layout: Layout, text: str | None, payload_arrays: bytes | memoryview | None, seq: Any = None
) -> PayloadParts:
    """Return the parts of the payload of a step, with its own bytes as they were before `pack`.

    Args:
        layout: The typed fields, for the compression.
        text: The JSON of the step.
        payload_arrays: The bytes of its chunk.
        seq: Number of the step, for error messages.

    Raises:
        FieldError: Damaged bytes.
    """
    if text is None:
        return PayloadParts(None, None, None, None)
    tree: dict[str, Any] = loads(text)
    start, size = tree.pop("arrays", (0, 0))
    stored: Any = (payload_arrays or b"")[start : start + size]
    arrays: Any = layout.expand([stored], None if seq is None else [seq])[0]
    texts = {name: dumps(part) for name, part in tree.items()}
    return PayloadParts(
        texts.get("state"), texts.get("actions"), texts.get("messages"), texts.get("extra"), arrays
    )


# Maximum number of steps in a chunk. A search for the chunk of a step goes this far down.
MAX_CHUNK_STEPS = 256
END_BYTES = 9  # of the reward and the flags of a step
# Of the values of each step that may be missing.
DTYPES = {
    **dict.fromkeys(("adv_t", "v_t", "reward", "initial_priority"), np.float64),
    **dict.fromkeys(("terminated", "truncated"), np.bool_),
}

# One value for each step: an array where every step has one, a list with None in it where some
# have none.
Values = NDArray[Any] | list[Any]


@dataclass(frozen=True, eq=False)
class PackedChunk:
    """A chunk as it is stored. It never changes, so a writer that is not sure can send it again.

    Per-step values (`reward` to `fields`) are None where no step has one.

    Attributes:
        id: UUIDv7, made when the chunk was packed.
        n_steps: Number of steps, at least one.
        task_id: Their task.
        task_name: Its name.
        agent_id: Agent that acts.
        pre_agent: Agent that acted before.
        episode_key: The user's id of the episode.
        session_key: The user's id of the session.
        model_version: Version of the model that acts.
        t: Place of the first step within its episode, the others follow; None outside episodes.
        step: Step number of the first step.
        steps: Step numbers, int64 of shape (n_steps,); None if they are consecutive.
        first_time: When the first step was executed, in seconds since 1970.
        last_time: When the last step was; `execute_times` gives those between. Where there are
            `times`, the least and the greatest of these.
        reward: Rewards; None in place of NaN and 0.0 of -0.0, which `extra` holds.
        adv_t: Advantages.
        v_t: State values.
        terminated: Flags, of which False and None are two values.
        truncated: Flags in the same form.
        initial_priority: Priorities that were given with the steps.
        fields: Values of the `column=True` fields by name: arrays of shape (n_steps,), lists of
            texts, which are tagged where JSON cannot hold them.
        records: The typed fields of the steps, in blocks; see `sqlbuffer.encoding.blocks`.
        block_steps: Number of steps in a block; the last block may be shorter.
        offsets: Where each block begins and where the last one ends, in bytes of `records`, int64
            of shape (n_blocks + 1,); None if all steps are one plain block, also where a buffer
            compresses.
        payloads: JSON of each step, None where it has none.
        payload_arrays: The bytes that the JSON refers to, of one step after the other.
        ids: Ids that the user gave to the steps.
        times: When each step was executed, if that was given.
        makes_steps: Its steps are appended to an episode, and their numbers were not given: they
            follow those of the episode.
        group_key: The user's id of the group of the episode, if it was given.
        parent_key: The user's id of the episode that the episode came from, if it was given.
        layout: Number of the layout of `records`; see `Layout`.
    """

    id: str
    n_steps: int
    task_id: str
    task_name: str | None
    agent_id: str
    pre_agent: str | None
    episode_key: str | None
    session_key: str | None
    model_version: int | None
    t: int | None
    step: int
    steps: NDArray[Any] | None
    first_time: float | None
    last_time: float | None
    reward: Values | None
    adv_t: Values | None
    v_t: Values | None
    terminated: Values | None
    truncated: Values | None
    initial_priority: Values | None
    fields: dict[str, Values] | None
    records: bytes
    block_steps: int
    offsets: NDArray[Any] | None
    payloads: list[str | None] | None
    payload_arrays: bytes | None
    ids: list[str] | None
    times: Values | None = None
    makes_steps: bool = False
    group_key: str | None = None
    parent_key: str | None = None
    layout: int = 0


T = TypeVar("T")

_NO_VALUES = dict.fromkeys(field.name for field in fields(PackedChunk))
_new: Callable[[Any], Any] = object.__new__
_set_attribute: Callable[[Any, str, Any], None] = object.__setattr__  # of a frozen instance
_values_of = operator.itemgetter(*_NO_VALUES)


class ChunkColumns(Sequence[PackedChunk]):
    """Chunks as one column for each attribute.

    A batch can have a chunk for each step. Objects of them would take longer than the rest of its
    encoding, so they are made only when one is looked at.

    Args:
        n: Number of chunks.
        common: Values that all chunks have in common, by attribute; others are None.
        columns: For each attribute that differs, its value of each chunk.
    """

    def __init__(
        self, n: int, common: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]
    ) -> None:
        self._n, self._common, self._columns = n, {**_NO_VALUES, **common}, columns
        self._results: dict[Callable[..., Any], Any] = {}

    @classmethod
    def of(cls, chunks: Sequence[PackedChunk]) -> "ChunkColumns":
        """Return the columns of chunks."""
        if isinstance(chunks, ChunkColumns):
            return chunks
        values = zip(*map(_values_of, map(vars, chunks)), strict=True)
        columns = cls(len(chunks), {}, dict(zip(_NO_VALUES, values, strict=False)))
        columns._chunks = list(chunks)
        return columns

    @cached_property
    def _chunks(self) -> list[PackedChunk]:
        names, chunks = tuple(self._columns), []
        for values in zip(*self._columns.values(), strict=True):
            # Not by its constructor, which takes 3 us.
            chunk: PackedChunk = _new(PackedChunk)
            attributes = self._common.copy()
            attributes.update(zip(names, values, strict=True))
            _set_attribute(chunk, "__dict__", attributes)
            chunks.append(chunk)
        return chunks

    def column(self, name: str) -> Sequence[Any]:
        """Return the value of an attribute of each chunk."""
        values = self._columns.get(name)
        return [self._common[name]] * self._n if values is None else values

    def has(self, name: str) -> bool:
        """Return True if an attribute is not None for any of the chunks."""
        values = self._columns.get(name)
        if values is None:
            return self._n > 0 and self._common[name] is not None
        return any(value is not None for value in values)

    def replaced(self, **columns: Sequence[Any]) -> "ChunkColumns":
        """Return the chunks with other values of some attributes."""
        return ChunkColumns(self._n, self._common, {**self._columns, **columns})

    def once(self, function: Callable[["ChunkColumns"], T]) -> T:
        """Return the result of a function of these chunks, which is called the first time only."""
        if function not in self._results:
            self._results[function] = function(self)
        result: T = self._results[function]
        return result

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> PackedChunk: ...

    @overload
    def __getitem__(self, index: slice) -> "ChunkColumns": ...

    def __getitem__(self, index: int | slice) -> "PackedChunk | ChunkColumns":
        if not isinstance(index, slice):
            return self._chunks[index]
        n = len(range(*index.indices(self._n)))
        columns = {name: values[index] for name, values in self._columns.items()}
        return ChunkColumns(n, self._common, columns)

    def __iter__(self) -> Iterator[PackedChunk]:
        return iter(self._chunks)


def execute_times(first: Any, last: Any, n_steps: Any, places: Any) -> Any:
    """Return when steps of chunks were executed; numbers or arrays that broadcast.

    Args:
        first: `first_time` of the chunk.
        last: `last_time`.
        n_steps: Steps of the chunk.
        places: Places of the steps in the chunk, from 0.
    """
    # The division by 1 of a single step; `views` compute the same in SQL.
    return first + (last - first) * places / (n_steps - (n_steps > 1))


def stored_values(values: Sequence[Any], dtype: Any) -> Values | None:
    """Return a value for each step as a chunk holds them; None where a step has none."""
    n_missing = values.count(None)
    if not n_missing:
        return np.array(values, dtype)
    return None if n_missing == len(values) else list(values)


def stored_times(times: list[Any]) -> tuple[float | None, float | None, Values | None]:
    """Return `first_time`, `last_time` and `times` of steps whose times were given."""
    known_times = [time for time in times if time is not None]
    if not known_times:
        return None, None, None
    return min(known_times), max(known_times), stored_values(times, np.float64)


def comparable_values(values: NDArray[Any]) -> Values:
    """Return the values of a field that conditions can use: a copy, in which texts and numbers are
    as the JSON of a row has them.
    """
    if values.dtype.kind == "U":
        return [tag_text(text) for text in values.tolist()]
    if values.dtype.kind != "f":
        return values.copy()
    # JSON shows more digits of 64 bits than of 32.
    reals = values.astype(np.float64)
    is_plain = (np.abs(reals) < WHOLE_FLOAT_LIMIT) & ~((reals == 0.0) & np.signbit(reals))
    return reals if is_plain.all() else [tag_float(real) for real in reals.tolist()]


def step_numbers(chunk: PackedChunk, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the step numbers of some steps of a chunk."""
    return chunk.step + places if chunk.steps is None else np.asarray(chunk.steps)[places]


class ChunkBytes(Protocol):
    """The bytes of a chunk; see `PackedChunk`."""

    @property
    def n_steps(self) -> int:
        """Number of steps."""

    @property
    def records(self) -> bytes:
        """Their typed fields, in blocks."""

    @property
    def block_steps(self) -> int:
        """Number of steps in a block."""

    @property
    def offsets(self) -> Any:
        """Where each block begins and where the last one ends; None: all are one plain block."""

    @property
    def layout(self) -> int:
        """Number of their layout."""


def step_rows(layout: Layout, chunk: ChunkBytes, places: NDArray[np.int64]) -> list[bytes]:
    """Return the typed fields of some steps of a chunk, as `Layout.unpack_expanded` reads them.

    Raises:
        FieldError: Damaged bytes.
    """
    places_in_block = places % chunk.block_steps
    firsts = (places - places_in_block).tolist()
    distinct = list(dict.fromkeys(firsts))
    stored = stored_blocks(chunk.records, chunk.n_steps, chunk.block_steps, chunk.offsets, distinct)
    blocks = dict(zip(distinct, stored, strict=True))
    stored_as = layout.of(chunk.layout)
    rows = expanded_rows(stored_as, [blocks[first] for first in firsts], places_in_block.tolist())
    return list(map(bytes, rows if stored_as is layout else layout.converted(rows, stored_as)))


def select_steps(layout: Layout, chunk: PackedChunk, places: Sequence[int]) -> PackedChunk:
    """Return some steps of a chunk as a chunk with the same id, when others are stored already.

    Args:
        layout: The typed fields.
        chunk: The chunk.
        places: At least one place in it, ascending; in an episode they are consecutive.

    Raises:
        ValueError: Steps of an episode are left out in between.
        FieldError: Damaged bytes.
    """
    indexes, n = np.asarray(places, np.int64), len(places)
    is_run = int(indexes[-1] - indexes[0]) == n - 1
    if chunk.t is not None and not is_run:
        raise ValueError("steps of an episode stay together in a chunk")
    rows, size = step_rows(layout, chunk, indexes), layout.size_bytes
    tails = [row[size:] for row in rows] if layout.has_tails else None
    blocks = pack_blocks(layout, b"".join([row[:size] for row in rows]), tails, [(0, n)])
    payloads = arrays = None
    if chunk.payloads is not None:
        parts = [split_payload(layout, chunk.payloads[i], chunk.payload_arrays) for i in places]
        payloads, arrays = join_payloads(layout, [collected_payload(part) for part in parts])
    steps, n_steps = step_numbers(chunk, indexes), chunk.n_steps
    span = (chunk.first_time, chunk.last_time, n_steps)
    times: tuple[float | None, float | None, Values | None] = (None, None, None)
    if chunk.times is not None:
        times = stored_times([chunk.times[i] for i in places])
    elif chunk.first_time is not None:
        first, last = (float(execute_times(*span, indexes[i])) for i in (0, -1))
        times = first, last, None
    values: dict[str, Any] = {
        name: _selected(getattr(chunk, name), indexes, dtype) for name, dtype in DTYPES.items()
    }
    return replace(
        chunk,
        n_steps=n,
        t=None if chunk.t is None else chunk.t + int(indexes[0]),
        step=int(steps[0]),
        steps=None if is_run and chunk.steps is None else steps,
        first_time=times[0],
        last_time=times[1],
        times=times[2],
        **values,
        fields=chunk.fields
        and {name: _taken(per_step, indexes) for name, per_step in chunk.fields.items()},
        records=blocks.records[0],
        block_steps=blocks.block_steps[0],
        offsets=blocks.offsets[0],
        payloads=payloads,
        payload_arrays=arrays,
        ids=chunk.ids and [chunk.ids[i] for i in places],
        layout=layout.number,
    )


def repacked(chunk: PackedChunk, source: Layout, target: Layout) -> PackedChunk:
    """Return a chunk of a buffer as another one with the same fields packs it, which may have them
    in another order, or others of them may have been added.
    """
    if target.has_same_bytes(source):
        return chunk
    steps = fields_of_rows(source, step_rows(source, chunk, np.arange(chunk.n_steps)))
    columns: dict[str, Any] = {
        name: [step[name] for step in steps]
        if spec.is_variable
        else np.array([step[name] for step in steps], spec.dtype)
        for name, spec in target.specs.items()
    }
    records, tails = target.records(columns, chunk.n_steps).tobytes(), target.tails(columns)
    blocks = pack_blocks(target, records, tails, [(0, chunk.n_steps)])
    comparable = {
        name: comparable_values(columns[name]) for name, spec in target.specs.items() if spec.column
    }
    return replace(
        chunk,
        fields=comparable or None,
        records=blocks.records[0],
        block_steps=blocks.block_steps[0],
        offsets=blocks.offsets[0],
        layout=target.number,
    )


def _selected(values: Values | None, indexes: NDArray[np.int64], dtype: Any) -> Values | None:
    if values is None:
        return None
    selected = _taken(values, indexes)
    return stored_values(selected, dtype) if isinstance(selected, list) else selected


def _taken(values: Values, indexes: NDArray[np.int64]) -> Values:
    return [values[i] for i in indexes.tolist()] if isinstance(values, list) else values[indexes]


_OF_ALL = (
    "task_id",
    "task_name",
    "agent_id",
    "pre_agent",
    "episode_key",
    "session_key",
    "model_version",
)
_OF_EACH = ("reward", "adv_t", "v_t", "terminated", "truncated")


def same_steps(
    layout: Layout,
    left: PackedChunk,
    left_places: Sequence[int],
    right: PackedChunk,
    right_places: Sequence[int],
    ignore: Collection[str] = (),
) -> NDArray[np.bool_]:
    """Return for pairs of steps whether both hold the same, to the bit; shape (n,).

    Ids, priorities and times are not compared.

    Args:
        layout: The typed fields.
        left: A chunk, packed here or read back. Step numbers that were made are not compared.
        left_places: Places of n steps in it.
        right: Another chunk.
        right_places: Places of the n steps that these are compared with.
        ignore: Keys of a chunk that may differ, such as one that the library made.

    Raises:
        FieldError: Damaged bytes.
    """
    ours, theirs = (np.asarray(places, np.int64) for places in (left_places, right_places))
    keys = [name for name in _OF_ALL if name not in ignore]
    if any(getattr(left, name) != getattr(right, name) for name in keys):
        return np.zeros(len(ours), bool)
    same: NDArray[np.bool_] = step_numbers(left, ours) == step_numbers(right, theirs)
    same |= left.makes_steps
    for name in _OF_EACH:
        same &= _same(getattr(left, name), ours, getattr(right, name), theirs)
    same &= _same_records(layout, left, ours, right, theirs)
    if left.payloads is not None or right.payloads is not None:
        for i in np.flatnonzero(same).tolist():
            same[i] = _same_payloads(layout, left, int(ours[i]), right, int(theirs[i]))
    return same


def _same_payloads(layout: Layout, left: PackedChunk, i: int, right: PackedChunk, j: int) -> bool:
    """Return True if two payloads are the same; databases may order the keys of JSON."""
    return equal(_decoded_payload(layout, left, i), _decoded_payload(layout, right, j), strict=True)


def _decoded_payload(layout: Layout, chunk: PackedChunk, place: int) -> list[Any]:
    text = None if chunk.payloads is None else chunk.payloads[place]
    payload = split_payload(layout, text, chunk.payload_arrays)
    reals: dict[str, Any] = {}
    return [
        decode(payload.state, payload.arrays),
        decode(payload.actions, payload.arrays),
        decode(payload.messages, payload.arrays),
        decode_extra(payload.extra, payload.arrays, reals),
        reals,
    ]


def _same(
    left: Values | None, ours: NDArray[np.int64], right: Values | None, theirs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return where values are the same; None is the same as None only. None of them is NaN."""
    a, b = _numbers(left, ours), _numbers(right, theirs)
    same: NDArray[np.bool_] = (a == b) | (np.isnan(a) & np.isnan(b))
    return same


def _numbers(values: Values | None, places: NDArray[np.int64]) -> NDArray[np.float64]:
    if values is None:
        return np.full(len(places), np.nan)
    numbers: NDArray[np.float64] = np.array(values, np.float64)[places]  # None is NaN
    return numbers


def _same_records(
    layout: Layout,
    left: PackedChunk,
    ours: NDArray[np.int64],
    right: PackedChunk,
    theirs: NDArray[np.int64],
) -> NDArray[np.bool_]:
    a, b = step_rows(layout, left, ours), step_rows(layout, right, theirs)
    return np.fromiter(map(bytes.__eq__, a, b), bool, len(a))
