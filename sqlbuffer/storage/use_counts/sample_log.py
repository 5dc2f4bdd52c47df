"""The sample log: the rows of each batch (`track_samples`)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from sqlbuffer.storage.schema.server_clock import seconds_ago
from sqlbuffer.storage.use_counts.tables import samples
from sqlbuffer.storage.use_counts.use_counting import UseCounting

SECONDS_BETWEEN_CLEANINGS = 60.0
REMOVED_AT_ONCE = 8_192


@dataclass(frozen=True)
class LogEntry:
    """Further values of a batch in the log, in addition to its rows."""

    sampler: str
    seed: str | None = None


def log_read_batch(
    uses: UseCounting, seqs: Sequence[int], clock: int | None, note: LogEntry
) -> int | None:
    """Log a batch that was read without a sampler, and return its number; None without a log."""
    if not uses.buffer.info.config.sampling.track_samples or not seqs:
        return None
    return uses.write(lambda connection: log_batch(connection, uses, seqs, clock, note))


def log_batch(
    connection: Connection,
    uses: UseCounting,
    seqs: Sequence[int],
    clock: int | None,
    note: LogEntry,
    probabilities: Sequence[float] | None = None,
    age_s: float = 0.0,
) -> int:
    """Log a batch in the transaction that returns it; return its number.

    A batch that was returned earlier is logged with its age.
    """
    values = {
        "buffer_id": uses.buffer.info.id,
        "clock": clock,
        "sampler": note.sampler,
        "seed": note.seed,
        "n_rows": len(seqs),
        "seqs": list(seqs),
        "probabilities": probabilities,
        **({"sampled_at": seconds_ago(age_s)} if age_s else {}),
    }
    keep = uses.housekeeping
    now = time.monotonic()
    if keep.samples_cleaned_at is None or now - keep.samples_cleaned_at > SECONDS_BETWEEN_CLEANINGS:
        keep.samples_cleaned_at = now
        _forget_old(connection, uses)
    made: Any = connection.execute(insert(samples).values(values)).inserted_primary_key
    return int(made[0])


def forget(uses: UseCounting, number: int) -> None:
    """Delete a batch from the log, because it was not returned."""
    own = (samples.c.buffer_id == uses.buffer.info.id) & (samples.c.id == number)
    uses.write(lambda connection: connection.execute(delete(samples).where(own)))


def _forget_old(connection: Connection, uses: UseCounting) -> None:
    own = samples.c
    old = select(own.id).where(
        own.buffer_id == uses.buffer.info.id,
        own.sampled_at < seconds_ago(uses.buffer.info.config.sampling.keep_samples_s),
    )
    connection.execute(
        delete(samples).where(own.id.in_(old.order_by(own.sampled_at).limit(REMOVED_AT_ONCE)))
    )
