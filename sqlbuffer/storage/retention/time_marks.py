"""When steps were stored, and how large they are: marks of the newest number at some time.

No draw has a condition on time: a sweep looks up the newest mark that is old enough, and raises the
lower end of the window to its number. The time of a mark is that of the database's clock. Each
process that makes marks compares that clock with a monotonic one, so that a clock that was set
does not empty a buffer.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import BigInteger, Column, Connection, Double, Index, Table, TextClause, text

from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.schema.metadata import KEY, buffer_key, metadata
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS
from sqlbuffer.storage.schema.payload_sizes import chunk_size, message_size, row_size

time_marks = Table(
    "time_marks",
    metadata,
    buffer_key(),
    Column(
        "seq",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="the newest seq at that time",
    ),
    Column(
        "at",
        Double,
        nullable=False,
        comment="time of the database's clock, in Unix seconds",
    ),
    Column(
        "n_bytes",
        BigInteger,
        comment="bytes of the steps since the mark before; null: not measured",
    ),
    info={"writer_may": "INSERT, UPDATE, DELETE", "learner_may": "INSERT, UPDATE, DELETE"},
)
Index(None, time_marks.c.buffer_id, time_marks.c.at)

clock_looks = Table(
    "clock_looks",
    metadata,
    buffer_key(),
    Column(
        "clock_id",
        KEY,
        primary_key=True,
        comment="a monotonic clock: that of a machine since it started, or of a process",
    ),
    Column(
        "at",
        Double,
        nullable=False,
        comment="time of the database's clock, in Unix seconds",
    ),
    Column(
        "clock_s",
        Double,
        nullable=False,
        comment="time of the monotonic clock at that moment, in seconds",
    ),
    info={"writer_may": "INSERT, UPDATE, DELETE", "learner_may": "INSERT, UPDATE, DELETE"},
)

retention_states = Table(
    "retention_states",
    metadata,
    buffer_key(),
    Column(
        "looked_at",
        Double,
        nullable=False,
        comment="time of the last sweep by the database's clock, in Unix seconds",
    ),
    Column(
        "low_seq", BigInteger, nullable=False, comment="lower end of the window at the last sweep"
    ),
    Column("high_seq", BigInteger, nullable=False, comment="newest seq at the last sweep"),
    Column(
        "live_rows",
        BigInteger,
        nullable=False,
        comment="rows held at the last sweep, if eviction is by task or episode",
    ),
    Column(
        "n_left",
        BigInteger,
        nullable=False,
        comment="rows that had left for other reasons than capacity then",
    ),
    Column(
        "stopped_at",
        Double,
        comment="time at which a sweep found that the clock had moved; null: max_age applies",
    ),
    Column("stop_s", Double, comment="seconds that the clock moved, or that no witness spans"),
    Column(
        "stop_seq",
        BigInteger,
        comment="the newest time mark before the move; null: no witness spans the time",
    ),
    Column("clock_id", KEY, comment="the monotonic clock that saw the move"),
    Column("clock_at", Double, comment="time of the database's clock before the move"),
    Column("clock_s", Double, comment="time of that monotonic clock before the move"),
    info={"writer_may": "INSERT, UPDATE, DELETE", "learner_may": "INSERT, UPDATE, DELETE"},
)

# Difference of two clocks that is not a move: the time of a statement, and a clock that is slewed
# (at most 500 in a million).
TOLERANCE_S, DRIFT = 5.0, 0.001
# A time that no witness spans is believed up to this part of `max_age`.
MOST_UNSEEN = 0.5
# Looks of more clocks are forgotten, oldest first.
MOST_CLOCKS = 200


@dataclass(frozen=True)
class Witness:
    """A moment of a monotonic clock, which no one can set."""

    clock_id: str
    clock_s: float


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_own: dict[int, str] = {}


@cache
def _machine_clock() -> str | None:
    """Return the id of a clock that all processes of this machine share until it restarts."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    try:
        # A container may have a namespace with other times.
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return None


