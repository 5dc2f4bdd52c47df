"""Counts of the uses of rows, and the log of batches.

If rows have a limit of uses, a batch is drawn in two transactions: one chooses and reads, the other
counts. Rows that another learner took in between are dropped, and others are drawn. So no row is
used more often than its limit, and no process waits while a batch is chosen. If a learner dies
after the second transaction, its rows count as used.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
)

from sqlbuffer.errors import StorageReadOnlyError
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.window import clean_after_write
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.database.wal import checkpoint_rarely
from sqlbuffer.storage.dialects import by_database, number_array
from sqlbuffer.storage.eligibility import uses
from sqlbuffer.storage.flow import Pacer
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.sampling.candidate_source import Restrictions
from sqlbuffer.storage.schema.expressions import seconds_ago, utc_now
from sqlbuffer.storage.schema.metadata import REALS, SEQS, SERIAL, TIME, delete_range, metadata

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
    Column("sampled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    # Numbers are unique, also after entries were deleted.
    sqlite_autoincrement=True,
)
Index(None, samples.c.buffer_id, samples.c.clock)
Index(None, samples.c.buffer_id, samples.c.sampled_at)


def _sqlite_claim_uses(
    connection: Connection, buffer_id: int, seqs: Sequence[int], max_use: int
) -> set[int]:
    """Count a use of each of different rows that has fewer than `max_use`; return these rows."""
    statement = (
        "INSERT INTO uses (buffer_id, seq, n_uses) "
        "SELECT ?, value, 1 FROM json_each(?) WHERE true "
        "ON CONFLICT (buffer_id, seq) DO UPDATE SET n_uses = n_uses + 1 "
        "WHERE uses.n_uses < ? RETURNING seq"
    )
    checkpoint_rarely(connection)
    values = (buffer_id, json.dumps(list(seqs)), max_use)
    return {seq for (seq,) in driver_of(connection).execute(statement, values).fetchall()}


def _sqlite_return_uses(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    """Undo a use of each of different rows."""
    connection.exec_driver_sql(
        "UPDATE uses SET n_uses = n_uses - 1 WHERE buffer_id = ? AND n_uses > 0 "
        "AND seq IN (SELECT value FROM json_each(?))",
        (buffer_id, json.dumps(list(seqs))),
    )


def _sqlite_add_uses(
    connection: Connection, buffer_id: int, counts: Mapping[int, int]
) -> dict[int, int]:
    """Add uses to rows, {seq: uses}; return the current uses of each row."""
    statement = (
        "INSERT INTO uses (buffer_id, seq, n_uses) "
        "SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?) "
        "WHERE true ON CONFLICT (buffer_id, seq) DO UPDATE "
        "SET n_uses = n_uses + excluded.n_uses RETURNING seq, n_uses"
    )
    values = (buffer_id, json.dumps(sorted(counts.items())))
    return dict(driver_of(connection).execute(statement, values).fetchall())


def _sqlite_uses_of(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> dict[int, int]:
    """Return the uses of the given rows that have any."""
    statement = (
        "SELECT u.seq, u.n_uses FROM json_each(?) j "
        "CROSS JOIN uses u ON u.buffer_id = ? AND u.seq = j.value"
    )
    values = (json.dumps(list(seqs)), buffer_id)
    return dict(driver_of(connection).execute(statement, values).fetchall())


def _postgresql_claim_uses(
    connection: Connection, buffer_id: int, seqs: Sequence[int], max_use: int
) -> set[int]:
    """Count a use of each of different rows that has fewer than `max_use`; return these rows."""
    # Mostly all rows are counted, and then the server sends no list.
    statement = (
        "WITH claimed AS (INSERT INTO uses (buffer_id, seq, n_uses) "
        "SELECT %s::integer, s, 1 FROM unnest(%s::bigint[]) AS s "
        "ON CONFLICT (buffer_id, seq) DO UPDATE SET n_uses = uses.n_uses + 1 "
        "WHERE uses.n_uses < %s::integer RETURNING seq) "
        "SELECT CASE WHEN count(*) < %s::bigint THEN coalesce(array_agg(seq), '{}') END "
        "FROM claimed"
    )
    values = (buffer_id, number_array(seqs), max_use, len(seqs))
    ((claimed_seqs,),) = driver_of(connection).execute(statement, values)
    return set(seqs if claimed_seqs is None else claimed_seqs)


def _postgresql_return_uses(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    # Locked in ascending order, as by claims.
    statement = (
        "WITH held AS MATERIALIZED (SELECT buffer_id, seq FROM uses WHERE buffer_id = %s "
        "AND seq = ANY (%s::bigint[]) ORDER BY seq FOR UPDATE) "
        "UPDATE uses u SET n_uses = u.n_uses - 1 FROM held "
        "WHERE u.buffer_id = held.buffer_id AND u.seq = held.seq AND u.n_uses > 0"
    )
    driver_of(connection).execute(statement, (buffer_id, number_array(seqs)))


def _postgresql_add_uses(
    connection: Connection, buffer_id: int, counts: Mapping[int, int]
) -> dict[int, int]:
    statement = (
        "INSERT INTO uses (buffer_id, seq, n_uses) SELECT %s::integer, s, n "
        "FROM unnest(%s::bigint[], %s::integer[]) AS g(s, n) ORDER BY s "
        "ON CONFLICT (buffer_id, seq) DO UPDATE SET n_uses = uses.n_uses + excluded.n_uses "
        "RETURNING seq, n_uses"
    )
    values = (buffer_id, number_array(counts.keys()), number_array(counts.values()))
    return dict(driver_of(connection).execute(statement, values))


def _postgresql_uses_of(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> dict[int, int]:
    statement = (
        "SELECT u.seq, u.n_uses FROM unnest(%s::bigint[]) AS g(seq) CROSS JOIN LATERAL "
        "(SELECT * FROM uses u WHERE u.buffer_id = %s AND u.seq = g.seq OFFSET 0) u"
    )
    return dict(driver_of(connection).execute(statement, (number_array(seqs), buffer_id)))


claim_uses = by_database(sqlite=_sqlite_claim_uses, postgresql=_postgresql_claim_uses)
return_uses = by_database(sqlite=_sqlite_return_uses, postgresql=_postgresql_return_uses)
add_uses = by_database(sqlite=_sqlite_add_uses, postgresql=_postgresql_add_uses)
uses_of = by_database(sqlite=_sqlite_uses_of, postgresql=_postgresql_uses_of)

# Counts below the window are deleted when it has moved by this many numbers.
CLEANED_AT_ONCE = 8_192


def is_cleaning_due(cleaned_to: int, low: int) -> bool:
    """Return True if there may be many counts between two numbers."""
    return low >= cleaned_to + CLEANED_AT_ONCE


def clean_uses(connection: Connection, buffer_id: int, cleaned_to: int, low: int) -> int:
    """Delete the use counts of rows that have left the window; return the number up to which.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        cleaned_to: Number up to which none was left at the last call.
        low: Number up to which rows have left.
    """
    use = uses.c
    # Starts below the cleaned numbers: a slow learner may have counted there since.
    above = cleaned_to - CLEANED_AT_ONCE
    gone = (use.buffer_id == buffer_id) & (use.seq > above) & (use.seq <= low)
    some = select(use.seq).where(gone).order_by(use.seq).limit(4 * CLEANED_AT_ONCE).subquery()
    n, last = connection.execute(select(func.count(), func.max(some.c.seq))).one()
    if n:
        delete_range(connection, uses, buffer_id, above, last)
    return int(last) if n == 4 * CLEANED_AT_ONCE else low


T = TypeVar("T")


@dataclass
class Housekeeping:
    """The last clean-up by this process.

    Attributes:
        cleaned_to: Number up to which no use counts are left.
        counted_to: Newest row whose uses were counted when that was looked at last.
        samples_cleaned_at: Time of the last clean-up of the sample log, on the monotonic clock.
    """

    cleaned_to: int = 0
    counted_to: int = 0
    samples_cleaned_at: float | None = None


class UseCounting:
    """Counts and logs the rows drawn from a buffer.

    Args:
        buffer: The buffer.
        restrictions: Requirements that rows must meet before they may be sampled.

    Attributes:
        housekeeping: The last clean-up by this process.
    """

    def __init__(self, buffer: OpenBuffer, restrictions: Restrictions) -> None:
        self.buffer, self.restrictions = buffer, restrictions
        self.housekeeping = Housekeeping()

    @property
    def is_on(self) -> bool:
        """True if sampling writes to the database."""
        sampling = self.buffer.info.config.sampling
        return sampling.max_use is not None or sampling.track_samples

    def add(self, seqs: Sequence[int]) -> list[int]:
        """Count a use of each row; return how often each was used, with this use."""
        counts, buffer_id = Counter(seqs), self.buffer.info.id

        def work(connection: Connection) -> dict[int, int]:
            total = add_uses(connection, buffer_id, counts) if counts else {}
            self._clean(connection, max(counts, default=0))
            return total

        total = self.buffer.write(work)
        counts_so_far = {seq: total[seq] - n for seq, n in counts.items()}
        n_uses = []
        for seq in seqs:
            counts_so_far[seq] += 1
            n_uses.append(counts_so_far[seq])
        return n_uses

    def _clean(self, connection: Connection, newest: int) -> None:
        """Delete the counts of rows that have left the window, from time to time."""
        keep = self.housekeeping
        if not is_cleaning_due(keep.counted_to, newest):
            return
        keep.counted_to = newest
        low, buffer_id = self.buffer.window_in(connection).low, self.buffer.info.id
        hold_low = held_low(connection, buffer_id)
        end = low if hold_low is None else min(low, hold_low)
        if is_cleaning_due(keep.cleaned_to, end):
            keep.cleaned_to = clean_uses(connection, buffer_id, min(keep.cleaned_to, end), end)

    def of(self, seqs: Sequence[int]) -> list[int]:
        """Return how often each row was used."""

        def look(connection: Connection) -> dict[int, int]:
            return uses_of(connection, self.buffer.info.id, list(dict.fromkeys(seqs)))

        counts = self.buffer.read(look) if seqs else {}
        return [counts.get(seq, 0) for seq in seqs]

    def write(self, work: Callable[[Connection], T]) -> T:
        """Return the result of work in a transaction that sampling needs.

        Raises:
            StorageReadOnlyError: The database or the role may not write; the message names the
                option.
        """
        try:
            return self.buffer.write(work)
        except StorageReadOnlyError as error:
            info = self.buffer.info
            setting = "max_use" if info.config.sampling.max_use is not None else "track_samples"
            raise StorageReadOnlyError(
                f"sampling from buffer {info.name!r} writes ({setting}): {error}"
            ) from error


SECONDS_BETWEEN_CLEANINGS = 60.0
REMOVED_AT_ONCE = 8_192


@dataclass(frozen=True)
class LogEntry:
    """Further values of a batch in the log, in addition to its rows."""

    sampler: str
    seed: str | None = None


def log_read_batch(
    counting: UseCounting, seqs: Sequence[int], clock: int | None, note: LogEntry
) -> int | None:
    """Log a batch that was read without a sampler, and return its number; None without a log."""
    if not counting.buffer.info.config.sampling.track_samples or not seqs:
        return None
    return counting.write(lambda connection: log_batch(connection, counting, seqs, clock, note))


def log_batch(
    connection: Connection,
    counting: UseCounting,
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
        "buffer_id": counting.buffer.info.id,
        "clock": clock,
        "sampler": note.sampler,
        "seed": note.seed,
        "n_rows": len(seqs),
        "seqs": list(seqs),
        "probabilities": probabilities,
        **({"sampled_at": seconds_ago(age_s)} if age_s else {}),
    }
    keep = counting.housekeeping
    now = time.monotonic()
    if keep.samples_cleaned_at is None or now - keep.samples_cleaned_at > SECONDS_BETWEEN_CLEANINGS:
        keep.samples_cleaned_at = now
        _forget_old(connection, counting)
    made: Any = connection.execute(insert(samples).values(values)).inserted_primary_key
    return int(made[0])


def forget(counting: UseCounting, number: int) -> None:
    """Delete a batch from the log, because it was not returned."""
    is_batch = (samples.c.buffer_id == counting.buffer.info.id) & (samples.c.id == number)
    counting.write(lambda connection: connection.execute(delete(samples).where(is_batch)))


def _forget_old(connection: Connection, counting: UseCounting) -> None:
    sample = samples.c
    old_ids = select(sample.id).where(
        sample.buffer_id == counting.buffer.info.id,
        sample.sampled_at < seconds_ago(counting.buffer.info.config.sampling.keep_samples_s),
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
        counting: Logs drawn rows.
        most_steps: Number of kept steps from which each batch is stored immediately.
    """

    def __init__(self, counting: UseCounting, most_steps: int) -> None:
        self._counting, self._most_steps = counting, most_steps
        self._mutex, self._settling = threading.Lock(), threading.Lock()
        self._batches: list[PendingBatch] = []
        self._n_steps, self._has_stored = 0, False

    @property
    def is_on(self) -> bool:
        """True if the buffer logs batches."""
        return self._counting.buffer.info.config.sampling.track_samples

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
                log_batch(
                    connection, self._counting, batch.seqs, batch.clock, batch.entry,
                    batch.probabilities, max(0.0, now - batch.drawn_at),
                )  # fmt: skip

        self._counting.write(work)
        self._has_stored = True


