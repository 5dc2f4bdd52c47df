"""Weights of slots and their sums, to draw slots by weight."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.mirror.memory.block_map import BLOCK

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

# How many numbers of one level a number of the next one adds up, and how many levels there are.
# Measured at a million slots, 256 drawn and set: 16 and 3 take 105 us, 64 and 2 take 180 us.
FAN = 16
_BITS = 4
_N_LEVELS = 3


class WeightTree:
    """Weights of slots, the sums of 16 slots each, and the sums of 256.

    A sum is always computed from its parts, so rounding errors do not accumulate.

    Args:
        n_slots: Number of slots; whole blocks of them.

    Attributes:
        weights: The weight of each slot, shape (n_slots,). Call `add_up` after a change.

    Example:
        >>> tree = WeightTree(64)
        >>> tree.weights[[1, 4]] = 1.0, 3.0
        >>> tree.add_up(np.array([1, 4]))
        >>> tree.total, tree.slots_at(np.array([0.1, 0.3, 0.9])).tolist()
        (4.0, [1, 4, 4])
    """

    def __init__(self, n_slots: int) -> None:
        self._levels = [np.zeros(n_slots)]
        for _ in range(_N_LEVELS - 1):
            n = -(-len(self._levels[-1]) // FAN)
            # Whole rows of the next level.
            self._levels.append(np.zeros(-(-n // FAN) * FAN))
        self.weights = self._levels[0]
        self._total: float | None = 0.0

    @property
    def total(self) -> float:
        """The sum of all weights."""
        if self._total is None:
            self._total = float(self._levels[-1].sum())
        return self._total

    def add_up(self, slots: Integers) -> None:
        """Compute the sums again that have one of some slots."""
        self._total = None
        for below, above in pairwise(self._levels):
            rows = below.reshape(-1, FAN)
            if len(slots) > len(rows):
                above[: len(rows)] = rows.sum(axis=1)
                slots = np.arange(len(rows))
            else:
                slots = slots >> _BITS
                above[slots] = rows.take(slots, axis=0).sum(axis=1)

    def slots_at(self, fractions: Reals) -> Integers:
        """Return the slots that fractions of the sum of all weights fall on.

        Through rounding it may be one of weight 0, once in about 10^16 times.

        Args:
            fractions: From 0 to less than 1, shape (n,).
        """
        *below, top = self._levels
        ends = top.cumsum()
        rest = fractions * ends[-1]
        found: Integers = ends.searchsorted(rest, side="right")
        if len(found) and found.max() == len(top):
            found[found == len(top)] = top.argmax()
        rest -= ends[found] - top[found]
        each = np.arange(len(found))
        for level in reversed(below):
            rows = level.reshape(-1, FAN).take(found, axis=0)
            # One addition for all rows at a time: half the time of `cumsum` along short rows.
            sums = rows.T.copy()
            for before, own in pairwise(sums):
                np.add(before, own, out=own)
            places = (sums > rest).argmax(axis=0)
            rest -= sums[places, each] - rows[each, places]
            found = found * FAN + places
        return found

    def slots_in_order(self, fractions: Reals, order: Integers) -> Integers:
        """Return the slots that fractions of the sum fall on where blocks of slots have an order.

        Args:
            fractions: From 0 to less than 1, shape (n,).
            order: The blocks; the others have no weight.
        """
        of_blocks = self._levels[1][: len(self.weights) // FAN].reshape(-1, BLOCK // FAN)
        sums = of_blocks.sum(axis=1)[order]
        ends = sums.cumsum()
        rest = fractions * ends[-1]
        places = np.minimum(ends.searchsorted(rest, side="right"), len(order) - 1)
        rest -= ends[places] - sums[places]
        inside = self.weights.reshape(-1, BLOCK).take(order[places], axis=0).cumsum(axis=1)
        found: Integers = order[places] * BLOCK + (inside > rest[:, None]).argmax(axis=1)
        return found
