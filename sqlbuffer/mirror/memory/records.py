"""The record of each step in memory, and its values of varying length."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import LINK, NO_TERMINATED, NO_TRUNCATED, TOLD
from sqlbuffer.encoding.chunks import step_rows
from sqlbuffer.encoding.field_copies import offset_of
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import ON_REQUEST
from sqlbuffer.storage.following.state import ChunkRow

Integers = NDArray[np.int64]
Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

AT, SIZE, HEAP = "tail_at", "tail_size", "tail_heap"
FIRST_BYTES = 2**20
# Steps whose values are copied together.
_PAGE = 65_536


def tail_shapes(n_slots: int, heap_bytes: int) -> Shapes:
    """Return shape and dtype of each array, by name."""
    return {
        AT: ((n_slots,), np.dtype(np.int64)),
        SIZE: ((n_slots,), np.dtype(np.int64)),
        HEAP: ((heap_bytes,), np.dtype(np.uint8)),
    }


class Tails:
    """Where the values of each step begin in the heap, and how long they are.

    The heap is only appended to. When it is full, the values in use move to another one.

    Attributes:
        n_live: Bytes in use.
        n_wanted: Bytes that had no room at the last call of `has_room`; 0: they had.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._use(arrays)
        self.n_live = self.n_wanted = self._end = 0

    def _use(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._at, self._size, self._heap = arrays[AT], arrays[SIZE], arrays[HEAP]

    def restore(self) -> None:
        """Find the values in use from arrays of another memory."""
        self.n_live = int(self._size.sum())
        self._end = int((self._at + self._size).max(initial=0))

    def has_room(self, n_bytes: int) -> bool:
        """Return whether the heap has room for a number of bytes."""
        is_enough = self._end + n_bytes <= len(self._heap)
        self.n_wanted = 0 if is_enough else n_bytes
        return is_enough

    @property
    def next_bytes(self) -> int:
        """Size of the next heap."""
        return max(len(self._heap), 2 * (self.n_live + self.n_wanted))

    def put(self, slots: Any, values: Sequence[bytes]) -> None:
        """Keep the values of steps.

        Args:
            slots: Where the steps are: an index of n slots.
            values: The bytes of each, n of them; `has_room` returned True for their sum.
        """
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        ends = self._end + np.cumsum(sizes)
        self.n_live += int(sizes.sum()) - int(self._size[slots].sum())
        self._at[slots], self._size[slots] = ends - sizes, sizes
        end = self._end + int(sizes.sum())
        self._heap[self._end : end] = np.frombuffer(b"".join(values), np.uint8)
        self._end = end

    def of(self, slots: Integers) -> list[bytes]:
        """Return the values of steps."""
        heap, starts, sizes = self._heap, self._at[slots].tolist(), self._size[slots].tolist()
        return [heap[start : start + n].tobytes() for start, n in zip(starts, sizes, strict=True)]

    def drop(self, slots: Integers) -> None:
        """Forget the values of steps."""
        self.n_live -= int(self._size[slots].sum())
        self._size[slots] = 0

    def move(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the values in use in other arrays."""
        at, size, heap = self._at, self._size, self._heap
        self._use(arrays)
        self.n_live = self._end = 0
        for first in range(0, len(size), _PAGE):
            kept = first + np.flatnonzero(size[first : first + _PAGE])
            sizes = size[kept]
            ends = np.cumsum(sizes)
            if not len(kept):
                continue
            source = np.repeat(at[kept] - (ends - sizes), sizes) + np.arange(ends[-1])
            self._heap[self._end : self._end + int(ends[-1])] = heap[source]
            self._at[kept], self._size[kept] = self._end + ends - sizes, sizes
            self._end += int(ends[-1])
        self.n_live = self._end


# Fields of that many bytes have a separate array: a gather of whole records would copy them
# where they are not asked for.
LARGE_BYTES = 1024
# Fields have names that Python could use, so these are free.
SEQ, STEP, TASK, AGENT, EPISODE, T = ".seq", ".step", ".task", ".agent", ".episode", ".t"
# New flags of a chunk's steps when all of them get a flag that none had.
_WITH = {more: bytes(flags | more for flags in range(256)) for more in range(0, 256, TOLD)}


def record_of(layout: Layout) -> np.dtype[Any]:
    """Return the dtype of a step's record: its small fields, and the columns of batches."""
    small = [
        (name, layout.record[name])
        for name, spec in layout.specs.items()
        if spec.is_variable or layout.record[name].itemsize < LARGE_BYTES
    ]
    built_in: list[Any] = [
        ("reward", np.float32), ("terminated", np.bool_), ("truncated", np.bool_), (SEQ, np.int64),
        (STEP, np.int64), (TASK, np.int32), (AGENT, np.int32), (EPISODE, np.int32), (T, np.int32),
    ]  # fmt: skip
    return np.dtype([*small, *built_in], align=True)


def kept_layout(layout: Layout, names: Collection[str]) -> Layout:
    """Return a layout of chunks of which only some fields are kept in memory.

    The values of varying length of a step are kept all or none: they follow each other.
    """
    kept = layout.fixed
    kept.__dict__ = {**kept.__dict__, "learn": None}  # its fields stay the same
    keeps_tails = any(spec.is_variable and name in names for name, spec in layout.specs.items())
    kept.specs = {
        name: spec
        for name, spec in layout.specs.items()
        if name in names or (keeps_tails and spec.is_variable)
    }
    return kept


class StoredFields:
    """Puts the fields of stored records into those of a mirror: fields next to each other in both
    are copied as one run.

    Args:
        layout: How the bytes of chunks are laid out.
    """

    def __init__(self, layout: Layout) -> None:
        stored, record = layout.record, record_of(layout)
        self._layout = layout
        # The first byte in the stored record, that in the mirror's, and how many they are.
        self._runs: list[tuple[int, int, int]] = []
        runs = self._runs
        for name in layout.specs:
            if name not in (record.names or ()):
                continue
            n_bytes = stored[name].itemsize
            start, at = offset_of(stored, name), offset_of(record, name)
            if runs and (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]) == (start, at):
                runs[-1] = (*runs[-1][:2], runs[-1][2] + n_bytes)
            else:
                runs.append((start, at, n_bytes))

    def put(
        self,
        heads: bytes,
        n: int,
        slots: Any,
        records: NDArray[Any],
        large: Mapping[str, NDArray[Any]],
    ) -> None:
        """Put the fields of n steps into their slots.

        Args:
            heads: Their stored records.
            n: Number of items.
            slots: The slots.
            records: The records of the mirror, shape (n_slots, numbers of a record).
            large: Fields with a separate array.
        """
        stored = np.frombuffer(heads, np.uint8).reshape(n, self._layout.size_bytes)
        raw = records.view(np.uint8)
        for first, place, n_bytes in self._runs:
            raw[slots, place : place + n_bytes] = stored[:, first : first + n_bytes]
        if large:
            steps = np.frombuffer(heads, self._layout.record, n)
            for name, column in large.items():
                column[slots] = steps[name]


def field_bytes(layout: Layout, chunks: Sequence[ChunkRow]) -> tuple[bytes, list[bytes] | None]:
    """Return the records of the steps of chunks, one after the other, and for each step the bytes
    of its values of varying length; None without such fields.

    Raises:
        FieldError: A step was not written with the buffer's fields, or is damaged.
    """
    size = layout.size_bytes
    for chunk in chunks:
        if not chunk.records:
            raise FieldError(
                f"row {chunk.first_seq} holds no arrays: it was not written with the buffer's "
                f"fields; delete it, and open the mirror again"
            )
    if not layout.has_tails and all(
        chunk.layout == layout.number
        and chunk.offsets is None
        and len(chunk.records) == chunk.n_steps * size
        for chunk in chunks
    ):
        return b"".join([chunk.records for chunk in chunks]), None
    rows = [row for chunk in chunks for row in step_rows(layout, chunk, np.arange(chunk.n_steps))]
    tails = [row[size:] for row in rows] if layout.has_tails else None
    return b"".join([row[:size] for row in rows]), tails


def slot_bytes(layout: Layout) -> int:
    """Return how much memory a slot takes, without values of varying length."""
    large = sum(
        layout.record[name].itemsize
        for name in layout.specs
        if name not in (record_of(layout).names or ())
    )
    is_drawable, place = 1, 16 if any(spec.is_variable for spec in layout.specs.values()) else 0
    values = len(ON_REQUEST) * np.dtype(np.float32).itemsize
    return record_of(layout).itemsize + LINK.itemsize + large + values + is_drawable + place


def as_slice(slots: Integers) -> Any:
    """Return slots next to each other as a slice, which numpy copies to much faster."""
    first, last = int(slots[0]), int(slots[-1])
    is_run = last - first == len(slots) - 1 and bool((np.diff(slots) == 1).all())
    return slice(first, last + 1) if is_run else slots


def step_numbers_of(
    chunks: Sequence[ChunkRow], counts: Integers, ends: Integers, places: Integers
) -> Integers:
    steps: Integers = np.repeat([chunk.step for chunk in chunks], counts) + places
    for chunk, end in zip(chunks, ends.tolist(), strict=True):
        if chunk.steps is not None:
            steps[end - chunk.n_steps : end] = chunk.steps
    return steps


def flags_of(chunk: ChunkRow) -> bytes:
    """Return the flags of the steps of a chunk."""
    n = chunk.n_steps
    more = 0 if chunk.ends is None else TOLD
    some: list[NDArray[np.uint8]] = []
    for nulls, flag in (
        (chunk.terminated_nulls, NO_TERMINATED),
        (chunk.truncated_nulls, NO_TRUNCATED),
    ):
        if nulls == "":
            more |= flag
        elif nulls is not None:
            some.append(np.array([value is None for value in orjson.loads(nulls)], np.uint8) * flag)
    flags = (chunk.ends or bytes(n)).translate(_WITH[more])
    for part in some:
        flags = (np.frombuffer(flags, np.uint8) | part).tobytes()
    return flags