class SamplingSession:
    """The draw of one batch.

    Attributes:
        n_rows: Number of returned rows; set it before the session ends.
        batch_id: The number of the batch in the sample log, if it is logged.
    """

    def __init__(self, counting: UseCounting) -> None:
        self._counting = counting
        self.n_rows = 0
        self.batch_id: int | None = None

    def log(
        self, connection: Connection, seqs: Sequence[int], clock: int | None, entry: LogEntry
    ) -> None:
        """Log rows in the transaction that returns them, if the buffer logs batches."""
        if self._counting.buffer.info.config.sampling.track_samples:
            self.batch_id = log_batch(connection, self._counting, seqs, clock, entry)


class SamplingSessions:
    """Opens the sampling sessions of a buffer.

    Args:
        counting: Counts and logs drawn rows.
        pacer: The buffer's rate limiter.
    """

    def __init__(self, counting: UseCounting, pacer: Pacer) -> None:
        self.uses, self._pacer = counting, pacer

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


MAX_ROUNDS = 20
# If too few rows are left, another learner may have given back rows that this process has passed.
# Not before this time: otherwise a process that waits for data would read all rows each time.
LOW_DOUBTED_AFTER_S = 1.0

Unit = Sequence[int]


@dataclass(frozen=True)
class DrawnItems(Generic[T]):
    """The result of a draw.

    Attributes:
        content: The drawn items.
        units: The rows that each item uses.
        clock: The buffer's clock at the draw.
        window_low: Lower end of the window at the draw.
        probabilities: Probability of each row, if the sampler gives it.
    """

    content: T
    units: Sequence[Unit]
    clock: int | None
    window_low: int
    probabilities: Sequence[float] | None = None