def witness() -> Witness:
    """Return the present moment of a clock that also counts while the machine sleeps.

    It is the machine's on Linux; elsewhere it is of this process.
    """
    machine = _machine_clock()
    if machine is not None:
        return Witness(machine, time.clock_gettime(time.CLOCK_BOOTTIME))
    clock_id = _own.setdefault(os.getpid(), str(uuid4()))
    # Python's own stops on macOS while the machine sleeps.
    clock_s = time.clock_gettime(time.CLOCK_MONOTONIC) if sys.platform == "darwin" else (
        time.monotonic()
    )  # fmt: skip
    return Witness(clock_id, clock_s)


@dataclass(frozen=True)
class Move:
    """A difference between the database's clock and the time that passed.

    Attributes:
        seconds: How far the clock moved, below 0 if it was set back; or the time that no witness
            spans.
        before: The witness before it, and the database's time then; None if there is none.
    """

    seconds: float
    before: tuple[Witness, float] | None


_LOOK = text("SELECT clock_s, at FROM clock_looks WHERE buffer_id = :id AND clock_id = :clock_id")
_LAST_LOOK = text("SELECT max(at) FROM clock_looks WHERE buffer_id = :id")
_KEEP_LOOK = text(
    "INSERT INTO clock_looks (buffer_id, clock_id, at, clock_s) "
    "VALUES (:id, :clock_id, :at, :clock_s) ON CONFLICT (buffer_id, clock_id) "
    "DO UPDATE SET at = excluded.at, clock_s = excluded.clock_s"
)
_FORGET_LOOKS = text(
    "DELETE FROM clock_looks WHERE buffer_id = :id AND clock_id IN (SELECT l.clock_id FROM "
    f"clock_looks l WHERE l.buffer_id = :id ORDER BY l.at DESC LIMIT 1000 OFFSET {MOST_CLOCKS})"
)


def look(
    connection: Connection, buffer_id: int, now: float, moment: Witness, max_age: float | None
) -> Move | None:
    """Compare the database's clock with a witness, and remember both.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        now: Time of the database's clock.
        moment: The witness at that time.
        max_age: Largest age of a step, in seconds; None: unlimited.

    Returns:
        The move of the clock since the last look; None if there is none.
    """
    values = {"id": buffer_id, "clock_id": moment.clock_id, "at": now, "clock_s": moment.clock_s}
    own = connection.execute(_LOOK, values).one_or_none()
    move = None
    if own is not None:
        seconds = moved(own.clock_s, own.at, moment.clock_s, now)
        if seconds:
            move = Move(seconds, (Witness(moment.clock_id, own.clock_s), own.at))
    else:
        last = connection.execute(_LAST_LOOK, values).scalar()
        if last is not None and max_age is not None and now - last > max_age * MOST_UNSEEN:
            move = Move(now - last, None)
        connection.execute(_FORGET_LOOKS, values)
    connection.execute(_KEEP_LOOK, values)
    return move


def moved(clock_s: float, at: float, clock_s_now: float, now: float) -> float:
    """Return how far the database's clock moved between two moments, 0 if it is in tolerance."""
    passed = clock_s_now - clock_s
    seconds = (now - at) - passed
    return seconds if abs(seconds) > TOLERANCE_S + DRIFT * max(passed, 0.0) else 0.0


