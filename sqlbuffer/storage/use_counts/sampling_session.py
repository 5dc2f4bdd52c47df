"""The draw of one batch: limited, counted and logged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from sqlbuffer.storage.flow.pacing import Pacer
from sqlbuffer.storage.use_counts.sample_log import LogEntry, forget, log_batch
from sqlbuffer.storage.use_counts.use_counting import UseCounting


class SamplingSession:
    """The draw of one batch.

    Attributes:
        n_rows: Number of returned rows; set it before the session ends.
        batch_id: The number of the batch in the sample log, if it is logged.
    """

    def __init__(self, uses: UseCounting) -> None:
        self._uses = uses
        self.n_rows = 0
        self.batch_id: int | None = None

    def log(
        self, connection: Connection, seqs: Sequence[int], clock: int | None, entry: LogEntry
    ) -> None:
        """Log rows in the transaction that returns them, if the buffer logs batches."""
        if self._uses.buffer.info.config.sampling.track_samples:
            self.batch_id = log_batch(connection, self._uses, seqs, clock, entry)


class SamplingSessions:
    """Opens the sampling sessions of a buffer.

    Args:
        uses: Counts and logs drawn rows.
        pacer: The buffer's rate limiter.
    """

    def __init__(self, uses: UseCounting, pacer: Pacer) -> None:
        self.uses, self._pacer = uses, pacer

    @contextmanager
    def open(self, n: int, wait_s: float | None = None) -> Iterator[SamplingSession]:
        """Wait until n rows may be sampled, and count those that are returned.

        Args:
            n: Number of rows.
            wait_s: Maximum wait in seconds; None for the opener's.

        Raises:
            FlowControlError: The rate limiter did not allow the rows in time.
        """
        with self._pacer.sampling(n, wait_s) as drawn:
            session = SamplingSession(self.uses)
            yield session
            drawn(session.n_rows)

    def undo(self, n_rows: int, batch_id: int | None) -> None:
        """Undo the counts and the log entry of a batch that is not returned."""
        self._pacer.give_back(n_rows)
        if batch_id is not None:
            forget(self.uses, batch_id)