@dataclass(frozen=True)
class ClaimKind(Generic[T]):
    """Functions that count, split and join items of a kind.

    Attributes:
        units: Returns the rows that each item uses.
        take: Returns the items at some places.
        join: Makes one result of several parts.
        probabilities: Returns the probability of each row, if the sampler gives it.
    """

    units: Callable[[T], Sequence[Unit]]
    take: Callable[[T, Sequence[int]], T]
    join: Callable[[Sequence[T]], T]
    probabilities: Callable[[T], Sequence[float] | None]


@dataclass
class _Kept(Generic[T]):
    parts: list[T]
    units: list[Unit]
    probabilities: list[float] | None

    def add(self, drawn: DrawnItems[T], index: Sequence[int], kind: ClaimKind[T]) -> None:
        self.parts.append(kind.take(drawn.content, index))
        self.units += [drawn.units[i] for i in index]
        if drawn.probabilities is None or self.probabilities is None:
            self.probabilities = None
        else:
            self.probabilities += [drawn.probabilities[i] for i in index]


def claimed(
    counting: UseCounting,
    draw: Callable[[int, bool], DrawnItems[T]],
    n: int,
    kind: ClaimKind[T],
    note: LogEntry,
    *,
    least: int = 0,
    adds_up: bool = False,
) -> tuple[T, int | None]:
    """Return up to n items whose rows are below their limit of uses, and their log number.

    Their uses are counted.

    Args:
        counting: Counts the uses.
        draw: Function called with the number of missing items, and True for the first draw.
        n: Number of items.
        kind: Kind of the items.
        note: Entry of the log.
        least: Smallest number of items that is counted and logged.
        adds_up: An item drawn twice is used twice, so each round may draw any item. Otherwise each
            round draws all items again, without those kept before.

    Raises:
        StorageReadOnlyError: The database or the role may not write.
    """
    kept: _Kept[T] = _Kept([], [], [])
    for n_round in range(MAX_ROUNDS):
        missing = n - len(kept.units)
        asked = missing if adds_up else n
        drawn = draw(asked, n_round == 0)
        if len(drawn.units) < asked and counting.restrictions.eligible_low.forget(
            LOW_DOUBTED_AFTER_S
        ):
            drawn = draw(asked, n_round == 0)
        had = set() if adds_up else set(map(tuple, kept.units))
        index = [i for i, unit in enumerate(drawn.units) if tuple(unit) not in had][:missing]
        if not index or len(kept.units) + len(index) < least:
            break
        n_won, number = _claim(counting, drawn, index, kept, kind, note)
        if n_won == len(index):
            _clean(counting, drawn)
            return _joined(kept, kind), number
    else:
        index = []
    return _fewer(counting, drawn, index, kept, kind, note, least)


