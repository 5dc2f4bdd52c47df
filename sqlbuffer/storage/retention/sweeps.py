"""Steps leave by age and by size: a sweep marks the time, raises the window, and removes rows.

A process that writes sweeps every ten seconds, after a write; `expire` sweeps a buffer to which no
process writes. Sweeps also count what left because of the capacity, which triggers evict.
"""

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from sqlbuffer.errors import SQLBufferError, StorageReadOnlyError
from sqlbuffer.processes import ForkLock
from sqlbuffer.stats import Removed
from sqlbuffer.storage.buffers.eviction_counts import count_evictions, fold_counts
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.chunks.sqlite import evict_chunks
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.dialects import at_once, by_database, hurried, make_room
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.retention import time_marks
from sqlbuffer.storage.retention.time_marks import (
    MOST_UNSEEN,
    Move,
    Witness,
    moved,
    resume,
    shift_marks,
    trim_marks,
    witness,
)
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
    r.n_left, r.stopped_at, r.stop_s, r.stop_seq, r.clock_id, r.clock_at, r.clock_s,
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
_STOP = text(
    "UPDATE retention_states SET stopped_at = :now, stop_s = :seconds, stop_seq = :seq, "
    "clock_id = :clock_id, clock_at = :clock_at, clock_s = :clock_s WHERE buffer_id = :id"
)
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


@dataclass(frozen=True)
class SweepState:
    """What a sweep reads of a buffer, in the order of `_STATE`: its limits and window, the state at
    the last sweep, `was_`, and where the limit of age was stopped.
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
    stopped_at: float | None
    stop_s: float | None
    stop_seq: int | None
    clock_id: str | None
    clock_at: float | None
    clock_s: float | None
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
                with translated(buffer.url), hurried(buffer.engine, WAIT_S) as connection:
                    state, removed = self._look(connection)
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
        buffer = self._buffer

        def work(connection: Connection) -> Removed:
            _, removed = self._look(connection, wait=True, accepts=accept_clock, is_new=is_new)
            return removed

        if not is_joined():
            with translated(buffer.url):
                make_room(buffer.engine)
        return buffer.write(work) + self._clean()

    def _look(
        self,
        connection: Connection,
        *,
        wait: bool = False,
        accepts: bool = False,
        is_new: bool = False,
    ) -> tuple[SweepState | None, Removed]:
        """Mark the time, compare clocks, raise the window, and count what left.

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
        has_moved = self._check_clock(connection, state, now, moment, accepts, is_new)
        time_marks.mark(
            connection, buffer.info, state.low, state.high, now, state.max_age,
            state.max_bytes, has_moved=has_moved,
        )  # fmt: skip
        if state.max_bytes is not None:
            time_marks.measure(connection, buffer.info, state.low, state.max_bytes, is_new=is_new)
        age, size = self._bounds(connection)
        removed = self._raise(connection, state, age or 0, size or 0)
        if removed.total:
            self._keep_state(connection, state, now)
        low = state.low if state.evict_unit == "row" else 0
        trim_marks(connection, id_, max(age or 0, size or 0, low))
        return state, removed

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
        id_ = self._buffer.info.id
        if state.evict_unit == "row":
            before = state.was_low
            if before is None:
                before = state.low if state.is_copy else 0
            n_left = state.high - (state.max_capacity or 0) - before
        else:
            if state.was_live is None or state.was_high is None:
                if state.is_copy:
                    return
                n_before = 0
            else:
                n_before = state.was_live - state.was_high
            n_others = self._n_left(connection) - (state.was_left or 0)
            n_left = n_before + state.high - state.live_rows - n_others
        count_evictions(connection, id_, self._buffer.origin, "capacity", n_left)

    def _n_left(self, connection: Connection) -> int:
        return int(connection.execute(_LEFT, {"id": self._buffer.info.id}).scalar_one())

    def _keep_state(self, connection: Connection, state: SweepState, now: float) -> None:
        window = self._buffer.window_in(connection)
        values = {
            "id": self._buffer.info.id, "now": now, "low": window.low, "high": state.high,
            "live": state.live_rows, "n_left": self._n_left(connection),
        }  # fmt: skip
        connection.execute(_KEEP_STATE, values)

    def _check_clock(
        self,
        connection: Connection,
        state: SweepState,
        now: float,
        moment: Witness,
        accepts: bool,
        is_new: bool,
    ) -> bool:
        """Compare the database's clock with a witness; stop the limit of age if it moved.

        Return True if the clock moved since the last look, or a move was not accepted yet.
        """
        id_ = self._buffer.info.id
        gap = time_marks.backfill(connection, self._buffer.info, state.low, state.high, now)
        newest = connection.execute(time_marks.NEWEST_MARK, {"id": id_}).one_or_none()
        move = time_marks.look(connection, id_, now, moment, state.max_age)
        if accepts:
            self._accept(connection, state, move, None if newest is None else newest.seq)
            time_marks.forget_looks(connection, id_, moment)
            return True
        if state.max_age is not None and gap > state.max_age * MOST_UNSEEN and not is_new:
            move = move or Move(gap, None)
        if state.stopped_at is not None:
            self._resume_if_back(connection, state, now, moment)
            return True
        # Steps that were marked by a clock that was ahead leave with the first that come after it
        # was set back: a mark of a greater number counts.
        if move is None or move.seconds < 0:
            return move is not None
        seq = None if newest is None or move.before is None else newest.seq
        if state.max_age is None:
            if seq is not None:
                shift_marks(connection, id_, seq, move.seconds)
            return True
        clock, at = move.before or (Witness("", 0.0), None)
        values = {
            "id": id_, "now": now, "seconds": move.seconds, "seq": seq,
            "clock_id": clock.clock_id or None, "clock_at": at,
            "clock_s": None if at is None else clock.clock_s,
        }  # fmt: skip
        connection.execute(_STOP, values)
        return True

    def _accept(
        self, connection: Connection, state: SweepState, move: Move | None, newest: int | None
    ) -> None:
        """Correct the times of marks as far as a witness knows them, and apply the age again."""
        id_ = self._buffer.info.id
        if state.stopped_at is not None:
            if state.stop_seq is not None and state.stop_s is not None:
                shift_marks(connection, id_, state.stop_seq, state.stop_s)
            resume(connection, id_)
        if move is not None and move.before is not None and newest is not None:
            shift_marks(connection, id_, newest, move.seconds)

    def _resume_if_back(
        self, connection: Connection, state: SweepState, now: float, moment: Witness
    ) -> None:
        """Resume if the clock shows again what it would if it had not moved."""
        clock_s, at = state.clock_s, state.clock_at
        if state.clock_id != moment.clock_id or clock_s is None or at is None:
            return
        if not moved(clock_s, at, moment.clock_s, now):
            resume(connection, self._buffer.info.id)

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
