"""Blocks of priorities: of all rows whose numbers lie in one, how many there are, the sum of their
weights, and bounds of their priorities.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# What one transaction adds up: it holds up whoever updates priorities for a few hundredths of a
# second.
ROWS_AT_ONCE = 16_384
# And how many numbers that have left the window it follows: more than it seals, so that it catches
# up.
CLEANED_AT_ONCE = 65_536
# A draw does not wait longer than that for whoever changes the buffer.
SEAL_TIMEOUT_S = 1


class Blocks(NamedTuple):
    """How the priorities of a buffer are kept.

    Attributes:
        buffer_id: The buffer.
        size: How many numbers a block has.
        alpha: The weight of a row is its priority ^ alpha.
    """

    buffer_id: int
    size: int
    alpha: float

    @property
    def n_cleaned(self) -> int:
        """How many numbers that have left the window a transaction follows at most."""
        return CLEANED_AT_ONCE + self.size

    def portions(self, blocks: Sequence[int]) -> Iterator[list[int]]:
        """Split blocks, each once and in order, into what one transaction adds up; at least one
        portion, which may be empty.
        """
        ordered = sorted({int(block) for block in blocks})
        n = max(1, ROWS_AT_ONCE // self.size)
        for start in range(0, max(len(ordered), 1), n):
            yield ordered[start : start + n]


class Summary(NamedTuple):
    """What is known of a block.

    Attributes:
        block: Its number: that of each of its rows, divided by the size of a block.
        n_rows: Its rows.
        weight_sum: Sum of their weights.
        max_priority: None is larger.
        min_priority: No positive one is smaller; None where none is positive.
    """

    block: int
    n_rows: int
    weight_sum: float
    max_priority: float
    min_priority: float | None


def weights(priorities: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return priority ^ alpha; a priority of 0 has the weight 0, whatever alpha is."""
    return np.where(priorities > 0, priorities**alpha, 0.0)


def summary(block: int, priorities: NDArray[np.float64], alpha: float) -> Summary:
    """Return what is known of a block of these priorities."""
    positive = priorities[priorities > 0]
    return Summary(
        block,
        len(priorities),
        float(weights(positive, alpha).sum()),
        float(positive.max(initial=0.0)),
        float(positive.min()) if len(positive) else None,
    )