def _fewer(
    counting: UseCounting,
    drawn: DrawnItems[T],
    index: Sequence[int],
    kept: _Kept[T],
    kind: ClaimKind[T],
    note: LogEntry,
    least: int,
) -> tuple[T, int | None]:
    """Return the items if too few are left; below `least` they are not counted."""
    if len(kept.units) < least:
        give_back(counting, kept.units)
        kept.add(drawn, index, kind)
        return _joined(kept, kind), None
    if not kept.parts:
        return kind.take(drawn.content, []), None
    number = None
    if counting.buffer.info.config.sampling.track_samples:
        number = counting.write(lambda connection: _log(connection, counting, drawn, kept, note))
    return _joined(kept, kind), number


def _claim(
    counting: UseCounting,
    drawn: DrawnItems[T],
    index: Sequence[int],
    kept: _Kept[T],
    kind: ClaimKind[T],
    note: LogEntry,
) -> tuple[int, int | None]:
    """Count the uses of items below the limit; return how many, and the number of the batch."""
    units = [drawn.units[i] for i in index]

    def work(connection: Connection) -> tuple[_Kept[T], int, int | None]:
        won = _count(connection, counting, units)
        places = [i for i, is_won in zip(index, won, strict=True) if is_won]
        now: _Kept[T] = _Kept([], [], [])
        now.add(drawn, places, kind)
        number = None
        if len(places) == len(index) and counting.buffer.info.config.sampling.track_samples:
            number = _log(connection, counting, drawn, _both(kept, now), note)
        return now, len(places), number

    now, n_won, number = counting.write(work)
    clean_after_write(counting.buffer.engine, len(units))
    both = _both(kept, now)
    kept.parts, kept.units, kept.probabilities = both.parts, both.units, both.probabilities
    return n_won, number


