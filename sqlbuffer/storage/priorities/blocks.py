"""The tables of priorities, their blocks, each for a range of numbers, and blocks to sum."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, Table, false

from sqlbuffer.storage.schema.metadata import buffer_key, metadata, overlay_table
from sqlbuffer.weighted_sampling import weights_of

priorities = overlay_table(
    "priorities",
    Column("priority", Double, nullable=False, comment="priority since the first update"),
    flag="has_priorities",
    leaves_late=True,
)

# Values of the rows from block * block_size on. A block has no row here before it is summarized,
# nor while its sum is unknown.
priority_blocks = Table(
    "priority_blocks",
    metadata,
    buffer_key(),
    Column("block", BigInteger, primary_key=True, autoincrement=False, comment="seq / block_size"),
    Column("n_rows", Integer, nullable=False, comment="rows"),
    Column("weight_sum", Double, nullable=False, comment="sum of priority ^ alpha"),
    Column("max_priority", Double, nullable=False, comment="upper bound of the priorities"),
    Column(
        "min_priority",
        Double,
        comment="lower bound of the positive priorities; null if none is positive",
    ),
    Column(
        "max_is_upper_bound",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="all priorities may be smaller than max_priority",
    ),
    Column(
        "min_is_lower_bound",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="all positive priorities may be larger than min_priority",
    ),
    sqlite_with_rowid=False,  # all of them are read for a batch: in half the time
)


# Rows that one transaction adds up: it delays updates of priorities by a few hundredths of a
# second.
ROWS_AT_ONCE = 16_384
# Numbers below the window that a transaction cleans: more than it summarizes, so that it catches
# up.
CLEANED_AT_ONCE = 65_536
# Seconds that a draw waits at most for a transaction that changes the buffer.
SUMMARIZE_TIMEOUT_S = 1


class Summary(NamedTuple):
    """The stored values of a block.

    Attributes:
        block: Its number: the number of each of its rows, divided by the size of a block.
        n_rows: Number of its rows.
        weight_sum: Sum of their weights.
        max_priority: Upper bound of their priorities.
        min_priority: Lower bound of their positive priorities; None if none is positive.
    """

    block: int
    n_rows: int
    weight_sum: float
    max_priority: float
    min_priority: float | None


def summary(block: int, values: NDArray[np.float64], alpha: float) -> Summary:
    """Return the values of a block of these priorities."""
    positive = values[values > 0]
    return Summary(
        block,
        len(values),
        float(weights_of(positive, alpha).sum()),
        float(positive.max(initial=0.0)),
        float(positive.min()) if len(positive) else None,
    )


class Kept(NamedTuple):
    """The stored values of several blocks, as arrays.

    Attributes:
        block: Their numbers, in ascending order.
        weight_sum: Sum of the weights of each block's rows.
        max_priority: Upper bound of the priorities.
        min_priority: Lower bound of the positive priorities; infinite if none is positive.
        max_is_upper_bound: All priorities may be smaller than the maximum.
        min_is_lower_bound: All priorities may be larger than the minimum.
    """

    block: NDArray[np.int64]
    weight_sum: NDArray[np.float64]
    max_priority: NDArray[np.float64]
    min_priority: NDArray[np.float64]
    max_is_upper_bound: NDArray[np.bool_]
    min_is_lower_bound: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> "Kept":
        """Return the values in rows of these columns."""
        types: tuple[Any, ...] = (np.int64, *(np.float64,) * 3, np.bool_, np.bool_)
        columns = zip(*rows, strict=True)
        return cls(*(np.array(column, type_) for column, type_ in zip(columns, types, strict=True)))


class Changes(NamedTuple):
    """The changes of several blocks by an update, as arrays.

    Attributes:
        block: Their numbers, in ascending order.
        difference: Difference of the sum of the weights.
        max_new: Largest new priority.
        max_old: Largest replaced priority.
        min_new: Smallest positive new priority; infinite without any.
        min_old: Smallest positive replaced priority; infinite without any.
    """

    block: NDArray[np.int64]
    difference: NDArray[np.float64]
    max_new: NDArray[np.float64]
    max_old: NDArray[np.float64]
    min_new: NDArray[np.float64]
    min_old: NDArray[np.float64]


class Blocks(NamedTuple):
    """Parameters of the blocks of a buffer.

    Attributes:
        buffer_id: The buffer.
        size: Number of row numbers in a block.
        alpha: Exponent: the weight of a row is its priority ^ alpha.
    """

    buffer_id: int
    size: int
    alpha: float

    @property
    def n_cleaned(self) -> int:
        """Maximum number of row numbers below the window that a transaction cleans."""
        return CLEANED_AT_ONCE + self.size

    def portions(self, blocks: Sequence[int]) -> Iterator[list[int]]:
        """Split blocks, each once and in order, into the portions of one transaction.

        There is at least one portion, which may be empty.
        """
        ordered = sorted({int(block) for block in blocks})
        n = max(1, ROWS_AT_ONCE // self.size)
        for start in range(0, max(len(ordered), 1), n):
            yield ordered[start : start + n]

    def changes(
        self, seqs: NDArray[np.int64], old: NDArray[np.float64], new: NDArray[np.float64]
    ) -> Changes:
        """Return the changes of blocks when rows, in ascending order, get new priorities."""
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
        """Return the new values of blocks, which must be among the changed ones."""
        places = np.searchsorted(changes.block, kept.block)
        _, difference, max_new, max_old, min_new, min_old = (part[places] for part in changes)
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
        """Return True for sums that have become so small that they are only rounding errors."""
        largest = weights_of(kept.max_priority, self.alpha)
        return kept.max_is_upper_bound & (4 * kept.weight_sum < largest)


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
