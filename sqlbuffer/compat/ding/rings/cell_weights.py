"""The priorities of the cells of a ring, and sums of their weights by block."""

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.weighted_sampling import (
    Weights,
    draw_stratified,
    strata_of_all,
    streams,
    subkey,
    uniforms,
    weights_of,
)

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
# Cells in a block. Smaller than in a database, since all sums are at hand: two parts of a batch
# seldom share a block.
BLOCK = 64


class CellWeights:
    """The priority of each cell, 0 where it is empty; its weight is priority ^ alpha.

    Cells are added up by blocks, as the rows of a database are: a draw reads all sums, and the
    weights of few blocks. Sums are made when they are needed, of the blocks that have changed.

    Args:
        n_blocks: Number of blocks of cells.
        alpha: The exponent.
    """

    def __init__(self, n_blocks: int, alpha: float) -> None:
        self._alpha = alpha
        self.priorities = np.zeros(n_blocks * BLOCK)
        self._weights = np.zeros(n_blocks * BLOCK)
        self._sums, self._bounds = np.zeros(n_blocks), np.zeros(n_blocks)
        self._leasts = np.full(n_blocks, np.inf)
        self._has_changed = np.zeros(n_blocks, bool)

    def set(self, cells: Integers, priorities: Reals | float) -> None:
        """Set the priorities of cells."""
        self.priorities[cells] = priorities
        self._weights[cells] = weights_of(self.priorities[cells], self._alpha)
        self._has_changed[cells // BLOCK] = True

    def least(self) -> float:
        """Return the least positive priority; infinity if there is none."""
        self._add_up()
        return float(self._leasts.min())

    def draw(self, key: int, low: int, end: int, n: int, among: Integers | None = None) -> Integers:
        """Draw one number from each of n equal parts of the sum of all weights, in order; no number
        if all weights are 0.

        Args:
            key: Seed of the draw.
            low: The first number; the cell of number i is i modulo the number of cells.
            end: The number after the last.
            n: Number of draws.
            among: The numbers that may be drawn, in order; None: all.
        """
        blocks = np.arange(low // BLOCK, (end - 1) // BLOCK + 1 if end > low else 0)
        own = blocks % self._sums.size
        if among is not None:
            return self._drawn_among(key, blocks, n, among)
        self._add_up()
        sums, bounds = self._sums[own], self._bounds[own]
        places = _places(key, sums, n)
        if places is not None:
            return blocks[places] * BLOCK + self._slots(key, own[places], n)
        weights = Weights(BLOCK, blocks, sums, bounds, _Cells(self._weights))
        return _drawn(key, weights, np.arange(low, end), n)

    def _drawn_among(self, key: int, blocks: Integers, n: int, among: Integers) -> Integers:
        some = np.zeros_like(self._weights)
        cells = among % some.size
        some[cells] = self._weights[cells]
        by_block = some.reshape(-1, BLOCK)[blocks % self._sums.size]
        sums, bounds = by_block.sum(axis=1), by_block.max(axis=1, initial=0.0)
        return _drawn(key, Weights(BLOCK, blocks, sums, bounds, _Cells(some)), among, n)

    def _slots(self, key: int, blocks: Integers, n: int) -> Integers:
        """Return a place in each of n blocks, drawn by weight."""
        rows = self._weights.reshape(-1, BLOCK)[blocks]
        ends = np.cumsum(rows, axis=1)
        points = uniforms(streams(subkey(key, 1), np.arange(n))) * ends[:, -1]
        last = BLOCK - 1 - np.argmax(rows[:, ::-1] > 0, axis=1)
        found: Integers = np.minimum((ends <= points[:, None]).sum(axis=1), last)
        return found

    def _add_up(self) -> None:
        changed = np.flatnonzero(self._has_changed)
        if not changed.size:
            return
        weights, priorities = (
            values.reshape(-1, BLOCK)[changed] for values in (self._weights, self.priorities)
        )
        self._sums[changed], self._bounds[changed] = weights.sum(axis=1), weights.max(axis=1)
        self._leasts[changed] = priorities.min(axis=1, initial=np.inf, where=priorities > 0)
        self._has_changed[changed] = False


class _Cells:
    """Reads the weights of numbers from cells.

    Args:
        weights: The weight of each cell.
    """

    def __init__(self, weights: Reals) -> None:
        self._weights = weights

    def rows_of(self, blocks: Integers) -> tuple[Integers, Reals]:
        """Return the numbers and weights of some blocks."""
        numbers = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        return numbers, self.weights_of(numbers)

    def weights_of(self, seqs: Integers) -> Reals:
        """Return the weights of numbers."""
        found: Reals = self._weights[seqs % self._weights.size]
        return found


def _places(key: int, sums: Reals, n: int) -> Integers | None:
    """Return the place of the block of each of n equal parts, if each has a block to itself."""
    ends = np.cumsum(sums)
    if n > ends.size or ends[-1] <= 0:
        return None
    strata = np.arange(n)
    points = (strata + uniforms(streams(key, strata))) / n * ends[-1]
    found = np.searchsorted(ends, points, side="right")
    is_alone = found[-1] < ends.size and bool((found[1:] > found[:-1]).all())
    return found if is_alone else None


def _drawn(key: int, weights: Weights, numbers: Integers, n: int) -> Integers:
    """Return one number from each of n equal parts, where parts share blocks."""
    found = draw_stratified(key, weights, n)
    if found.is_complete:
        return found.seqs
    return strata_of_all(key, numbers, weights.of(numbers), n)