def _both(one: _Kept[T], other: _Kept[T]) -> _Kept[T]:
    probabilities = None
    if one.probabilities is not None and other.probabilities is not None:
        probabilities = [*one.probabilities, *other.probabilities]
    return _Kept([*one.parts, *other.parts], [*one.units, *other.units], probabilities)


def _joined(kept: _Kept[T], kind: ClaimKind[T]) -> T:
    return kept.parts[0] if len(kept.parts) == 1 else kind.join(kept.parts)


def _count(connection: Connection, counting: UseCounting, units: Sequence[Unit]) -> list[bool]:
    """Count a use of each row of the units, and return which units could be used whole."""
    if counting.buffer.info.config.sampling.max_use is None:
        return [True] * len(units)
    taken = _take(
        connection,
        counting,
        [seq for unit in units for seq in unit],
        counting.buffer.info.config.sampling.max_use,
    )
    won: list[bool] = []
    back: list[int] = []
    for unit in units:
        used = [seq for seq in unit if taken.get(seq)]
        for seq in used:
            taken[seq] -= 1
        won.append(len(used) == len(unit))
        if not won[-1]:
            back += used
    if back:
        return_uses(connection, counting.buffer.info.id, back)
    return won


def _take(
    connection: Connection, counting: UseCounting, seqs: Sequence[int], max_use: int
) -> dict[int, int]:
    """Count a use for each occurrence of a row; return {row: number of allowed occurrences}."""
    # In ascending order: otherwise two learners could wait for each other. Rows that occur twice
    # are counted again when the first use is held.
    undecided = sorted(set(seqs))
    counts = Counter(seqs) if len(undecided) < len(seqs) else None
    taken: dict[int, int] = {}
    n = 0
    while undecided:
        n += 1
        got = claim_uses(connection, counting.buffer.info.id, undecided, max_use)
        taken.update(dict.fromkeys(got, n))
        undecided = (
            [] if counts is None else [seq for seq in undecided if seq in got and counts[seq] > n]
        )
    return taken