_OWN_MARKS = "FROM time_marks WHERE buffer_id = :id"
NEWEST_MARK = text(f"SELECT seq, at {_OWN_MARKS} ORDER BY seq DESC LIMIT 1")
_MARK = text(
    "INSERT INTO time_marks (buffer_id, seq, at, n_bytes) VALUES (:id, :seq, :at, :n_bytes) "
    "ON CONFLICT (buffer_id, seq) DO NOTHING"
)
_UNMEASURED = text(
    "SELECT m.seq, m.at, (SELECT max(o.seq) FROM time_marks o WHERE o.buffer_id = :id "
    "AND o.seq < m.seq) FROM time_marks m WHERE m.buffer_id = :id AND m.n_bytes IS NULL "
    "ORDER BY m.seq"
)
_FORGET_SIZES = text(
    "UPDATE time_marks SET n_bytes = NULL WHERE buffer_id = :id AND n_bytes > :most"
)
_MEASURED = text("UPDATE time_marks SET n_bytes = :n_bytes WHERE buffer_id = :id AND seq = :seq")
_SHIFT = text("UPDATE time_marks SET at = at + :seconds WHERE buffer_id = :id AND seq <= :seq")
# The newest of those that have left stays: the next mark counts its bytes from there.
_TRIM = text(
    "DELETE FROM time_marks WHERE buffer_id = :id AND seq < ("
    "SELECT max(m.seq) FROM time_marks m WHERE m.buffer_id = :id AND m.seq <= :low)"
)

# A mark of fewer bytes waits for more, in a buffer without `max_age`; and one of more is split, at
# parts of this many numbers.
LEAST_PART, MOST_PART = 1_000, 64
# Numbers whose bytes one statement adds up.
FIRST_READ, MOST_READ = 1_024, 2**20
# Marks of a buffer with `max_age` have this distance; more than this number of them are never
# needed.
LEAST_DISTANCE_S, MOST_DISTANCE_S = 10.0, 30.0
MANY_MARKS = 60_000
# A process that is due a moment early need not wait for its next turn.
NEARLY = 0.9


def distance_s(max_age: float | None) -> float:
    """Return the least time between two marks."""
    wide = LEAST_DISTANCE_S if max_age is None else max_age / MANY_MARKS
    return min(max(wide, LEAST_DISTANCE_S), MOST_DISTANCE_S)


def mark(
    connection: Connection,
    info: BufferInfo,
    low: int,
    high: int,
    now: float,
    max_age: float | None,
    max_bytes: int | None,
    *,
    has_moved: bool,
) -> None:
    """Mark the newest number of a buffer, unless the last mark is too near.

    Args:
        connection: The transaction.
        info: The buffer.
        low: Lower end of its window.
        high: Its newest number.
        now: Time of the database's clock.
        max_age: Its largest age in seconds; None: unlimited.
        max_bytes: Its largest size; None: unlimited.
        has_moved: The clock has moved, so times that are stored with steps are not comparable.
    """
    id_ = {"id": info.id}
    last = connection.execute(NEWEST_MARK, id_).one_or_none()
    start = low if last is None else max(last.seq, low)
    since = None if last is None else now - last.at
    if high <= start or (since is not None and abs(since) < distance_s(max_age) * NEARLY):
        return
    is_small = last is not None and max_age is None and max_bytes is not None
    if is_small and bytes_between(connection, info, start, high) < (max_bytes or 0) // LEAST_PART:
        return
    is_long_ago = since is not None and not 0 <= since <= 2 * distance_s(max_age)
    if last is not None and is_long_ago and not has_moved:
        # Among them are steps that were stored soon after the last mark.
        _mark_stored(connection, info, start, high, last.at if last.at < now else 0.0, now)
    else:
        connection.execute(_MARK, {**id_, "seq": high, "at": now, "n_bytes": None})


