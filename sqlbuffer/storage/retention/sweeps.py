"""Steps leave by age and by size: a sweep marks the time, raises the window, and removes rows.

A process that writes sweeps every ten seconds, after a write; `expire` sweeps a buffer to which no
process writes. Sweeps also count what left because of the capacity, which triggers evict.
"""

import json
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from sqlbuffer.errors import SQLBufferError, StorageReadOnlyError
from sqlbuffer.processes import ForkLock
from sqlbuffer.stats import Removed
from sqlbuffer.storage.buffers.eviction_counts import count_evictions, fold_counts
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.window import settled_seq
from sqlbuffer.storage.chunks.sqlite import evict_chunks
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.dialects import at_once, by_database, hurried, make_room
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.retention import time_marks
from sqlbuffer.storage.retention.counted_time import (
    MOST_UNSEEN,
    CountedTime,
    Witness,
    count_time,
    remember_accepted,
    witness,
)
from sqlbuffer.storage.retention.unit_sizes import size_bound
from sqlbuffer.storage.rows.removal import sqlite_remove_rows
from sqlbuffer.storage.schema.number_keys import MOST_NUMBERS, NUMBER_BITS

# Interval of the sweeps of a process that writes, and how long one waits for other writers.
SWEEP_EVERY_S = 10.0
WAIT_S = 1.0
# What one transaction removes.
ROWS_AT_ONCE, CHUNKS_AT_ONCE, UNITS_AT_ONCE = 4_096, 64, 32

_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
}
# The clock is read after the newest number: no step up to it is younger.
_STATE = """
SELECT w.evict_unit, w.max_capacity, w.max_episodes, b.max_age_s, b.max_bytes, w.low_seq,
    w.high_seq, w.live_rows, b.is_copying, r.looked_at, r.low_seq, r.high_seq, r.live_rows,
    r.n_left, r.counted_at, r.unseen_s, r.moved_s,
    EXISTS (SELECT 1 FROM copies c WHERE c.buffer_id = b.id)
FROM v_windows w JOIN buffers b ON b.id = w.buffer_id
LEFT JOIN retention_states r ON r.buffer_id = b.id
WHERE w.buffer_id = :id
"""
_LEFT = text(
    "SELECT coalesce(sum(n_steps), 0) FROM eviction_counts "
    "WHERE buffer_id = :id AND reason <> 'capacity'"
)
_KEEP_STATE = text(
    "INSERT INTO retention_states (buffer_id, looked_at, low_seq, high_seq, live_rows, n_left) "
    "VALUES (:id, :now, :low, :high, :live, :n_left) ON CONFLICT (buffer_id) DO UPDATE SET "
    "looked_at = excluded.looked_at, low_seq = excluded.low_seq, high_seq = excluded.high_seq, "
    "live_rows = excluded.live_rows, n_left = excluded.n_left"
)
_KEEP_TIME = text(
    "UPDATE retention_states SET counted_at = :at, unseen_s = :unseen_s, moved_s = :moved_s "
    "WHERE buffer_id = :id"
)
_MARKED = text("SELECT coalesce(sum(n_bytes), 0) FROM time_marks WHERE buffer_id = :id")
_KEEP_BOUND = text("UPDATE retention_states SET bytes_seq = :bound WHERE buffer_id = :id")
_BOUNDS = text("SELECT age_seq, bytes_seq FROM retention_bounds WHERE buffer_id = :id")
_RAISE = text(
    "UPDATE buffers SET low_seq = :bound "
    "WHERE id = :id AND evict_unit = 'row' AND NOT is_copying AND low_seq < :bound"
)
_COUNT_ROWS = text(
    "SELECT count(*) FROM experiences WHERE buffer_id = :id AND seq > :low AND seq <= :high"
)
_COUNT_STEPS = text(
    "SELECT coalesce(sum(CASE WHEN first_seq + n_steps - 1 > :high THEN :high "
    "ELSE first_seq + n_steps - 1 END - CASE WHEN first_seq > :low THEN first_seq "
    "ELSE :low + 1 END + 1), 0) - (SELECT count(*) FROM deleted_steps "
    "WHERE buffer_id = :id AND seq > :low AND seq <= :high) FROM chunks "
    "WHERE buffer_id = :id AND first_seq > :low - 256 AND first_seq <= :high "
    "AND first_seq + n_steps - 1 > :low"
)


