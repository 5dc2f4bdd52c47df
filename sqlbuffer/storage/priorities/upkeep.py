"""Which blocks of priorities to summarize: draws report what they had to read."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# So few blocks, with so few rows, are read row by row, at 2.5 us each: less than what adding up
# each as soon as it is full would cost in transactions. Blocks of large buffers are large: 16 of
# 8,192 rows would take a draw 0.3 s.
FEW_BLOCKS = 16
FEW_ROWS = 2_048
# A block whose bound may be too large is added up where it has that many times the candidates that
# its weights need,
WASTEFUL = 4
# and where such blocks together have this share of all candidates.
WASTED_SHARE = 0.5
MOST_AT_ONCE = 256
# After an attempt that did less than it should: writers under way, or no right to write.
PAUSE_S = 1.0

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Upkeep:
    """What is to be added up before the next draw.

    Attributes:
        is_known: A draw has said what is to be done.
        has_warned: It was logged that blocks do not serve.
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
        """Note what a draw found.

        Args:
            size: How many numbers a block has.
            blocks: All blocks of the window.
            is_missing: Which of them have no sum, and could have one.
            needs_resummary: The places of those whose bounds make for too many candidates.
        """
        self.is_known = True
        missing = blocks[is_missing]
        is_much = missing.size >= FEW_BLOCKS or missing.size * size >= FEW_ROWS
        due = missing.tolist() if is_much else []
        self._due = (*due, *blocks[needs_resummary].tolist())

    def run(self, summarize: Callable[[Sequence[int]], int]) -> None:
        """Add up what is due."""
        due, self._due = self._due, ()
        if due and time.monotonic() >= self._not_before and summarize(due) < len(due):
            self._not_before = time.monotonic() + PAUSE_S


def needs_resummary(size: int, sums: Reals, bounds: Reals, bounded: Integers) -> Integers:
    """Return the places of blocks to add up anew for their bounds, the worst first; none while what
    they waste matters little.

    Args:
        size: How many numbers a block has.
        sums: The sum of the weights of each block.
        bounds: The bounds of its weights.
        bounded: The places of those whose bound may be too large.
    """
    candidates = bounds[bounded] * size
    worst = bounded[candidates > WASTEFUL * sums[bounded]]
    total = float(bounds.sum()) * size
    if float(bounds[worst].sum()) * size <= WASTED_SHARE * total:
        return worst[:0]
    return worst[np.argsort(sums[worst] - bounds[worst] * size, kind="stable")][:MOST_AT_ONCE]
