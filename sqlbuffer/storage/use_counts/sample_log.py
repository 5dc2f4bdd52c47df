"""The sample log: which rows each batch held (`track_samples`)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from sqlbuffer.storage.schema.server_clock import seconds_ago
from sqlbuffer.storage.use_counts.counted_buffer import CountedBuffer, write_for_sample
from sqlbuffer.storage.use_counts.tables import samples

SECONDS_BETWEEN_CLEANINGS = 60.0
REMOVED_AT_ONCE = 8_192


@dataclass(frozen=True)
class LogEntry:
    """What the log says of a batch in addition to its rows."""

    sampler: str
    seed: str | None = None


def log_read_batch(
    store: CountedBuffer, seqs: Sequence[int], clock: int | None, note: LogEntry
) -> int | None:
    """Log a batch that was read without a sampler, and return its number; None without a log."""
    if not store.info.track_samples or not seqs:
        return None
    return write_for_sample(
        store, lambda connection: log_batch(connection, store, seqs, clock, note)
    )


def log_batch(
    connection: Connection,
    store: CountedBuffer,
    seqs: Sequence[int],
    clock: int | None,
    note: LogEntry,
    probabilities: Sequence[float] | None = None,
) -> int:
    """Log a batch in the transaction that hands it out, and return its number."""
    values = {
        "buffer_id": store.info.id,
        "clock": clock,
        "sampler": note.sampler,
        "seed": note.seed,
        "n_rows": len(seqs),
        "seqs": list(seqs),
        "probabilities": probabilities,
    }
    keep = store.housekeeping
    now = time.monotonic()
    if keep.samples_cleaned_at is None or now - keep.samples_cleaned_at > SECONDS_BETWEEN_CLEANINGS:
        keep.samples_cleaned_at = now
        _forget_old(connection, store)
    made: Any = connection.execute(insert(samples).values(values)).inserted_primary_key
    return int(made[0])


def forget(store: CountedBuffer, number: int) -> None:
    """Delete a batch from the log: it was not handed out."""
    own = (samples.c.buffer_id == store.info.id) & (samples.c.id == number)
    write_for_sample(store, lambda connection: connection.execute(delete(samples).where(own)))


def _forget_old(connection: Connection, store: CountedBuffer) -> None:
    own = samples.c
    old = select(own.id).where(
        own.buffer_id == store.info.id, own.sampled_at < seconds_ago(store.info.keep_samples_s)
    )
    connection.execute(
        delete(samples).where(own.id.in_(old.order_by(own.sampled_at).limit(REMOVED_AT_ONCE)))
    )