class SweepState(NamedTuple):
    """What a sweep reads of a buffer, in the order of `_STATE`: its limits and window, the state at
    the last sweep, `was_`, and the time that counted then.
    """

    evict_unit: str
    max_capacity: int | None
    max_episodes: int | None
    max_age: float | None
    max_bytes: int | None
    low: int
    high: int
    live_rows: int
    is_copying: bool
    looked_at: float | None
    was_low: int | None
    was_high: int | None
    was_live: int | None
    was_left: int | None
    counted_at: float | None
    unseen_s: float | None
    moved_s: float | None
    is_copy: bool

    @property
    def has_marks(self) -> bool:
        """Whether steps leave by age or size."""
        return self.max_age is not None or self.max_bytes is not None

    @property
    def leaves_whole(self) -> bool:
        """Whether tasks or episodes leave by age or size, each as a whole."""
        return self.has_marks and self.evict_unit != "row"

    @property
    def has_capacity(self) -> bool:
        """Whether steps leave because there are too many."""
        return self.max_capacity is not None or self.max_episodes is not None


# Lock of the sweep of a buffer on PostgreSQL.
SWEEP_LOCK = 1_397_836_868


def _sqlite_lock(connection: Connection, buffer_id: int, wait: bool) -> bool:
    """Return True: no other transaction writes at the same time."""
    return True


def _postgresql_lock(connection: Connection, buffer_id: int, wait: bool) -> bool:
    """Lock the sweeps of a buffer until the transaction ends; return False if another one runs."""
    values = {"id": buffer_id}
    if wait:
        call = f"SELECT pg_advisory_xact_lock({SWEEP_LOCK}, :id)"
        connection.execute(text(call), values)
        return True
    call = f"SELECT pg_try_advisory_xact_lock({SWEEP_LOCK}, :id)"
    return bool(connection.execute(text(call), values).scalar_one())


_lock = by_database(sqlite=_sqlite_lock, postgresql=_postgresql_lock)


def _sqlite_raise_low(connection: Connection, buffer_id: int, bound: int) -> int:
    connection.execute(_RAISE, {"id": buffer_id, "bound": bound})
    return bound


def _postgresql_raise_low(connection: Connection, buffer_id: int, bound: int) -> int:
    # With the rights of the owner, which looks the bound up itself, a moment later.
    raised = text("SELECT sqlbuffer_raise_low_v1(:id)")
    return int(connection.execute(raised, {"id": buffer_id}).scalar_one() or bound)


_raise_low = by_database(sqlite=_sqlite_raise_low, postgresql=_postgresql_raise_low)

_OLDEST_ROWS = f"""
SELECT seq FROM experiences WHERE key > :id << {NUMBER_BITS}
    AND key <= (:id << {NUMBER_BITS}) + :bound AND NOT EXISTS (
        SELECT 1 FROM queue_items q WHERE q.buffer_id = :id AND q.seq = experiences.seq
        AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
ORDER BY key LIMIT {ROWS_AT_ONCE}
"""
_N_CHUNKS = f"""
SELECT count(*), max(first_seq + n_steps - 1) FROM (
    SELECT first_seq, n_steps FROM chunks WHERE key > :id << {NUMBER_BITS}
    AND key <= (:id << {NUMBER_BITS}) + :bound AND first_seq + n_steps - 1 <= :bound
    AND NOT EXISTS (
        SELECT 1 FROM queue_items q WHERE q.buffer_id = :id
        AND q.seq >= chunks.first_seq AND q.seq < chunks.first_seq + chunks.n_steps
        AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    ORDER BY key LIMIT {CHUNKS_AT_ONCE})
"""


