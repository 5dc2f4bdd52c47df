"""A ring of items in the memory of this process."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sqlbuffer.compat.ding.contents.item_columns import CopiedItems, copied_items
from sqlbuffer.compat.ding.rings.ring import Choice, RingContents
from sqlbuffer.processes import ForkLock
from sqlbuffer.storage.extensions.ring_buffer import Left, RingCounts

Cell = tuple[CopiedItems, int]


class PrivateRing:
    """The items of one buffer, in a list. A forked child has its own copy.

    Items are numbered over all pushes. The item of number n is in the cell n modulo the number of
    cells. Numbers below `push_count` - `size` have left.

    Args:
        size: Number of items.
        n_cells: Number of cells, at least `size`; None: `size`.
    """

    shown_url = None

    def __init__(self, size: int, n_cells: int | None = None) -> None:
        self.size, self._n_cells = size, n_cells or size
        self._mutex = ForkLock()
        # The copies of the push that an item came with, and its place among them.
        self._copies: list[CopiedItems | None] = [None] * self._n_cells
        self._offsets = [0] * self._n_cells
        self._low = self._push_count = self._tail = self._n = 0

    def counts(self) -> RingCounts:
        """Return its counters."""
        with self._mutex:
            return self._counts()

    def _counts(self) -> RingCounts:
        return RingCounts(self._push_count, self._tail)

    def count(self) -> int:
        """Return the number of items."""
        return self._n

    def push(
        self, items: Sequence[Any], n_pushed: int, envstep: Any, *, track: bool = False
    ) -> Left:
        """Put copies of items at the end; see `Ring.push`."""
        copies, n = copied_items(items), len(items)
        with self._mutex:
            n_left = max(0, self._n + n - self.size)
            # Their cells are those of the new items.
            left = self._held(self._low, self._low + n_left) if track else ()
            self._n -= n_left
            self._count_pushed(n_pushed)
            self._write(self._push_count - n, copies, n)
        return Left(n_left, values_of(left))

    def _count_pushed(self, n: int) -> None:
        self._push_count += n
        self._tail = (self._tail + n) % self.size
        self._low = max(self._low, self._push_count - self.size)

    def _write(self, first: int, copies: CopiedItems, n: int, start: int = 0) -> None:
        """Put n items into the cells of the numbers from `first` on.

        Args:
            first: The first number.
            copies: The items.
            n: Number of items.
            start: The place of the first one among them.
        """
        self._n += n
        for part in self._parts(first, first + n):
            end = start + part.stop - part.start
            self._copies[part] = [copies] * (end - start)
            self._offsets[part] = range(start, end)
            start = end

    def _take_all(self) -> list[Cell]:
        """Empty all cells, and return their items."""
        found = self._held(self._low, self._push_count)
        self._empty(self._low, self._push_count)
        self._n = 0
        return found

    def _empty(self, first: int, last: int) -> None:
        """Empty the cells of the numbers first to last - 1."""
        for part in self._parts(first, last):
            self._copies[part] = [None] * (part.stop - part.start)

    def _parts(self, first: int, last: int) -> Iterable[slice]:
        """Return the cells of the numbers first to last - 1: one slice, or two where they wrap."""
        if last <= first:
            return ()
        start, end = first % self._n_cells, self._n_cells
        stop = start + last - first
        return (slice(start, stop),) if stop <= end else (slice(start, end), slice(0, stop - end))

    def _held(self, first: int, last: int) -> list[Cell]:
        """Return the cells of the numbers first to last - 1 that hold items, the oldest first."""
        return [
            (copies, offset)
            for part in self._parts(first, last)
            for copies, offset in zip(self._copies[part], self._offsets[part], strict=True)
            if copies is not None
        ]

    def _cell(self, number: int) -> Cell:
        """Return the cell of a number that is held."""
        place = number % self._n_cells
        copies = self._copies[place]
        assert copies is not None, f"{number} of {self._low} to {self._push_count} is not held"
        return copies, self._offsets[place]

    def uniform(self, size: int, *, replace: bool, seed: int) -> list[Any]:
        """Return items drawn uniformly; see `Ring.uniform`."""

        def choose(n: int, _: int) -> Sequence[int]:
            if not n or (n < size and not replace):
                return ()
            ages: list[int] = np.random.default_rng(seed).choice(n, size, replace=replace).tolist()
            return ages

        return self.draw(choose)

    def draw(self, choose: Choice) -> list[Any]:
        """Return the items that are chosen, in that order."""
        with self._mutex:
            ages = choose(self._n, self._push_count)
            found = [self._cell(self._low + age) for age in ages]
        return values_of(found)

    def contents(self, *, encoded: bool = False) -> RingContents:
        """Return all items and the counters; see `Ring.contents`."""
        with self._mutex:
            cells, counts = self._held(self._low, self._push_count), self._counts()
        return RingContents(values_of(cells, encoded=encoded), counts)

    def lengths(self) -> list[int | None]:
        """Return the length of each item; None for an item without a length."""
        with self._mutex:
            cells = self._held(self._low, self._push_count)
        return [copies.length(i) for copies, i in cells]

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items, and count from 0 again."""
        with self._mutex:
            left = self._take_all()
            self._low = self._push_count = self._tail = 0
        return Left(len(left), values_of(left) if track else ())

    def replace(self, items: Sequence[Any], counts: RingCounts) -> None:
        """Hold copies of these items instead of those that there are."""
        copies, n = copied_items(items), len(items)
        with self._mutex:
            self._take_all()
            self._push_count, self._tail = counts.push_count, counts.tail
            self._low = counts.push_count - n
            self._write(self._low, copies, n)

    def close(self) -> None:
        """Let all items go."""
        self.clear()


def values_of(cells: Iterable[Cell], *, encoded: bool = False) -> list[Any]:
    """Return copies of the items of cells, or the items encoded."""
    if encoded:
        return [copies.encoded(i) for copies, i in cells]
    return [copies.item(i) for copies, i in cells]