def give_back(counting: UseCounting, units: Sequence[Unit]) -> None:
    """Undo the uses of items that were not returned."""
    remaining = Counter(seq for unit in units for seq in unit)
    if not remaining or counting.buffer.info.config.sampling.max_use is None:
        return

    def work(connection: Connection) -> None:
        again = remaining
        while again:
            return_uses(connection, counting.buffer.info.id, sorted(again))
            again = Counter({seq: n - 1 for seq, n in again.items() if n > 1})

    counting.write(work)
    counting.restrictions.eligible_low.forget()


def _log(
    connection: Connection,
    counting: UseCounting,
    drawn: DrawnItems[Any],
    kept: _Kept[Any],
    note: LogEntry,
) -> int:
    """Log a batch, and return its number."""
    seqs = [seq for unit in kept.units for seq in unit]
    probabilities = kept.probabilities if len(kept.probabilities or ()) == len(seqs) else None
    return log_batch(connection, counting, seqs, drawn.clock, note, probabilities)


def _clean(counting: UseCounting, drawn: DrawnItems[Any]) -> None:
    """Delete the use counts of rows that have left the window, which eviction leaves behind."""
    keep, low = counting.housekeeping, drawn.window_low
    if counting.buffer.info.config.sampling.max_use is None or not is_cleaning_due(
        keep.cleaned_to, low
    ):
        return

    def work(connection: Connection) -> int:
        hold_low = held_low(connection, counting.buffer.info.id)
        end = low if hold_low is None else min(low, hold_low)
        return clean_uses(connection, counting.buffer.info.id, min(keep.cleaned_to, end), end)

    keep.cleaned_to = counting.write(work)
