"""The values of varying length of the steps in memory, one after the other in a heap."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        return [heap[at : at + n].tobytes() for at, n in zip(starts, sizes, strict=True)]

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
            own = first + np.flatnonzero(size[first : first + _PAGE])
            sizes = size[own]
            ends = np.cumsum(sizes)
            if not len(own):
                continue
            source = np.repeat(at[own] - (ends - sizes), sizes) + np.arange(ends[-1])
            self._heap[self._end : self._end + int(ends[-1])] = heap[source]
            self._at[own], self._size[own] = self._end + ends - sizes, sizes
            self._end += int(ends[-1])
        self.n_live = self._end
