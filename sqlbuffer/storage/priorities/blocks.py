"""Blocks of priorities: of all rows whose numbers lie in one, how many there are, the sum of their
weights, and bounds of their priorities.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.weighted_sampling.block_weights import weights_of

# What one transaction adds up: it holds up whoever updates priorities for a few hundredths of a
# second.
ROWS_AT_ONCE = 16_384
# And how many numbers that have left the window it follows: more than it
# summarizes, so that it catches up.
CLEANED_AT_ONCE = 65_536
# A draw does not wait longer than that for whoever changes the buffer.
SUMMARIZE_TIMEOUT_S = 1


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


def summary(block: int, priorities: NDArray[np.float64], alpha: float) -> Summary:
    """Return what is known of a block of these priorities."""
    positive = priorities[priorities > 0]
    return Summary(
        block,
        len(priorities),
        float(weights_of(positive, alpha).sum()),
        float(positive.max(initial=0.0)),
        float(positive.min()) if len(positive) else None,
    )


class Kept(NamedTuple):
    """What is kept of several blocks: an array of each.

    Attributes:
        block: Their numbers, in ascending order.
        weight_sum: Sum of the weights of its rows.
        max_priority: None is larger.
        min_priority: No positive one is smaller; infinite where none is positive.
        max_is_upper_bound: All may be smaller.
        min_is_lower_bound: All may be larger.
    """

    block: NDArray[np.int64]
    weight_sum: NDArray[np.float64]
    max_priority: NDArray[np.float64]
    min_priority: NDArray[np.float64]
    max_is_upper_bound: NDArray[np.bool_]
    min_is_lower_bound: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> "Kept":
        """Return what rows of these columns say."""
        types: tuple[Any, ...] = (np.int64, *(np.float64,) * 3, np.bool_, np.bool_)
        columns = zip(*rows, strict=True)
        return cls(*(np.array(column, type_) for column, type_ in zip(columns, types, strict=True)))


class Changes(NamedTuple):
    """What an update does to several blocks: an array of each.

    Attributes:
        block: Their numbers, in ascending order.
        difference: Of the sum of the weights.
        max_new: The largest priority that is set.
        max_old: The largest that it is set instead of.
        min_new: The smallest positive one that is set; infinite without any.
        min_old: The smallest positive one that it is set instead of; infinite without any.
    """

    block: NDArray[np.int64]
    difference: NDArray[np.float64]
    max_new: NDArray[np.float64]
    max_old: NDArray[np.float64]
    min_new: NDArray[np.float64]
    min_old: NDArray[np.float64]


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
    ) -> Changes:
        """Return what it does to their blocks that rows, in ascending order, get new priorities."""
        blocks, starts = np.unique(seqs // self.size, return_index=True)
        difference = weights_of(new, self.alpha) - weights_of(old, self.alpha)
        return Changes(
            blocks,
            np.add.reduceat(difference, starts),
            np.maximum.reduceat(new, starts),
            np.maximum.reduceat(old, starts),
            np.minimum.reduceat(np.where(new > 0, new, np.inf), starts),
            np.minimum.reduceat(np.where(old > 0, old, np.inf), starts),
        )

    def changed(self, kept: Kept, changes: Changes) -> Kept:
        """Return what is known of blocks, all of them among the changed ones, without reading their
        rows.
        """
        at = np.searchsorted(changes.block, kept.block)
        _, difference, max_new, max_old, min_new, min_old = (part[at] for part in changes)
        max_is_upper_bound = kept.max_is_upper_bound | (max_old >= kept.max_priority)
        min_is_lower_bound = kept.min_is_lower_bound | (min_old <= kept.min_priority)
        return Kept(
            kept.block,
            np.maximum(kept.weight_sum + difference, 0.0),
            np.maximum(kept.max_priority, max_new),
            np.minimum(kept.min_priority, min_new),
            (max_new < kept.max_priority) & max_is_upper_bound,
            (min_new > kept.min_priority) & min_is_lower_bound,
        )

    def are_lost(self, kept: Kept) -> NDArray[np.bool_]:
        """Tell which sums have become so small that they are what rounding left of larger ones."""
        largest = weights_of(kept.max_priority, self.alpha)
        return kept.max_is_upper_bound & (4 * kept.weight_sum < largest)
