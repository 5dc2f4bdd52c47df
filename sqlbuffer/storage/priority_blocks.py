"""Blocks of priorities: of all rows whose numbers lie in one, how many there are, the sum of their
weights, and bounds of their priorities.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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


def weights(priorities: Any, alpha: float) -> NDArray[np.float64]:
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


class Block(NamedTuple):
    """What is kept of a block.

    Attributes:
        block: Its number.
        weight_sum: Sum of the weights of its rows.
        max_priority: None is larger.
        min_priority: No positive one is smaller; None where none is positive.
        max_is_loose: All may be smaller.
        min_is_loose: All may be larger.
    """

    block: int
    weight_sum: float
    max_priority: float
    min_priority: float | None
    max_is_loose: bool
    min_is_loose: bool


class Change(NamedTuple):
    """What an update does to a block.

    Attributes:
        block: Its number.
        difference: Of the sum of the weights.
        max_new: The largest priority that is set.
        max_old: The largest that it is set instead of.
        min_new: The smallest positive one that is set; infinite without any.
        min_old: The smallest positive one that it is set instead of; infinite without any.
    """

    block: int
    difference: float
    max_new: float
    max_old: float
    min_new: float
    min_old: float


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

    def changes(
        self, seqs: NDArray[np.int64], old: NDArray[np.float64], new: NDArray[np.float64]
    ) -> list[Change]:
        """Return what it does to their blocks that rows, in ascending order, get new priorities."""
        blocks, starts = np.unique(seqs // self.size, return_index=True)
        difference = weights(new, self.alpha) - weights(old, self.alpha)
        parts = [
            np.add.reduceat(difference, starts),
            np.maximum.reduceat(new, starts),
            np.maximum.reduceat(old, starts),
            np.minimum.reduceat(np.where(new > 0, new, np.inf), starts),
            np.minimum.reduceat(np.where(old > 0, old, np.inf), starts),
        ]
        columns = [blocks.tolist(), *(part.tolist() for part in parts)]
        return [Change(*row) for row in zip(*columns, strict=True)]

    def changed(self, block: Block, change: Change) -> Block:
        """Return what is known of a block after a change, without reading its rows."""
        least = np.inf if block.min_priority is None else block.min_priority
        max_is_loose = block.max_is_loose or change.max_old >= block.max_priority
        min_is_loose = block.min_is_loose or change.min_old <= least
        smallest = min(least, change.min_new)
        return Block(
            block.block,
            max(block.weight_sum + change.difference, 0.0),
            max(block.max_priority, change.max_new),
            None if smallest == np.inf else smallest,
            change.max_new < block.max_priority and max_is_loose,
            change.min_new > least and min_is_loose,
        )

    def is_lost(self, block: Block) -> bool:
        """Tell whether the sum of a block has become so small that it is what rounding left of
        larger ones.
        """
        largest = float(weights(block.max_priority, self.alpha))
        return block.max_is_loose and 4 * block.weight_sum < largest
