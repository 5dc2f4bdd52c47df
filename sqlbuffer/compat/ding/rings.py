"""The interface of the rings that hold a buffer's items, and the ring in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from sqlbuffer.compat.ding.items import CopiedItems, copied_items
from sqlbuffer.processes import ForkLock
from sqlbuffer.rate_limits import FlowCounts, RatioWindow

# Returns the ages of the items to draw, 0 the oldest; from the number of items, and of those that
# were pushed.
Choice = Callable[[int, int], Sequence[int]]
Cell = tuple[CopiedItems, int]


class Counters(NamedTuple):
    """The counters of a ring. Those from `max_priority` on are of advanced buffers.

    Attributes:
        push_count: Items pushed, including those that left.
        tail: The place of the next item.
        max_priority: Priority of items pushed without one: the largest that was set.
        beta: Exponent of the importance weights; None for the one in the opener's config.
        pushed: Items pushed, decayed.
        sampled: Items sampled, decayed.
        decayed_at: Unix time up to which these two are decayed.
    """

    push_count: int = 0
    tail: int = 0
    max_priority: float = 1.0
    beta: float | None = None
    pushed: float = 0.0
    sampled: float = 0.0
    decayed_at: float = 0.0

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "Counters":
        """Return the counters in a document."""
        return cls(*(value[name] for name in cls._fields))

    def after_push(self, n: int, size: int) -> "Counters":
        """Return the counters of a ring of a size after a push of n items."""
        return Counters(self.push_count + n, (self.tail + n) % size, *self[2:])

    def place_of(self, number: int, size: int) -> int:
        """Return the place in the ring of an item that is held, by its number over all pushes."""
        return (number - self.push_count + self.tail) % size

    def decayed(self, limit: RatioWindow, now: float) -> "Counters":
        """Return the counters with the counts of the rate limit decayed to a moment."""
        left, at = limit.decayed_by_second(self.flow, self.decayed_at, now)
        return self._replace(pushed=left.inserted, sampled=left.sampled, decayed_at=at)

    @property
    def flow(self) -> FlowCounts:
        """The counts that a rate limit reads."""
        return FlowCounts(self.pushed, self.sampled)


class Left(NamedTuple):
    """Items that left: their number; and the items, the oldest first, where they are tracked."""

    n: int = 0
    items: Sequence[Any] = ()


class RingContents(NamedTuple):
    """The items of a ring, the oldest first, and its counters at that moment."""

    items: list[Any]
    counters: Counters


class Ring(Protocol):
    """The items of one buffer, the oldest first.

    Items that go in and come out are copies: a change of one does not change the ring. Calls
    come from any thread, and each is done as a whole.
    """

    @property
    def shown_url(self) -> str | None:
        """The URL of its database, without a password; None: it has none."""

    def counters(self) -> Counters:
        """Return its counters."""

    def count(self) -> int:
        """Return the number of items."""

    def push(
        self, items: Sequence[Any], n_pushed: int, envstep: Any, *, track: bool = False
    ) -> Left:
        """Put items at the end, all or none; the oldest leave.

        Args:
            items: The items that are kept: no more than it holds.
            n_pushed: Number of pushed items.
            envstep: The collector's step.
            track: Return the items that leave.

        Raises:
            ItemError: An item cannot be stored; the message names the place in it.
        """

    def uniform(self, size: int, *, replace: bool, seed: int) -> list[Any]:
        """Return items drawn uniformly, in random order; fewer than `size` if it holds too few."""

    def draw(self, choose: Choice) -> list[Any]:
        """Return the items that are chosen, in that order."""

    def contents(self, *, encoded: bool = False) -> RingContents:
        """Return all items and the counters, of one moment.

        Args:
            encoded: Return each item as JSON and the bytes of its arrays.
        """

    def lengths(self) -> list[int | None]:
        """Return the length of each item; None for an item without a length."""

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items, and count from 0 again.

        Args:
            track: Return them.
        """

    def replace(self, items: Sequence[Any], counters: Counters) -> None:
        """Hold these items instead of those that there are."""

    def close(self) -> None:
        """Free its memory in this process."""


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
        self.size, self.n_cells = size, n_cells or size
        self._mutex = ForkLock()
        # The copies of the push that an item came with, and its place among them.
        self._copies: list[CopiedItems | None] = [None] * self.n_cells
        self._offsets = [0] * self.n_cells
        self._counters, self._low, self._n = Counters(), 0, 0

    def counters(self) -> Counters:
        """Return its counters."""
        return self._counters

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
            self._count_pushed(self._counters.after_push(n_pushed, self.size))
            self._write(self._counters.push_count - n, copies, n)
        return Left(n_left, values_of(left))

    def _count_pushed(self, counters: Counters) -> None:
        self._counters = counters
        self._low = max(self._low, counters.push_count - self.size)

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
        end = self._counters.push_count
        cells = self._held(self._low, end)
        self._empty(self._low, end)
        self._low, self._n = end, 0
        return cells

    def _empty(self, first: int, last: int) -> None:
        """Empty the cells of the numbers first to last - 1."""
        for part in self._parts(first, last):
            self._copies[part] = [None] * (part.stop - part.start)

    def _parts(self, first: int, last: int) -> Iterable[slice]:
        """Return the cells of the numbers first to last - 1: one slice, or two where they wrap."""
        if last <= first:
            return ()
        start, end = first % self.n_cells, self.n_cells
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
        place = number % self.n_cells
        copies = self._copies[place]
        assert copies is not None, f"{number} of {self._low} on is not held"
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
            ages = choose(self._n, self._counters.push_count)
            cells = [self._cell(self._low + age) for age in ages]
        return values_of(cells)

    def contents(self, *, encoded: bool = False) -> RingContents:
        """Return all items and the counters; see `Ring.contents`."""
        with self._mutex:
            counters = self._counters
            cells = self._held(self._low, counters.push_count)
        return RingContents(values_of(cells, encoded=encoded), counters)

    def lengths(self) -> list[int | None]:
        """Return the length of each item; None for an item without a length."""
        with self._mutex:
            cells = self._held(self._low, self._counters.push_count)
        return [copies.length(i) for copies, i in cells]

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items, and count from 0 again."""
        with self._mutex:
            left = self._take_all()
            self._counters, self._low = Counters(), 0
        return Left(len(left), values_of(left) if track else ())

    def replace(self, items: Sequence[Any], counters: Counters) -> None:
        """Hold copies of these items instead of those that there are."""
        copies, n = copied_items(items), len(items)
        with self._mutex:
            self._take_all()
            self._counters, self._low = counters, counters.push_count - n
            self._write(self._low, copies, n)

    def close(self) -> None:
        """Let all items go."""
        self.clear()


def values_of(cells: Iterable[Cell], *, encoded: bool = False) -> list[Any]:
    """Return copies of the items of cells, or the items encoded."""
    if encoded:
        return [copies.encoded(i) for copies, i in cells]
    return [copies.item(i) for copies, i in cells]
