"""Choose the blocks of priorities to summarize: draws report the blocks that they had to read."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# If there are only this many blocks with this few rows, they are read row by row, at 2.5 us each:
# less than the cost of a transaction for each full block. Blocks of large buffers are large: 16 of
# 8,192 rows would take a draw 0.3 s.
FEW_BLOCKS = 16
FEW_ROWS = 2_048
# A block whose bound may be too large is added up if it has this many times the candidates that its
# weights need,
WASTEFUL = 4
# and if such blocks together have this share of all candidates.
WASTED_SHARE = 0.5
MOST_AT_ONCE = 256
# Pause after an attempt that did too little, because of writers under way or a missing right to
# write.
PAUSE_S = 1.0

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Upkeep:
    """The blocks to add up before the next draw.

    Attributes:
        is_known: A draw has reported the blocks to add up.
        has_warned: A warning was logged that blocks cannot be used.
    """

    def __init__(self) -> None:
        self.is_known, self.has_warned = False, False
        self._due: tuple[int, ...] = ()
        self._not_before = 0.0

    def note(
        self,
        size: int,
        blocks: Integers,
        is_missing: Flags,
        needs_resummary: Integers,
    ) -> None:
        """Record the blocks that a draw found.

        Args:
            size: Number of row numbers in a block.
            blocks: All blocks of the window.
            is_missing: True for blocks that have no sum, and could have one.
            needs_resummary: Places of blocks whose bounds cause too many candidates.
        """
        self.is_known = True
        missing = blocks[is_missing]
        is_much = missing.size >= FEW_BLOCKS or missing.size * size >= FEW_ROWS
        due = missing.tolist() if is_much else []
        self._due = (*due, *blocks[needs_resummary].tolist())

    def run(self, summarize: Callable[[Sequence[int]], int]) -> None:
        """Add up the recorded blocks."""
        due, self._due = self._due, ()
        if due and time.monotonic() >= self._not_before and summarize(due) < len(due):
            self._not_before = time.monotonic() + PAUSE_S


def needs_resummary(size: int, sums: Reals, bounds: Reals, bounded: Integers) -> Integers:
    """Return the places of blocks to add up again for their bounds, the worst first.

    Return none while they cause few extra candidates.

    Args:
        size: Number of row numbers in a block.
        sums: The sum of the weights of each block.
        bounds: The bounds of its weights.
        bounded: Places of blocks whose bound may be too large.
    """
    candidates = bounds[bounded] * size
    worst = bounded[candidates > WASTEFUL * sums[bounded]]
    total = float(bounds.sum()) * size
    if float(bounds[worst].sum()) * size <= WASTED_SHARE * total:
        return worst[:0]
    return worst[np.argsort(sums[worst] - bounds[worst] * size, kind="stable")][:MOST_AT_ONCE]