# A buffer that gets a limit later has marks at this many of its numbers at most, by the times that
# are stored with its steps.
BACKFILLED = 20_000
_STORED_AT = {
    "sqlite": "SELECT (julianday(x.inserted_at) - 2440587.5) * 86400.0 FROM {table} x "
    f"WHERE x.key > :id << {NUMBER_BITS} AND x.key <= (:id << {NUMBER_BITS} | p.seq) "
    "ORDER BY x.key DESC LIMIT 1",
    # A transaction may have begun before others whose numbers are lower.
    "postgresql": "SELECT CAST(extract(epoch FROM max(y.inserted_at)) AS double precision) FROM ("
    "SELECT x.inserted_at FROM {table} x WHERE x.buffer_id = :id AND x.{number} > :low "
    "AND x.{number} <= p.seq "
    "ORDER BY x.{number} DESC LIMIT 16) y",
}
_BACKFILL = """
INSERT INTO time_marks (buffer_id, seq, at)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < CAST(:n AS bigint)),
p(seq) AS (SELECT :low + (CAST(:high AS bigint) - :low) * i / :n FROM n),
s AS (SELECT p.seq, ({stored_at}) AS at FROM p),
t AS (
    SELECT seq, max(CASE WHEN at > :now THEN :now WHEN at < :since THEN :since ELSE at END)
        OVER (ORDER BY seq) AS at FROM s)
SELECT :id, max(seq), max(at) FROM t WHERE at IS NOT NULL GROUP BY CAST(at / {distance} AS bigint)
"""
_LARGEST_GAP = text(
    "SELECT max(gap) FROM (SELECT at - lag(at) OVER (ORDER BY seq) AS gap "
    "FROM time_marks WHERE buffer_id = :id) g"
)


def backfill(connection: Connection, info: BufferInfo, low: int, high: int, now: float) -> float:
    """Mark steps that were stored before the buffer had limits, by their stored times.

    Return the longest time without a step, in seconds; 0 if a clock was compared in that time.
    """
    if high <= low or connection.execute(NEWEST_MARK, {"id": info.id}).first() is not None:
        return 0.0
    is_seen = connection.execute(_LAST_LOOK, {"id": info.id}).scalar() is not None
    _mark_stored(connection, info, low, high, 0.0, now)
    newest = connection.execute(NEWEST_MARK, {"id": info.id}).one_or_none()
    if is_seen:
        return 0.0
    gap = connection.execute(_LARGEST_GAP, {"id": info.id}).scalar() or 0.0
    return max(gap, 0.0 if newest is None else now - newest.at)


def _mark_stored(
    connection: Connection, info: BufferInfo, low: int, high: int, since: float, now: float
) -> None:
    """Mark steps by the times that are stored with them, between two times."""
    kind = connection.dialect.name
    table, number = ("chunks", "first_seq") if info.has_chunks else ("experiences", "seq")
    stored_at = _STORED_AT[kind].format(table=table, number=number)
    statement = _BACKFILL.format(stored_at=stored_at, distance=LEAST_DISTANCE_S)
    values = {"id": info.id, "low": low, "high": high, "since": since, "now": now}
    connection.execute(text(statement), {**values, "n": min(BACKFILLED, high - low)})


