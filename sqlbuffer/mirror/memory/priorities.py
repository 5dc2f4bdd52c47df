"""The priorities of the steps in memory, and a tree of their sums."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import LIVE
from sqlbuffer.mirror.memory.tables import BLOCK, BlockRuns, ChangedSlots
from sqlbuffer.weighted_sampling import weights_of

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

# How many numbers of one level a number of the next one adds up, and how many levels there are.
# Measured at a million slots, 256 drawn and set: 16 and 3 take 105 us, 64 and 2 take 180 us.
FAN = 16
_BITS = 4
_N_LEVELS = 3
# A row multiplied by it becomes the sums of its first numbers: a third of the time of `cumsum`
# along short rows.
_SUMS = np.triu(np.ones((FAN, FAN)))
# A row multiplied by these becomes its sum.
_ONES = np.ones(FAN)
# BLAS would compute larger products in several threads, and take them from the learner.
_MULTIPLIED_AT_ONCE = 512


def _multiplied(rows: Reals, by: Reals) -> Reals:
    """Return the product of rows of 16 numbers and a matrix or a vector."""
    if 0 < len(rows) <= _MULTIPLIED_AT_ONCE:
        return rows @ by
    starts = range(0, len(rows), _MULTIPLIED_AT_ONCE)
    parts = [rows[start : start + _MULTIPLIED_AT_ONCE] @ by for start in starts]
    return np.concatenate([np.zeros((0, *by.shape[1:])), *parts])


# After changes of that share of the slots the bound of their weights is computed again.
_BOUND_CHANGES = 1 / 8


class WeightTree:
    """Weights of slots, the sums of 16 slots each, and the sums of 256.

    A sum is always computed from its parts, so rounding errors do not accumulate.

    Args:
        n_slots: Number of slots; whole blocks of them.

    Attributes:
        weights: The weight of each slot, shape (n_slots,). Call `add_up` after a change.
        bound: An upper bound of all weights. It falls to the largest one after as many changes as
            an eighth of the slots.

    Example:
        >>> tree = WeightTree(64)
        >>> tree.weights[[1, 4]] = 1.0, 3.0
        >>> tree.add_up(np.array([1, 4]))
        >>> tree.total, tree.slots_at(np.array([0.1, 0.3, 0.9])).tolist(), tree.bound
        (4.0, [1, 4, 4], 3.0)
        >>> tree.weights[4] = 0.5
        >>> bounds = []
        >>> for _ in range(8):
        ...     tree.add_up(np.array([4]))
        ...     bounds.append(tree.bound)
        >>> bounds
        [3.0, 3.0, 3.0, 3.0, 3.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, n_slots: int) -> None:
        self._levels = [np.zeros(n_slots)]
        for _ in range(_N_LEVELS - 1):
            n = -(-len(self._levels[-1]) // FAN)
            # Whole rows of the next level.
            self._levels.append(np.zeros(-(-n // FAN) * FAN))
        self.weights = self._levels[0]
        self._total: float | None = 0.0
        self.bound, self._n_since_bound = 0.0, 0

    @property
    def total(self) -> float:
        """The sum of all weights."""
        if self._total is None:
            self._total = float(self._levels[-1].sum())
        return self._total

    def add_up(self, slots: Integers) -> None:
        """Compute the sums again that have one of some slots."""
        self._total = None
        self._n_since_bound += len(slots)
        if self._n_since_bound >= len(self.weights) * _BOUND_CHANGES:
            self.bound, self._n_since_bound = float(self.weights.max(initial=0.0)), 0
        else:
            self.bound = max(self.bound, float(self.weights.take(slots).max(initial=0.0)))
        for below, above in pairwise(self._levels):
            rows = below.reshape(-1, FAN)
            if len(slots) > len(rows):
                above[: len(rows)] = _multiplied(rows, _ONES)
                slots = np.arange(len(rows))
            else:
                slots = slots >> _BITS
                above[slots] = _multiplied(rows.take(slots, axis=0), _ONES)

    def slots_at(self, fractions: Reals) -> Integers:
        """Return the slots that fractions of the sum of all weights fall on.

        Through rounding it may be one of weight 0, once in about 10^16 times.

        Args:
            fractions: From 0 to less than 1, shape (n,).
        """
        *below, top = self._levels
        ends = top.cumsum()
        rest = fractions * ends[-1]
        nodes: Integers = ends[:-1].searchsorted(rest, side="right")
        rest -= ends.take(nodes) - top.take(nodes)
        firsts = np.arange(0, FAN * len(nodes), FAN)
        for level in reversed(below):
            rows = level.reshape(-1, FAN).take(nodes, axis=0)
            sums = _multiplied(rows, _SUMS)
            places = (sums > rest[:, None]).argmax(axis=1)
            nodes = nodes * FAN + places
            if level is not self.weights:
                entries = firsts + places
                rest -= sums.take(entries) - rows.take(entries)
        return nodes

    def slots_in_order(self, fractions: Reals, runs: BlockRuns) -> Integers:
        """Return the slots that fractions of the sum fall on where blocks of slots have an order.

        Args:
            fractions: From 0 to less than 1, shape (n,).
            runs: The blocks; the others have no weight.
        """
        if len(runs.first) < 2:
            return self.slots_at(fractions)
        by_slot, sums = runs.first.argsort(), np.zeros(len(runs.first))
        edges = np.stack(runs, axis=1)[by_slot].reshape(-1) * (BLOCK // FAN)
        of_rows = self._levels[1]
        if edges[-1] == len(of_rows):
            edges = edges[:-1]
        sums[by_slot] = np.add.reduceat(of_rows, edges)[::2]
        # How much is before each run, in the order of the runs and in that of the slots.
        ends, before = sums.cumsum(), np.zeros(len(sums))
        before[by_slot] = sums[by_slot].cumsum() - sums[by_slot]
        places = fractions * ends[-1]
        at_runs = np.minimum(ends.searchsorted(places, side="right"), len(ends) - 1)
        places += (before - (ends - sums))[at_runs]
        return self.slots_at(places / ends[-1])


Flags = NDArray[np.bool_]

# Priority, weight, flag and share of the sums of a slot.
PRIORITY_BYTES = 18


class StepPriorities:
    """The priorities of steps by slot, and their weights.

    Args:
        n_slots: Number of steps that fit.
        alpha: The weight of a step is its priority ^ alpha.

    Attributes:
        values: The priority of each step, shape (n_slots,).
        is_own: Whether it was set here and is not in the database yet, shape (n_slots,).
        alpha: See above.
        is_limited: Some steps may not be drawn: the buffer has limits, or a quarantine.
    """

    def __init__(self, n_slots: int, alpha: float) -> None:
        self.alpha, self.is_limited = alpha, False
        self.values, self.is_own = np.zeros(n_slots), np.zeros(n_slots, bool)
        self._tree, self._n_changes = WeightTree(n_slots), -1
        # The least positive priority of each block of slots, computed on first use.
        self._least: Reals | None = None
        self._touched: list[Integers] = []
        self._n_touched = 0

    def grow(self, n_slots: int) -> None:
        """Make room for more steps; copies everything."""
        n = len(self.values)
        values, is_own, tree = np.zeros(n_slots), np.zeros(n_slots, bool), WeightTree(n_slots)
        values[:n], is_own[:n], tree.weights[:n] = self.values, self.is_own, self._tree.weights
        self.values, self.is_own, self._tree = values, is_own, tree
        self._n_changes, self._least = -1, None

    def stage(self, slots: Integers, values: Reals) -> None:
        """Take the priorities of new steps, which no draw sees yet."""
        self.values[slots], self.is_own[slots] = values, False
        # Their sums follow once the steps may be drawn.
        self._tree.weights[slots] = 0.0

    def set(self, slots: Integers, values: Reals, is_drawable: Flags) -> None:
        """Set the priorities of steps.

        Args:
            slots: The steps, each once.
            values: Their priorities.
            is_drawable: True for slots that may be drawn, shape (n_slots,).
        """
        self.values[slots] = values
        weights = weights_of(values, self.alpha)
        self._tree.weights[slots] = np.where(is_drawable[slots], weights, 0.0)
        self._tree.add_up(slots)
        self._touch(slots)

    def weights(self, is_drawable: Flags, changed: ChangedSlots) -> WeightTree:
        """Return the weights of the steps that may be drawn; 0 of the others.

        Args:
            is_drawable: True for slots that may be drawn, shape (n_slots,).
            changed: Slots that have changed.
        """
        if self._n_changes != changed.n:
            slots = None if self._n_changes < 0 else changed.since(self._n_changes)
            self._weigh(np.arange(len(self.values)) if slots is None else slots, is_drawable)
            self._n_changes = changed.n
        return self._tree

    def _weigh(self, slots: Integers, is_drawable: Flags) -> None:
        weights = np.where(is_drawable[slots], self._tree.weights[slots], 0.0)
        # The others have their weights since their priorities were set.
        is_new = is_drawable[slots] & (weights == 0)
        weights[is_new] = weights_of(self.values[slots[is_new]], self.alpha)
        self._tree.weights[slots] = weights
        self._tree.add_up(slots)
        self._touch(slots)

    def least(self, flags: NDArray[np.uint8]) -> float:
        """Return the least positive priority of the whole buffer; infinity if there is none.

        Args:
            flags: The flags of all slots, as records have them.
        """
        values, block_flags = self.values.reshape(-1, BLOCK), flags.reshape(-1, BLOCK)
        if self._least is None:
            self._least, blocks = np.empty(len(values)), np.arange(len(values))
        else:
            blocks = np.unique(np.concatenate([np.zeros(0, np.int64), *self._touched]) // BLOCK)
        self._touched, self._n_touched = [], 0
        held = ((block_flags[blocks] & LIVE) != 0) & (values[blocks] > 0)
        self._least[blocks] = np.where(held, values[blocks], np.inf).min(axis=1)
        return float(self._least.min(initial=np.inf))

    def _touch(self, slots: Integers) -> None:
        if self._least is None:
            return
        self._touched.append(slots)
        self._n_touched += len(slots)
        if self._n_touched > len(self.values):
            self._least, self._touched, self._n_touched = None, [], 0
