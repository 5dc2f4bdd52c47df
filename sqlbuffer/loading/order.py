"""In which order a pass visits the numbers of its range."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

SLICE = 4096


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
