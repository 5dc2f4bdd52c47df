"""Set the priorities of rows, and summarize them by block."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count

from sqlbuffer.errors import StorageBusyError, StorageFullError, StorageReadOnlyError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer, retry_on_disconnect
from sqlbuffer.storage.buffers.window import clean_after_write
from sqlbuffer.storage.buffers.writes import commits_of
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import is_joined, joined_connection
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.priorities import postgresql, sqlite
from sqlbuffer.storage.priorities.blocks import Blocks, Upkeep
from sqlbuffer.storage.priorities.candidates import Priorities
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.sampling.candidates import Candidates

update_priorities = by_database(
    sqlite=sqlite.update_priorities, postgresql=postgresql.update_priorities
)
summarize = by_database(sqlite=sqlite.summarize, postgresql=postgresql.summarize)


# Number of updates of priorities after which rows below the window are cleaned.
UPDATES_A_CLEANING = 64


class PriorityKeeping:
    """Sets the priorities of rows, and adds them up.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer = buffer
        self.upkeep = Upkeep()
        self._updates, self._is_due = count(1), False

    def of(self, candidates: Candidates) -> Priorities:
        """Return the priorities of the candidates."""
        return Priorities(candidates, self.buffer.info, self.buffer.options.alpha, self.upkeep)

    def update_priorities(
        self, seqs: Sequence[int], priorities: Sequence[float], origin: str | None = None
    ) -> int:
        """Set the priorities of rows; return how many exist.

        Args:
            seqs: The rows, each once, in ascending order.
            priorities: Their priorities.
            origin: Origin of the entry in the change log, for a follower that knows these
                priorities already; None for this opener.
        """
        if not seqs:
            return 0
        n_updated = self._update_priorities(seqs, priorities, origin or self.buffer.origin)
        if origin is None:
            commits_of(self.buffer.url, self.buffer.info.id).n += 1
        self.note_updates(n_updated)
        return n_updated

    def note_updates(self, n_updated: int) -> None:
        """Count updated priorities, and clean up after them from time to time."""
        clean_after_write(self.buffer.engine, n_updated)
        if next(self._updates) % UPDATES_A_CLEANING == 0:
            self._is_due = True  # draws without blocks leave rows behind as well
        if not is_joined():
            self._clean()

    def _clean(self) -> None:
        if self._is_due:
            self._is_due = False
            self.summarize(())

    def clean(self) -> None:
        """Do what a transaction left to be done afterwards: add up the blocks that its draws had to
        read row by row, and delete priorities of rows that have left.
        """
        self._clean()
        self.upkeep.run(self.summarize)

    @retry_on_disconnect
    def _update_priorities(
        self, seqs: Sequence[int], priorities: Sequence[float], origin: str
    ) -> int:
        own, engine = joined_connection(self.buffer.engine), self.buffer.engine
        # No write that must take effect once: the same priorities may be set again.
        begun = writing(engine, self.buffer.options.durability) if own is None else nullcontext(own)
        with translated(self.buffer.url), begun as connection:
            return update_priorities(connection, self.blocks, seqs, priorities, origin)

    def summarize(self, blocks: Sequence[int]) -> int:
        """Add up blocks of priorities, and delete rows of priorities below the window.

        Draws then need not read the rows of these blocks. Return how many were added up. Blocks
        that may still get rows are left out, and those that the window cuts: block * size, and 1
        for the first, must be above its lower end. Nothing happens if the role cannot write, or
        would wait for long.

        Args:
            blocks: Their numbers; may be empty.
        """
        n_summarized = 0
        if not self.buffer.info.config.priorities.enabled:
            return n_summarized
        try:
            settled = self.buffer.settled()
            for portion in self.blocks.portions(blocks):
                n_summarized += self._summarize(portion, settled)
        except (StorageReadOnlyError, StorageBusyError, StorageFullError):
            pass  # draws work without them
        return n_summarized

    def summarize_due(self, source: CandidateSource) -> None:
        """Add up blocks of priorities if draws would have to read many of them row by row.

        Called before a draw by priority.
        """
        if is_joined():
            return
        if not self.upkeep.is_known and self.buffer.info.config.priorities.enabled:
            self._note_missing_summaries(source)
        self.upkeep.run(self.summarize)

    @retry_on_disconnect
    def _note_missing_summaries(self, source: CandidateSource) -> None:
        with source.candidates(EVERYTHING) as candidates:
            candidates.priorities.note_missing_summaries()

    @property
    def alpha(self) -> float:
        """The exponent of draws by priority."""
        return (
            self.buffer.info.config.priorities.alpha
            if self.buffer.options.alpha is None
            else self.buffer.options.alpha
        )

    @retry_on_disconnect
    def _summarize(self, blocks: Sequence[int], settled: int) -> int:
        with (
            translated(self.buffer.url),
            # Sums that are lost in a crash of the server are computed again.
            writing(self.buffer.engine, "relaxed") as connection,
        ):
            return summarize(connection, self.blocks, blocks, settled)

    @property
    def blocks(self) -> Blocks:
        """The parameters of the blocks."""
        info = self.buffer.info
        return Blocks(info.id, info.block_size, info.config.priorities.alpha)
