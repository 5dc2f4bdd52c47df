"""In which order a pass visits the numbers of its range, and its next keys."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

SLICE = 4096
MOST_AT_ONCE = 65_536
# One scan over the keys is cheaper than asking for numbers of which fewer are there.
LOWEST_SHARE = 1 / 16
FIRST_LOOKED_AT = 4_096


class Order:
    """The numbers low < seq <= high, each once, in ascending or shuffled order. With n workers,
    each has every n-th number.

    Numbers that are known to be unused are skipped; the order of the others does not change.

    Args:
        low: Lower end of the range, excluded.
        high: Upper end of the range, included.
        rng: Generator that shuffles, the same one in each worker. None: ascending order.
        worker: Number of the worker, from 0.
        n_workers: Number of workers.

    Example:
        >>> Order(10, 16, None, worker=1, n_workers=2).after(0, 10, 0)[0].tolist()
        [12, 14, 16]
    """

    def __init__(
        self,
        low: int,
        high: int,
        rng: np.random.Generator | None,
        worker: int = 0,
        n_workers: int = 1,
    ) -> None:
        self.low, self.high, self._worker, self._step = low, high, worker, n_workers
        self._span = max(high - low, 0)
        self._n_places = len(range(worker, self._span, n_workers))
        self._shuffled: NDArray[np.unsignedinteger] | None = None
        if rng is not None:
            offsets = np.arange(self._span, dtype=np.min_scalar_type(max(self._span - 1, 0)))
            rng.shuffle(offsets)
            # A slice alone would keep all of them in memory.
            self._shuffled = offsets if n_workers == 1 else offsets[worker::n_workers].copy()
        self._kept: Numbers | None = None

    @property
    def is_restricted(self) -> bool:
        """Whether the existing numbers are known."""
        return self._kept is not None

    def restrict(self, keys: Numbers) -> None:
        """Pass over all numbers but these."""
        offsets = keys[(keys > self.low) & (keys <= self.high)] - self.low - 1
        if self._shuffled is None:
            own = np.sort(offsets[offsets % self._step == self._worker])
            self._kept = (own - self._worker) // self._step
            return
        wanted = np.zeros(self._span, bool)
        wanted[offsets] = True
        self._kept = np.flatnonzero(wanted[self._shuffled]).astype(np.int64)

    def after(self, place: int, n: int, above: int) -> tuple[Numbers, Numbers]:
        """Return the next numbers from a place on, and their places.

        Args:
            place: Where to begin; 0 is the start.
            n: Largest number; fewer only at the end.
            above: Pass over numbers up to this one, which have left the window.
        """
        found: list[tuple[Numbers, Numbers]] = []
        missing, size = n, max(n, SLICE)
        while missing > 0:
            places = self._places(place, size)
            if not places.size:
                break
            place, size = int(places[-1]) + 1, 2 * size
            numbers = self._numbers(places)
            if above > self.low:
                live = numbers > above
                numbers, places = numbers[live], places[live]
            found.append((numbers[:missing], places[:missing]))
            missing -= min(missing, numbers.size)
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def _places(self, place: int, n: int) -> Numbers:
        if self._kept is not None:
            first = int(np.searchsorted(self._kept, place))
            return self._kept[first : first + n]
        return np.arange(place, min(place + n, self._n_places), dtype=np.int64)

    def _numbers(self, places: Numbers) -> Numbers:
        if self._shuffled is None:
            return self.low + 1 + self._worker + places * self._step
        return self.low + 1 + self._shuffled[places].astype(np.int64)


class PassOrder(Protocol):
    """In which order a pass visits rows; see `Order`."""

    @property
    def is_restricted(self) -> bool:
        """Whether the existing numbers are known."""

    def restrict(self, keys: Numbers) -> None:
        """Pass over all numbers but these."""

    def after(self, place: int, n: int, above: int) -> tuple[Numbers, Numbers]:
        """Return the next numbers from a place on, and their places."""


@dataclass(frozen=True)
class Place:
    """Position of a pass.

    Attributes:
        place: Place in its order after the last row that was handed out.
        asked: Number of `seq` values that were looked up so far.
        found: Number of rows that were found.
    """

    place: int = 0
    asked: int = 0
    found: int = 0

    @property
    def share(self) -> float:
        """The share of numbers that are there, as far as is known."""
        return max(self.found, 1) / self.asked if self.asked else 1.0


def next_keys(
    order: PassOrder,
    at: Place,
    n: int,
    low: int,
    keys: Callable[[], Numbers],
    made: Callable[[Numbers], Numbers],
) -> tuple[Numbers, Place]:
    """Return the keys of the next n items of a pass, fewer at its end; and the place behind them.

    Args:
        order: The order of the pass.
        at: Where it is.
        n: Number of items.
        low: Numbers up to this one have left the window.
        keys: Returns the number of each row that may be a key. It is called if most numbers are
            unused.
        made: Returns the indexes of those numbers of which an item can be made, in ascending order.
    """
    parts: list[Numbers] = [np.empty(0, np.int64)]
    missing = n
    while missing > 0:
        if not order.is_restricted and at.asked >= FIRST_LOOKED_AT and at.share < LOWEST_SHARE:
            order.restrict(keys())
            at = Place(at.place)
        n_numbers = min(math.ceil(missing / at.share), MOST_AT_ONCE)
        numbers, places = order.after(at.place, n_numbers, low)
        if not numbers.size:
            break
        hits = made(numbers)
        parts.append(numbers[hits[:missing]])
        # What lies beyond the end of this batch is tested again for the next one.
        last = hits[missing - 1] if hits.size >= missing else -1
        at = Place(int(places[last]) + 1, at.asked + numbers.size, at.found + hits.size)
        missing -= min(missing, hits.size)
    return np.concatenate(parts), at