def _sqlite_clean(connection: Connection, buffer_id: int, low: int, has_chunks: bool) -> int:
    """Delete some of the rows behind the window, unless they are leased or held.

    Return how many rows or chunks left.
    """
    held = held_low(connection, buffer_id)
    bound = low if held is None else min(low, held)
    values = {"id": buffer_id, "bound": bound}
    if has_chunks:
        n, last = connection.exec_driver_sql(_N_CHUNKS, values).one()
        if n:
            evict_chunks(connection, buffer_id, min(last, MOST_NUMBERS))
        return int(n)
    seqs = connection.exec_driver_sql(_OLDEST_ROWS, values).scalars().all()
    return sqlite_remove_rows(connection, buffer_id, seqs, evicted=True)


_OLD_TASKS = "SELECT task_id, last_seq FROM tasks WHERE buffer_id = :id AND last_seq <= :bound " \
    f"ORDER BY last_seq LIMIT {UNITS_AT_ONCE}"  # fmt: skip
_OLD_EPISODES = f"""
SELECT v.episode_id, v.last_seq FROM (
    SELECT k.episode_id, (SELECT max({{last}}) FROM {{table}} x
        WHERE x.buffer_id = :id AND x.episode_id = k.episode_id) AS last_seq
    FROM (SELECT DISTINCT episode_id FROM {{table}} WHERE key > :id << {NUMBER_BITS}
          AND key <= (:id << {NUMBER_BITS} | :bound) AND episode_id IS NOT NULL) k
) v JOIN episode_states s ON s.id = v.episode_id AND s.status <> 'open'
WHERE v.last_seq <= :bound ORDER BY v.last_seq LIMIT {UNITS_AT_ONCE}
"""
_ALONE = f"""
SELECT {{last}} FROM {{table}} x WHERE x.key > :id << {NUMBER_BITS}
AND x.key <= (:id << {NUMBER_BITS} | :bound) AND x.episode_id IS NULL AND {{last}} <= :bound
ORDER BY x.key LIMIT {ROWS_AT_ONCE}
"""


def _sqlite_leave(
    connection: Connection, buffer: OpenBuffer, age: int | None, size: int | None
) -> tuple[int, int]:
    """Remove some of the tasks or ended episodes that leave, and rows without an episode.

    Return how many rows left by age, and by size.
    """
    id_, has_chunks = buffer.info.id, buffer.info.has_chunks
    if held_low(connection, id_) is not None:
        return 0, 0
    bound = max(age or 0, size or 0)
    table, last = ("chunks", "x.first_seq + x.n_steps - 1") if has_chunks else (
        "experiences", "x.seq"
    )  # fmt: skip
    values = {"id": id_, "bound": bound}
    unit = buffer.info.config.retention.evict_by
    query = _OLD_TASKS if unit == "task" else _OLD_EPISODES.format(table=table, last=last)
    n_left = {True: 0, False: 0}

    def live() -> int:
        row = connection.exec_driver_sql("SELECT live_rows FROM buffers WHERE id = ?", (id_,))
        return int(row.scalar_one())

    before = live()
    for victim, last_seq in connection.exec_driver_sql(query, values).all():
        connection.exec_driver_sql(
            f"DELETE FROM {table} WHERE buffer_id = ? AND {unit}_id = ?", (id_, victim)
        )
        if unit == "task":
            connection.exec_driver_sql(
                "DELETE FROM tasks WHERE buffer_id = ? AND task_id = ?", (id_, victim)
            )
        left = live()
        n_left[last_seq <= (age or 0)] += before - left
        before = left
    if unit == "episode":
        ends = connection.exec_driver_sql(_ALONE.format(table=table, last=last), values)
        for is_aged, seqs in _split(ends.scalars().all(), age or 0):
            number = "first_seq + n_steps - 1" if has_chunks else "seq"
            connection.exec_driver_sql(
                f"DELETE FROM {table} WHERE buffer_id = ? AND episode_id IS NULL AND {number} "
                "IN (SELECT value FROM json_each(?))",
                (id_, json.dumps(seqs)),
            )
            left = live()
            n_left[is_aged] += before - left
            before = left
    return n_left[True], n_left[False]


