"""The log of sampled batches."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    Table,
    Text,
    delete,
    false,
    insert,
    select,
)

from sqlbuffer.errors import StorageReadOnlyError
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.schema.expressions import seconds_ago, utc_now
from sqlbuffer.storage.schema.metadata import KEY, REALS, SEQS, SERIAL, TIME, metadata

# A row for each sampled batch, if the buffer logs them.
samples = Table(
    "samples",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="number of the batch"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column("clock", BigInteger, comment="the learner's iteration or model version"),
    Column("sampler", Text, nullable=False, comment="name of the sampler"),
    Column("seed", Text, comment="its seed"),
    Column("n_rows", Integer, nullable=False, comment="rows of the batch"),
    Column("seqs", SEQS, nullable=False, comment="the rows, in the order of the batch"),
    Column("probabilities", REALS, comment="the probability of each, if it is known"),
    # A trigger sets them.
    Column("model_versions", SEQS, comment="the model version of each; null: none has one"),
    Column("sampled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    Column("consumer", KEY, comment="who leased the batch, where a name was given"),
    Column(
        "undone",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true after its consumer went back to an earlier checkpoint",
    ),
    # Numbers are unique, also after entries were deleted.
    sqlite_autoincrement=True,
)
Index(None, samples.c.buffer_id, samples.c.clock)
Index(None, samples.c.buffer_id, samples.c.sampled_at)

SECONDS_BETWEEN_CLEANINGS = 60.0
REMOVED_AT_ONCE = 8_192

T = TypeVar("T")


def write_for_sampling(buffer: OpenBuffer, work: Callable[[Connection], T]) -> T:
    """Return the result of work in a transaction that sampling needs.

    Raises:
        StorageReadOnlyError: The database or the role may not write; the message names the option.
    """
    try:
        return buffer.write(work)
    except StorageReadOnlyError as error:
        info = buffer.info
        setting = "max_use" if info.config.sampling.max_use is not None else "track_samples"
        raise StorageReadOnlyError(
            f"sampling from buffer {info.name!r} writes ({setting}): {error}"
        ) from error


class LogEntry(NamedTuple):
    """Further values of a batch in the log, in addition to its rows."""

    sampler: str
    seed: str | None = None
    consumer: str | None = None


class SampleLog:
    """The log of the batches drawn from a buffer.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer = buffer
        self._cleaned_at: float | None = None

    @property
    def is_on(self) -> bool:
        """True if the buffer logs batches."""
        return self.buffer.info.config.sampling.track_samples

    def add(
        self,
        connection: Connection,
        seqs: Sequence[int],
        clock: int | None,
        entry: LogEntry,
        probabilities: Sequence[float] | None = None,
        age_s: float = 0.0,
    ) -> int:
        """Log a batch in the transaction that returns it; return its number.

        A batch that was returned earlier is logged with its age.
        """
        values = {
            "buffer_id": self.buffer.info.id,
            "clock": clock,
            "sampler": entry.sampler,
            "seed": entry.seed,
            "n_rows": len(seqs),
            "seqs": list(seqs),
            "probabilities": probabilities,
            "consumer": entry.consumer,
            **({"sampled_at": seconds_ago(age_s)} if age_s else {}),
        }
        now = time.monotonic()
        if self._cleaned_at is None or now - self._cleaned_at > SECONDS_BETWEEN_CLEANINGS:
            self._cleaned_at = now
            self._forget_old(connection)
        made: Any = connection.execute(insert(samples).values(values)).inserted_primary_key
        return int(made[0])

    def add_read(self, seqs: Sequence[int], clock: int | None, entry: LogEntry) -> int | None:
        """Log a batch that was read without a sampler; return its number, or None without a log."""
        if not self.is_on or not seqs:
            return None
        return write_for_sampling(
            self.buffer, lambda connection: self.add(connection, seqs, clock, entry)
        )

    def forget(self, number: int) -> None:
        """Delete a batch from the log, because it was not returned."""
        is_batch = (samples.c.buffer_id == self.buffer.info.id) & (samples.c.id == number)
        write_for_sampling(
            self.buffer, lambda connection: connection.execute(delete(samples).where(is_batch))
        )

    def _forget_old(self, connection: Connection) -> None:
        sample = samples.c
        old_ids = select(sample.id).where(
            sample.buffer_id == self.buffer.info.id,
            sample.sampled_at < seconds_ago(self.buffer.info.config.sampling.keep_samples_s),
        )
        connection.execute(
            delete(samples).where(
                sample.id.in_(old_ids.order_by(sample.sampled_at).limit(REMOVED_AT_ONCE))
            )
        )


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
        log: The log.
        most_steps: Number of kept steps from which each batch is stored immediately.
    """

    def __init__(self, log: SampleLog, most_steps: int) -> None:
        self._log, self._most_steps = log, most_steps
        self._mutex, self._settling = threading.Lock(), threading.Lock()
        self._batches: list[PendingBatch] = []
        self._n_steps, self._has_stored = 0, False

    @property
    def is_on(self) -> bool:
        """True if the buffer logs batches."""
        return self._log.is_on

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
        batch = PendingBatch(seqs, clock, entry, probabilities, time.monotonic())
        if not self._has_stored:
            self._store([batch])
            return
        with self._mutex:
            self._batches.append(batch)
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
                self._n_steps -= sum(len(batch.seqs) for batch in batches)

    def _store(self, batches: Sequence[PendingBatch]) -> None:
        def work(connection: Connection) -> None:
            now = time.monotonic()
            for batch in batches:
                self._log.add(
                    connection, batch.seqs, batch.clock, batch.entry,
                    batch.probabilities, max(0.0, now - batch.drawn_at),
                )  # fmt: skip

        write_for_sampling(self._log.buffer, work)
        self._has_stored = True
