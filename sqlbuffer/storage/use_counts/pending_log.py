"""Returned batches that are not in the sample log yet."""

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from sqlbuffer.storage.use_counts.sample_log import LogEntry, log_batch
from sqlbuffer.storage.use_counts.use_counting import UseCounting


class PendingBatch(NamedTuple):
    """A batch that was returned.

    Attributes:
        seqs: Its steps.
        clock: The buffer's clock when it was drawn.
        entry: Further values of its log entry.
        probabilities: Probability of each step, if the sampler gives it.
        drawn_at: Time of the draw, on the monotonic clock.
    """

    seqs: Sequence[int]
    clock: int | None
    entry: LogEntry
    probabilities: Sequence[float] | None
    drawn_at: float


class PendingLog:
    """Keeps batches for the sample log, and stores many of them at a time, each once.

    Args:
        uses: Logs drawn rows.
        most_steps: Number of kept steps from which each batch is stored immediately.
    """

    def __init__(self, uses: UseCounting, most_steps: int) -> None:
        self._uses, self._most_steps = uses, most_steps
        self._mutex, self._settling = threading.Lock(), threading.Lock()
        self._batches: list[PendingBatch] = []
        self._n_steps, self._has_stored = 0, False

    @property
    def is_on(self) -> bool:
        """True if the buffer logs batches."""
        return self._uses.buffer.info.config.sampling.track_samples

    def add(
        self,
        seqs: Sequence[int],
        clock: int | None,
        entry: LogEntry,
        probabilities: Sequence[float] | None,
    ) -> None:
        """Keep a batch until `settle`.

        The first one is stored immediately, to check that this role may write.

        Raises:
            StorageError: The first batch, or too many waiting ones, cannot be stored; this one is
                not kept.
        """
        if not seqs:
            return
        if self._n_steps + len(seqs) > self._most_steps:
            self.settle()
        own = PendingBatch(seqs, clock, entry, probabilities, time.monotonic())
        if not self._has_stored:
            self._store([own])
            return
        with self._mutex:
            self._batches.append(own)
            self._n_steps += len(seqs)

    def settle(self) -> None:
        """Store the batches, in the order in which they were drawn, all or none.

        Raises:
            StorageError: They cannot be stored, and still wait.
        """
        with self._settling:
            batches = self._batches[:]
            if not batches:
                return

            self._store(batches)
            with self._mutex:
                del self._batches[: len(batches)]
                self._n_steps -= sum(len(each.seqs) for each in batches)

    def _store(self, batches: Sequence[PendingBatch]) -> None:
        def work(connection: Connection) -> None:
            now = time.monotonic()
            for each in batches:
                log_batch(
                    connection, self._uses, each.seqs, each.clock, each.entry, each.probabilities,
                    max(0.0, now - each.drawn_at),
                )  # fmt: skip

        self._uses.write(work)
        self._has_stored = True
