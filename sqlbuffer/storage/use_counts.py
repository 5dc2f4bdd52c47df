"""Counts of the uses of rows.

If rows have a limit of uses, a batch is drawn in two transactions: one chooses and reads, the other
counts. Rows that another learner took in between are dropped, and others are drawn. So no row is
used more often than its limit, and no process waits while a batch is chosen. If a learner dies
after the second transaction, its rows count as used.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    Connection,
    func,
    select,
)

from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.window import clean_after_write
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database, number_array
from sqlbuffer.storage.eligibility import uses
from sqlbuffer.storage.flow import Pacer
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.sample_log import LogEntry, SampleLog, write_for_sampling
from sqlbuffer.storage.sampling.candidate_source import Restrictions
from sqlbuffer.storage.schema.metadata import delete_range


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
    """

    cleaned_to: int = 0
    counted_to: int = 0


class UseCounting:
    """Counts and logs the rows drawn from a buffer.

    Args:
        buffer: The buffer.
        restrictions: Requirements that rows must meet before they may be sampled.

    Attributes:
        log: The sample log.
        housekeeping: The last clean-up by this process.
    """

    def __init__(self, buffer: OpenBuffer, restrictions: Restrictions) -> None:
        self.buffer, self.restrictions = buffer, restrictions
        self.log = SampleLog(buffer)
        self.housekeeping = Housekeeping()

    @property
    def is_on(self) -> bool:
        """True if sampling writes to the database."""
        return self.buffer.info.config.sampling.max_use is not None or self.log.is_on

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


class SamplingSession:
    """The draw of one batch.

    Attributes:
        n_rows: Number of returned rows; set it before the session ends.
        batch_id: The number of the batch in the sample log, if it is logged.
    """

    def __init__(self, log: SampleLog) -> None:
        self._log = log
        self.n_rows = 0
        self.batch_id: int | None = None

    def log(
        self, connection: Connection, seqs: Sequence[int], clock: int | None, entry: LogEntry
    ) -> None:
        """Log rows in the transaction that returns them, if the buffer logs batches."""
        if self._log.is_on:
            self.batch_id = self._log.add(connection, seqs, clock, entry)


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
            session = SamplingSession(self.uses.log)
            yield session
            drawn(session.n_rows)

    def undo(self, n_rows: int, batch_id: int | None) -> None:
        """Undo the counts and the log entry of a batch that is not returned."""
        self._pacer.give_back(n_rows)
        if batch_id is not None:
            self.uses.log.forget(batch_id)


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


def claim_items(
    counting: UseCounting,
    draw: Callable[[int, bool], DrawnItems[T]],
    n: int,
    kind: ClaimKind[T],
    entry: LogEntry,
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
        entry: Entry of the log.
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
        n_won, number = _claim(counting, drawn, index, kept, kind, entry)
        if n_won == len(index):
            _clean(counting, drawn)
            return _joined(kept, kind), number
    else:
        index = []
    return _fewer(counting, drawn, index, kept, kind, entry, least)


def _fewer(
    counting: UseCounting,
    drawn: DrawnItems[T],
    index: Sequence[int],
    kept: _Kept[T],
    kind: ClaimKind[T],
    entry: LogEntry,
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
    if counting.log.is_on:
        number = write_for_sampling(
            counting.buffer, lambda connection: _log(connection, counting, drawn, kept, entry)
        )
    return _joined(kept, kind), number


def _claim(
    counting: UseCounting,
    drawn: DrawnItems[T],
    index: Sequence[int],
    kept: _Kept[T],
    kind: ClaimKind[T],
    entry: LogEntry,
) -> tuple[int, int | None]:
    """Count the uses of items below the limit; return how many, and the number of the batch."""
    units = [drawn.units[i] for i in index]

    def work(connection: Connection) -> tuple[_Kept[T], int, int | None]:
        won = _count(connection, counting, units)
        places = [i for i, is_won in zip(index, won, strict=True) if is_won]
        now: _Kept[T] = _Kept([], [], [])
        now.add(drawn, places, kind)
        number = None
        if len(places) == len(index) and counting.log.is_on:
            number = _log(connection, counting, drawn, _both(kept, now), entry)
        return now, len(places), number

    now, n_won, number = write_for_sampling(counting.buffer, work)
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

    write_for_sampling(counting.buffer, work)
    counting.restrictions.eligible_low.forget()


def _log(
    connection: Connection,
    counting: UseCounting,
    drawn: DrawnItems[Any],
    kept: _Kept[Any],
    entry: LogEntry,
) -> int:
    """Log a batch, and return its number."""
    seqs = [seq for unit in kept.units for seq in unit]
    probabilities = kept.probabilities if len(kept.probabilities or ()) == len(seqs) else None
    return counting.log.add(connection, seqs, drawn.clock, entry, probabilities)


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

    keep.cleaned_to = write_for_sampling(counting.buffer, work)