def _split(seqs: Any, age: int) -> list[tuple[bool, list[int]]]:
    """Return numbers that leave by age, and the others."""
    parts = (True, [seq for seq in seqs if seq <= age]), (False, [seq for seq in seqs if seq > age])
    return [(is_aged, part) for is_aged, part in parts if part]


def _postgresql_leave(
    connection: Connection, buffer: OpenBuffer, age: int | None, size: int | None
) -> tuple[int, int]:
    values = {"id": buffer.info.id, "most": UNITS_AT_ONCE}
    row = connection.execute(text("SELECT * FROM sqlbuffer_leave_v1(:id, :most)"), values).one()
    return int(row.n_aged), int(row.n_oversize)


_leave = by_database(sqlite=_sqlite_leave, postgresql=_postgresql_leave)


class Sweep:
    """Lets steps of one opened buffer leave by age and size.

    Attributes:
        due_at: Time of the next automatic sweep, in monotonic seconds.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self._buffer, self._mutex = buffer, ForkLock()
        retention = buffer.info.config.retention
        is_limited = retention.max_age is not None or retention.max_bytes is not None
        # A process that soon ends marks what it writes as well.
        self.due_at = time.monotonic() + (0.0 if is_limited else SWEEP_EVERY_S)
        self._is_on = True
        self._thread: threading.Thread | None = None

    def wrote(self) -> None:
        """Sweep if it is time, after a write; errors do not matter to the write, which is done."""
        if time.monotonic() < self.due_at or not self._is_on or is_joined():
            return
        with self._mutex:
            now = time.monotonic()
            if now < self.due_at:
                return
            self.due_at = now + SWEEP_EVERY_S
        self._try()

    def _try(self) -> None:
        buffer = self._buffer
        with suppress(SQLBufferError):
            try:
                with translated(buffer.url):
                    settled = settled_seq(buffer.engine, buffer.watermark)
                with translated(buffer.url), hurried(buffer.engine, WAIT_S) as connection:
                    state, removed = self._look(connection, settled)
                if removed.total or (state is not None and state.leaves_whole):
                    self._clean_later()
            except StorageReadOnlyError:
                self._is_on = False

    def _clean_later(self) -> None:
        """Remove rows behind the window in a thread, unless one is at it."""
        if is_memory(self._buffer.url):
            self._clean()
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(
            target=self._clean_quietly, name="sqlbuffer-sweep", daemon=True
        )
        # At the end of the process, or at a limit on threads, a later sweep removes them.
        with suppress(RuntimeError):
            self._thread.start()

    def _clean_quietly(self) -> None:
        with suppress(SQLBufferError):
            self._clean()

    def run(self, *, accept_clock: bool = False, is_new: bool = False) -> Removed:
        """Let all steps leave that are too old, or too many bytes; return how many left.

        Args:
            accept_clock: Believe the database's clock, though it moved.
            is_new: A person has just set the state: the times of stored steps are believed.
        """
        buffer, settled = self._buffer, None

        def work(connection: Connection) -> Removed:
            _, removed = self._look(
                connection, settled, wait=True, accepts=accept_clock, is_new=is_new
            )
            return removed

        if not is_joined():
            with translated(buffer.url):
                settled = settled_seq(buffer.engine, buffer.watermark)
                make_room(buffer.engine)
        return buffer.write(work) + self._clean()

    def _look(
        self,
        connection: Connection,
        settled: int | None,
        *,
        wait: bool = False,
        accepts: bool = False,
        is_new: bool = False,
    ) -> tuple[SweepState | None, Removed]:
        """Mark the time, raise the window, and count what left.

        Steps above a settled number may still wait for their transaction: no mark counts them.
        Return what was read, or None if another process has just done it.
        """
        buffer, id_ = self._buffer, self._buffer.info.id
        nothing = Removed(0, 0, 0)
        if not _lock(connection, id_, wait):
            return None, nothing
        state = self._state(connection)
        if state.is_copying or not (state.has_marks or state.has_capacity):
            return state, nothing
        kind = connection.dialect.name
        now = float(connection.exec_driver_sql(f"SELECT {_NOW[kind]}").scalar_one())
        moment = witness()
        is_near = state.looked_at is not None and (
            abs(now - state.looked_at) < SWEEP_EVERY_S * time_marks.NEARLY
        )
        if is_near and not wait:
            return state, nothing
        self._count_capacity(connection, state)
        # Before the state: what left is a sum of counts, of which old ones are deleted here.
        fold_counts(connection, id_)
        self._keep_state(connection, state, now)
        if not state.has_marks:
            return state, nothing
        high = state.high if settled is None else min(state.high, settled)
        counted = self._count_time(connection, state, high, now, moment, accepts, is_new)
        assert counted.at is not None
        time_marks.mark(
            connection, buffer.info, state.low, high, now, counted.at, state.max_age,
            state.max_bytes, has_moved=counted.has_moved,
        )  # fmt: skip
        if state.max_bytes is not None:
            time_marks.measure(connection, buffer.info, state.low, state.max_bytes, is_new=is_new)
            if state.evict_unit != "row":
                self._bound_units(connection, state.max_bytes)
        age, size = self._bounds(connection)
        removed = self._raise(connection, state, age or 0, size or 0)
        if removed.total:
            self._keep_state(connection, state, now)
        # Units that stay may have steps of any number.
        left = max(age or 0, size or 0, state.low) if state.evict_unit == "row" else state.low
        time_marks.trim_marks(connection, id_, left)
        return state, removed

    def _bound_units(self, connection: Connection, max_bytes: int) -> None:
        """Find the tasks or episodes that leave for the size, if marks say that it is passed."""
        id_ = {"id": self._buffer.info.id}
        n_marked = connection.execute(_MARKED, id_).scalar_one()
        bound = None
        if n_marked > max_bytes:
            bound = size_bound(connection, self._buffer.info, max_bytes)
            # Units of any number have left since they were measured, or do now.
            time_marks.forget_sizes(connection, self._buffer.info.id)
        connection.execute(_KEEP_BOUND, {**id_, "bound": bound})

    def count_capacity(self, connection: Connection) -> None:
        """Count what has left because of the capacity until now: before it changes, and after.

        It locks out sweeps until the transaction ends; lock the buffer later.
        """
        _lock(connection, self._buffer.info.id, True)
        state = self._state(connection)
        if state.has_capacity and not state.is_copying:
            self._count_capacity(connection, state)
            self._keep_state(connection, state, state.looked_at or 0.0)

    def _state(self, connection: Connection) -> SweepState:
        row = connection.execute(text(_STATE), {"id": self._buffer.info.id}).one_or_none()
        if row is None:
            raise self._buffer.dropped()
        return SweepState(*row)

    def _count_capacity(self, connection: Connection, state: SweepState) -> None:
        """Count what left because of the capacity since the last sweep, as a difference."""
        if not state.has_capacity:
            return
        # Numbers are not given again, though the newest steps may have been deleted.
        id_, high = self._buffer.info.id, max(state.high, state.was_high or 0)
        if state.evict_unit == "row":
            before = state.was_low
            if before is None:
                before = state.low if state.is_copy else 0
            n_left = high - (state.max_capacity or 0) - before
        else:
            if state.was_live is None or state.was_high is None:
                if state.is_copy:
                    return
                n_before = 0
            else:
                n_before = state.was_live - state.was_high
            n_others = self._n_left(connection) - (state.was_left or 0)
            n_left = n_before + high - state.live_rows - n_others
        count_evictions(connection, id_, self._buffer.origin, "capacity", n_left)

    def _n_left(self, connection: Connection) -> int:
        return int(connection.execute(_LEFT, {"id": self._buffer.info.id}).scalar_one())

    def _keep_state(self, connection: Connection, state: SweepState, now: float) -> None:
        window = self._buffer.window_in(connection)
        values = {
            "id": self._buffer.info.id, "now": now, "low": max(window.low, state.was_low or 0),
            "high": max(state.high, state.was_high or 0), "live": state.live_rows,
            "n_left": self._n_left(connection),
        }  # fmt: skip
        connection.execute(_KEEP_STATE, values)

    def _count_time(
        self,
        connection: Connection,
        state: SweepState,
        high: int,
        now: float,
        moment: Witness,
        accepts: bool,
        is_new: bool,
    ) -> CountedTime:
        """Return the counted time now; mark steps that were stored before there were limits."""
        info = self._buffer.info
        before = CountedTime(state.counted_at, state.unseen_s or 0.0, state.moved_s or 0.0)
        counted = count_time(connection, info.id, before, now, moment, state.max_age)
        if accepts:
            counted = counted.accepted()
            remember_accepted(connection, info.id, counted, now, moment)
        assert counted.at is not None
        # Steps without a mark came after the last look. Before the first one, a clock may have been
        # wrong that no machine saw.
        oldest = state.counted_at or 0.0
        if state.counted_at is None and state.max_age is not None and not (accepts or is_new):
            oldest = counted.at - state.max_age * MOST_UNSEEN
        time_marks.backfill(connection, info, state.low, high, now, counted.at, oldest)
        values = {"id": info.id, "at": counted.at, "unseen_s": counted.unseen_s}
        connection.execute(_KEEP_TIME, {**values, "moved_s": counted.moved_s})
        return counted

    def _bounds(self, connection: Connection) -> tuple[int | None, int | None]:
        row = connection.execute(_BOUNDS, {"id": self._buffer.info.id}).one_or_none()
        return (None, None) if row is None else (row.age_seq, row.bytes_seq)

    def _raise(self, connection: Connection, state: SweepState, age: int, size: int) -> Removed:
        """Raise the lower end of a window that moves by row; return how many rows left it."""
        id_, low = self._buffer.info.id, state.low
        bound = min(max(age, size), state.high)
        if state.evict_unit != "row" or bound <= low:
            return Removed(0, 0, 0)
        bound = _raise_low(connection, id_, bound)
        aged_up_to = bound if size <= age else min(max(age, low), bound)
        n_aged = self._count(connection, low, aged_up_to)
        n_oversize = self._count(connection, aged_up_to, bound)
        return self._counted(connection, n_aged, n_oversize)

    def _counted(self, connection: Connection, n_aged: int, n_oversize: int) -> Removed:
        id_, writer = self._buffer.info.id, self._buffer.origin
        count_evictions(connection, id_, writer, "age", n_aged)
        count_evictions(connection, id_, writer, "bytes", n_oversize)
        return Removed(0, 0, 0, aged=n_aged, oversize=n_oversize)

    def _count(self, connection: Connection, low: int, high: int) -> int:
        """Return the number of steps with low < seq <= high."""
        if high <= low:
            return 0
        statement = _COUNT_STEPS if self._buffer.info.has_chunks else _COUNT_ROWS
        values = {"id": self._buffer.info.id, "low": low, "high": high}
        return int(connection.execute(statement, values).scalar_one())

    def _clean(self) -> Removed:
        """Remove rows behind the window, or whole tasks and episodes; return how many left it."""
        buffer, total = self._buffer, Removed(0, 0, 0)
        if buffer.info.config.retention.evict_by == "row":
            while buffer.with_retries(self._clean_some):
                pass
            return total
        while True:
            removed = buffer.write(self._leave_some, "relaxed")
            if not removed.total:
                return total
            total += removed

    def _clean_some(self) -> int:
        buffer = self._buffer
        if buffer.engine.dialect.name == "postgresql":
            with translated(buffer.url), at_once(buffer.engine) as connection:
                return int(connection.exec_driver_sql("SELECT sqlbuffer_sweep_v1()").scalar_one())
        return buffer.write(
            lambda connection: _sqlite_clean(
                connection, buffer.info.id, buffer.window_in(connection).low,
                buffer.info.has_chunks,
            )
        )  # fmt: skip

    def _leave_some(self, connection: Connection) -> Removed:
        age, size = self._bounds(connection)
        if age is None and size is None:
            return Removed(0, 0, 0)
        n_aged, n_oversize = _leave(connection, self._buffer, age, size)
        return self._counted(connection, n_aged, n_oversize)
