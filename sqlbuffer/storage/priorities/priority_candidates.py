"""The priorities of the candidates of one draw."""

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.storage.buffers.buffer_info import BufferInfo
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.priorities import priority_statements as statements
from sqlbuffer.storage.priorities.upkeep import Upkeep, needs_resummary
from sqlbuffer.storage.rows.row_selection import BUFFER_ID, LOW, SEQS
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.weighted_sampling import Weights, weights_of

logger = logging.getLogger("sqlbuffer")

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

# Rounding of max ^ alpha may differ from that of the weight of a row.
SLACK = 1 + 1e-12
LEAST_AT_ONCE = 16


class Priorities:
    """The priorities of the candidates.

    Attributes:
        alpha: The weight of a row is its priority ^ alpha.
        total: Sum of the weights that rows are drawn by; None if it is unknown.

    Args:
        candidates: The rows.
        info: The buffer.
        alpha: The exponent; None for the buffer's.
        upkeep: Records the blocks that were read row by row.
    """

    def __init__(
        self, candidates: Candidates, info: BufferInfo, alpha: float | None, upkeep: Upkeep
    ) -> None:
        self.alpha = info.config.priorities.alpha if alpha is None else alpha
        self.total: float | None = None
        self._candidates, self._info, self._upkeep = candidates, info, upkeep
        self._seen: list[tuple[Integers, Reals]] = []

    @property
    def has_blocks(self) -> bool:
        """True if sums of weights are stored; otherwise all are read, which is logged once."""
        if self.alpha == self._info.config.priorities.alpha:
            return True
        if not self._upkeep.has_warned:
            self._upkeep.has_warned = True
            logger.warning(
                "buffer %r is stored with alpha=%g and was opened with alpha=%g: each batch reads "
                "the priorities of all rows; open it without alpha, or make another buffer",
                self._info.name,
                self._info.config.priorities.alpha,
                self.alpha,
            )
        return False

    @cached_property
    def weights(self) -> Weights:
        """The weights of all rows, by blocks; those of blocks without a sum are read."""
        size, blocks = self._info.block_size, self._blocks
        sums, bounds, is_summarized = self._summaries
        is_filtered = self._candidates.is_filtered
        made = Weights(size, blocks, sums, bounds, self, is_filtered=is_filtered)
        made.read(np.flatnonzero(~is_summarized))
        if not self._candidates.has_condition:
            self.total = made.total
        return made

    def note_missing_summaries(self) -> None:
        """Record the blocks that are worth adding up, without reading rows."""
        _ = self._summaries

    @cached_property
    def _blocks(self) -> Integers:
        size, low, high = self._info.block_size, self._candidates.low, self._candidates.high
        return np.arange((low + 1) // size, high // size + 1 if high > low else 0)

    @cached_property
    def _summaries(self) -> tuple[Reals, Reals, NDArray[np.bool_]]:
        """The sum of the weights of each block, their bound, and which of the sums are known."""
        blocks, size, low = self._blocks, self._info.block_size, self._candidates.low
        sums, bounds = np.zeros(blocks.size), np.zeros(blocks.size)
        is_summarized = np.zeros(blocks.size, bool)
        if not blocks.size:
            return sums, bounds, is_summarized
        found, found_sums, tops = self._read_summaries(int(blocks[0]), int(blocks[-1]))
        at = found - blocks[0]
        sums[at], bounds[at] = found_sums, weights_of(np.abs(tops), self.alpha) * SLACK
        is_summarized[at] = True
        # Some rows of a block that the window cuts have left; a draw from a part of the window cuts
        # a block at its upper end as well.
        is_cut = np.maximum(blocks * size, 1) <= low
        is_full = (blocks + 1) * size - 1 <= self._candidates.high
        is_summarized &= ~is_cut & is_full
        worst = needs_resummary(size, sums, bounds, at[tops < 0])
        self._upkeep.note(size, blocks, is_full & ~is_cut & ~is_summarized, worst)
        return sums, bounds, is_summarized

    def _read_summaries(self, first: int, last: int) -> list[NDArray[Any]]:
        return statements.arrays(
            self._candidates.connection,
            statements.SUMMARIES,
            {BUFFER_ID: self._info.id, statements.FIRST: first, statements.LAST: last},
            (np.int64, np.float64, np.float64),
        )

    def rows_of(self, blocks: Integers) -> tuple[Integers, Reals]:
        """Return the numbers and weights of all rows of some blocks, matching or not."""
        parameters = {
            BUFFER_ID: self._info.id,
            statements.BLOCKS: blocks.tolist(),
            statements.SIZE: self._info.block_size,
            LOW: self._candidates.low,
            statements.HIGH: self._candidates.high,
        }
        seqs, priorities = self._arrays(statements.ROWS_OF_BLOCKS, parameters)
        order = np.argsort(seqs, kind="stable")
        seqs, priorities = seqs[order], priorities[order]
        self._seen.append((seqs, priorities))
        return seqs, weights_of(priorities, self.alpha)

    def weights_of(self, seqs: Integers) -> Reals:
        """Return the weights of numbers, each once and in order; 0 for rows that do not match."""
        low, high = self._candidates.low, self._candidates.high
        asked = seqs[(low < seqs) & (seqs <= high)]
        found, priorities = self._look_up(asked)
        weights = np.zeros(seqs.size)
        weights[np.searchsorted(seqs, found)] = weights_of(priorities, self.alpha)
        return weights

    def of(self, seqs: Sequence[int] | Integers) -> Reals:
        """Return the priorities of rows of the candidates."""
        wanted = np.asarray(seqs, np.int64)
        found = np.full(wanted.size, np.nan)
        self._fill(wanted, found)
        if np.isnan(found).any():
            self._look_up(np.unique(wanted[np.isnan(found)]))
            self._fill(wanted, found)
        return found

    def _fill(self, wanted: Integers, found: Reals) -> None:
        for seqs, priorities in self._seen:
            if not seqs.size:
                continue
            at = np.minimum(np.searchsorted(seqs, wanted), seqs.size - 1)
            is_there = seqs[at] == wanted
            found[is_there] = priorities[at[is_there]]

    def _look_up(self, seqs: Integers) -> tuple[Integers, Reals]:
        """Return the given numbers that match, in order, and their priorities."""
        if not seqs.size:
            return seqs, np.empty(0)
        parameters = {BUFFER_ID: self._info.id, SEQS: seqs.tolist()}
        found, priorities = self._arrays(self._of_numbers, parameters)
        order = np.argsort(found, kind="stable")
        found, priorities = found[order], priorities[order]
        self._seen.append((found, priorities))
        return found, priorities

    @cached_property
    def _of_numbers(self) -> Any:
        if not self._candidates.is_filtered:
            return statements.ROWS_OF_NUMBERS
        return statements.matching_numbers(self._candidates)

    def all(self, candidates: Candidates) -> tuple[Integers, Reals]:
        """Return every matching number, in order, and the priorities.

        Args:
            candidates: The rows, or episodes of them.
        """
        if candidates.picks_keys:
            keys = candidates.keys()
            return keys, self.of(keys)
        seqs, priorities = self._arrays(statements.initial(candidates), {})
        updated, values = self._arrays(
            statements.UPDATED, {BUFFER_ID: self._info.id, LOW: candidates.low}
        )
        if updated.size:
            at = np.minimum(np.searchsorted(updated, seqs), updated.size - 1)
            is_updated = updated[at] == seqs
            priorities[is_updated] = values[at[is_updated]]
        self._seen.append((seqs, priorities))
        return seqs, priorities

    def least(self) -> float:
        """Return the smallest positive priority of the whole buffer; infinity if none is positive.

        Rows that cannot be drawn count too. Blocks are read if their smallest priority may have
        changed and could be the smallest of all.
        """
        weights, n_seen = self.weights, 0
        least = self._least_seen()
        while True:
            found = self._least_blocks(weights, n_seen)
            unknown = [
                (place, priority, is_lower_bound)
                for place, priority, is_lower_bound in found
                if priority < least and not weights.has_read(place)
            ]
            least = min(
                (p for _, p, is_lower_bound in unknown if not is_lower_bound), default=least
            )
            bounded = [place for place, priority, is_lower_bound in unknown if is_lower_bound]
            if bounded:
                weights.read(np.array(bounded))
                least = min(least, self._least_seen())
            n_seen += len(found)
            if len(found) < LEAST_AT_ONCE or found[-1][1] >= least:
                return least

    def _least_seen(self) -> float:
        return min(
            (float(p.min(initial=np.inf, where=p > 0)) for _, p in self._seen), default=np.inf
        )

    def _least_blocks(self, weights: Weights, n_seen: int) -> list[tuple[int, float, bool]]:
        """Return the next blocks by their smallest positive priorities.

        Each has its place, that priority, and True if the priority may have changed.
        """
        if not weights.blocks.size:
            return []
        first, last = int(weights.blocks[0]), int(weights.blocks[-1])
        parameters = {
            BUFFER_ID: self._info.id,
            statements.FIRST: first,
            statements.LAST: last,
            statements.LIMIT: LEAST_AT_ONCE,
            statements.OFFSET: n_seen,
        }
        rows = fetch(self._candidates.connection, statements.LEAST, parameters)
        return [
            (block - first, priority, bool(is_lower_bound))
            for block, priority, is_lower_bound in rows
        ]

    def _arrays(self, statement: Any, parameters: dict[str, Any]) -> list[NDArray[Any]]:
        connection = self._candidates.connection
        return statements.arrays(connection, statement, parameters, (np.int64, np.float64))