def measure(
    connection: Connection, info: BufferInfo, low: int, max_bytes: int, *, is_new: bool
) -> None:
    """Measure the steps of marks, and split marks of too many bytes: all of one leave together.

    Args:
        connection: The transaction.
        info: The buffer.
        low: Lower end of its window.
        max_bytes: Its largest size.
        is_new: It is new: also split marks that were measured before.
    """
    id_ = {"id": info.id}
    if is_new:
        connection.execute(_FORGET_SIZES, {**id_, "most": max_bytes // MOST_PART})
    for seq, at, before in connection.execute(_UNMEASURED, id_).all():
        start = max(before or 0, low)
        if seq <= start:
            connection.execute(_MEASURED, {**id_, "seq": seq, "n_bytes": 0})
            continue
        for end, n_bytes in _parts(connection, info, start, seq, max_bytes // MOST_PART):
            values = {**id_, "seq": end, "at": at, "n_bytes": n_bytes}
            connection.execute(_MARK, values)
            connection.execute(_MEASURED, values)


def _parts(
    connection: Connection, info: BufferInfo, low: int, high: int, most: int
) -> Iterator[tuple[int, int]]:
    """Yield the ends of parts of some numbers, and their bytes: at most `most`, or one number."""
    begin, total, n = low, 0, FIRST_READ
    while begin < high:
        end = min(begin + n, high)
        n_bytes = bytes_between(connection, info, begin, end)
        if n_bytes > most and end - begin > 1:
            n = (end - begin) // 2
            continue
        if total and total + n_bytes > most:
            yield begin, total
            total = 0
        total += n_bytes
        begin = end
        n = min(max(1, n * most // max(2 * n_bytes, 1)), 4 * n, MOST_READ)
    yield high, total


_OF_STEPS = {
    "sqlite": (
        f"key > (:id << {NUMBER_BITS} | :low) AND key <= (:id << {NUMBER_BITS} | :high)",
        f"key > (:id << {NUMBER_BITS} | :low) AND key <= (:id << {NUMBER_BITS} | :high)",
    ),
    "postgresql": (
        "buffer_id = :id AND seq > :low AND seq <= :high",
        "buffer_id = :id AND first_seq > :low AND first_seq <= :high",
    ),
}


def _select_sizes(dialect: str, has_chunks: bool) -> TextClause:
    size, table = (
        (chunk_size(dialect), "chunk_data") if has_chunks else (row_size(dialect), "experiences")
    )
    # A shared message leaves with the last step that has it.
    return text(
        f"SELECT coalesce((SELECT sum({size}) FROM {table} "
        f"WHERE {_OF_STEPS[dialect][has_chunks]}), 0) + coalesce((SELECT sum("
        f"{message_size(dialect)}) FROM messages "
        "WHERE buffer_id = :id AND last_seq > :low AND last_seq <= :high), 0)"
    )


_SIZES = {
    (dialect, has_chunks): _select_sizes(dialect, has_chunks)
    for dialect in _OF_STEPS
    for has_chunks in (False, True)
}


def bytes_between(connection: Connection, info: BufferInfo, low: int, high: int) -> int:
    """Return the bytes of the payloads of steps with low < seq <= high: a chunk as a whole, and
    shared messages that no later step has.
    """
    statement = _SIZES[connection.dialect.name, info.has_chunks]
    values: dict[str, Any] = {"id": info.id, "low": low, "high": high}
    return int(connection.execute(statement, values).scalar_one())


def trim_marks(connection: Connection, buffer_id: int, low: int) -> None:
    """Delete marks of steps that have left."""
    connection.execute(_TRIM, {"id": buffer_id, "low": low})


def shift_marks(connection: Connection, buffer_id: int, seq: int, seconds: float) -> None:
    """Correct the times of marks up to a number, after the clock was set."""
    values = {"id": buffer_id, "seq": seq, "seconds": seconds}
    connection.execute(_SHIFT, values)


def forget_marks(connection: Connection, buffer_id: int) -> None:
    """Delete all marks and looks of a buffer that has no limit any more."""
    for table in ("time_marks", "clock_looks"):
        connection.execute(text(f"DELETE FROM {table} WHERE buffer_id = :id"), {"id": buffer_id})


_RESUME = text(
    "UPDATE retention_states SET stopped_at = NULL, stop_s = NULL, stop_seq = NULL, "
    "clock_id = NULL, clock_at = NULL, clock_s = NULL WHERE buffer_id = :id"
)


def resume(connection: Connection, buffer_id: int) -> None:
    """Apply the limit of age again."""
    connection.execute(_RESUME, {"id": buffer_id})


_FORGET_OTHERS = text("DELETE FROM clock_looks WHERE buffer_id = :id AND clock_id <> :clock_id")


def forget_looks(connection: Connection, buffer_id: int, moment: Witness) -> None:
    """Delete the looks of other clocks, from before the database's clock was set."""
    values = {"id": buffer_id, "clock_id": moment.clock_id}
    connection.execute(_FORGET_OTHERS, values)
