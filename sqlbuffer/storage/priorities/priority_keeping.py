"""Set the priorities of rows, and summarize them by block."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlbuffer.errors import (
    StorageBusyError,
    StorageFullError,
    StorageReadOnlyError,
)
from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.open_buffer import retry_on_disconnect
from sqlbuffer.storage.buffers.settling import clean_after_write
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.priorities.blocks import Blocks
from sqlbuffer.storage.priorities.priority_candidates import Priorities
from sqlbuffer.storage.priorities.updates import summarize, update_priorities
from sqlbuffer.storage.priorities.upkeep import Upkeep
from sqlbuffer.storage.rows.row_selection import RowSelection
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.sampled_buffer import SampledBuffer

# How often updates of priorities follow what has left the window.
UPDATES_A_CLEANING = 64


class PriorityKeeping(SampledBuffer):
    """Sets the priorities of rows, and adds them up."""

    _updates: Iterator[int]
    _upkeep: Upkeep

    @contextmanager
    def candidates(
        self,
        node: Node,
        columns: RowSelection | Sequence[Any] | None = None,
        *,
        sampled: bool = False,
    ) -> Iterator[Candidates]:
        """Give the candidates their priorities; see `SampledBuffer.candidates`."""
        with super().candidates(node, columns, sampled=sampled) as found:
            if self.info.priorities:
                found.priorities = self.priorities_of(found)
            yield found

    def priorities_of(self, candidates: Candidates) -> Priorities:
        """Return the priorities of the candidates."""
        return Priorities(candidates, self.info, self.options.alpha, self._upkeep)

    def update_priorities(self, seqs: Sequence[int], priorities: Sequence[float]) -> int:
        """Set the priorities of rows, each given once, in ascending order; return how many there
        are.
        """
        if not seqs:
            return 0
        n_updated = self._update_priorities(seqs, priorities)
        self.note_updates(n_updated)
        return n_updated

    def note_updates(self, n_updated: int) -> None:
        """Look after what an update of so many priorities leaves behind."""
        clean_after_write(self.engine, n_updated)
        if next(self._updates) % UPDATES_A_CLEANING == 0:
            self.summarize(())  # whoever draws otherwise than by blocks leaves rows behind as well

    @retry_on_disconnect
    def _update_priorities(self, seqs: Sequence[int], priorities: Sequence[float]) -> int:
        with (
            translated(self.url),
            writing(self.engine, self.options.durability) as connection,
        ):
            return update_priorities(connection, self.blocks, seqs, priorities)

    def summarize(self, blocks: Sequence[int]) -> int:
        """Add up blocks of priorities, so that draws need not read their rows, and delete what is
        left of rows below the window; return how many were added up.

        Left out are blocks that rows can still come to, and those that the window cuts: block *
        size, and 1 for the first, is to be above its lower end. Who cannot write, or would wait for
        long, does nothing.

        Args:
            blocks: Their numbers; may be empty.
        """
        n_summarized = 0
        if not self.info.priorities:
            return n_summarized
        try:
            settled = self.settled()
            for portion in self.blocks.portions(blocks):
                n_summarized += self._summarize(portion, settled)
        except (StorageReadOnlyError, StorageBusyError, StorageFullError):
            pass  # draws do without
        return n_summarized

    def summarize_due(self) -> None:
        """Add up the blocks of priorities that draws would otherwise read row by row, where these
        are many; called before a draw by priority.
        """
        if not self._upkeep.is_known and self.info.priorities:
            self._note_missing_summaries()
        self._upkeep.run(self.summarize)

    @retry_on_disconnect
    def _note_missing_summaries(self) -> None:
        with self.candidates(EVERYTHING) as candidates:
            candidates.priorities.note_missing_summaries()

    @property
    def alpha(self) -> float:
        """The exponent that rows are drawn by."""
        return self.info.alpha if self.options.alpha is None else self.options.alpha

    @retry_on_disconnect
    def _summarize(self, blocks: Sequence[int], settled: int) -> int:
        with (
            translated(self.url),
            # What is lost with a server is made again.
            writing(self.engine, "relaxed") as connection,
        ):
            return summarize(connection, self.blocks, blocks, settled)

    @property
    def blocks(self) -> Blocks:
        """How the priorities are kept."""
        return Blocks(self.info.id, self.info.block_size, self.info.alpha)
