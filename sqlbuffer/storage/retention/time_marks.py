"""When steps were stored, and how large they are: marks of the newest number at some time.

No draw has a condition on time: a sweep looks up the newest mark that is old enough, and raises the
lower end of the window to its number. The time of a mark is counted time; see `counted_time`.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Double, Index, Table, TextClause, text

from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.schema.metadata import buffer_key, metadata
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
        comment="counted time then, in Unix seconds",
    ),
    Column(
        "n_bytes",
        BigInteger,
        comment="bytes of the steps since the mark before; null: not measured",
    ),
    info={"writer_may": "INSERT, UPDATE, DELETE", "learner_may": "INSERT, UPDATE, DELETE"},
)
Index(None, time_marks.c.buffer_id, time_marks.c.at)

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
    Column("counted_at", Double, comment="counted time at the last sweep, in Unix seconds"),
    Column(
        "unseen_s",
        Double,
        nullable=False,
        server_default=text("0"),
        comment="seconds that passed by the database's clock and do not count: no machine saw them",
    ),
    Column(
        "moved_s",
        Double,
        nullable=False,
        server_default=text("0"),
        comment="seconds that the database's clock was set by, as machines saw",
    ),
    Column(
        "bytes_seq",
        BigInteger,
        comment="tasks or episodes whose steps end up to this seq leave for the size; null: none",
    ),
    info={"writer_may": "INSERT, UPDATE, DELETE", "learner_may": "INSERT, UPDATE, DELETE"},
)

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
# The newest of those that have left stays: the next mark counts its bytes from there.
_TRIM = text(
    "DELETE FROM time_marks WHERE buffer_id = :id AND seq < ("
    "SELECT max(m.seq) FROM time_marks m WHERE m.buffer_id = :id AND m.seq <= :low)"
)

# A mark of fewer bytes waits for more, in a buffer without `max_age`; and one of more is split, at
# parts of this many numbers.
LEAST_PART, MOST_PART = 1_000, 64
# Shared messages of a buffer without a capacity are kept as for this one.
UNLIMITED_WINDOW = 131_072
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
    counted_at: float,
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
        counted_at: Counted time.
        max_age: Its largest age in seconds; None: unlimited.
        max_bytes: Its largest size; None: unlimited.
        has_moved: The clock has moved, so times that are stored with steps are not comparable.
    """
    id_ = {"id": info.id}
    last = connection.execute(NEWEST_MARK, id_).one_or_none()
    start = low if last is None else max(last.seq, low)
    since = None if last is None else counted_at - last.at
    if high <= start or (since is not None and abs(since) < distance_s(max_age) * NEARLY):
        return
    is_small = last is not None and max_age is None and max_bytes is not None
    if is_small and bytes_between(connection, info, start, high) < (max_bytes or 0) // LEAST_PART:
        return
    is_long_ago = since is not None and since > 2 * distance_s(max_age)
    if last is not None and is_long_ago and not has_moved:
        # Among them are steps that were stored soon after the last mark.
        _mark_stored(connection, info, start, high, last.at, counted_at, ahead_s=counted_at - now)
    else:
        connection.execute(_MARK, {**id_, "seq": high, "at": counted_at, "n_bytes": None})


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
s AS (SELECT p.seq, ({stored_at}) + :ahead AS at FROM p),
t AS (
    SELECT seq, max(CASE WHEN at > :until THEN :until WHEN at < :since THEN :since ELSE at END)
        OVER (ORDER BY seq) AS at FROM s)
SELECT :id, max(seq), max(at) FROM t WHERE at IS NOT NULL GROUP BY CAST(at / {distance} AS bigint)
"""


def backfill(
    connection: Connection,
    info: BufferInfo,
    low: int,
    high: int,
    now: float,
    counted_at: float,
    oldest: float,
) -> None:
    """Mark steps that were stored before the buffer had limits, by their stored times.

    Args:
        connection: The transaction.
        info: The buffer.
        low: Lower end of its window.
        high: Its newest number.
        now: Time of the database's clock.
        counted_at: Counted time.
        oldest: Least counted time of a mark.
    """
    if high > low and connection.execute(NEWEST_MARK, {"id": info.id}).first() is None:
        _mark_stored(connection, info, low, high, oldest, counted_at, ahead_s=counted_at - now)


def _mark_stored(
    connection: Connection,
    info: BufferInfo,
    low: int,
    high: int,
    since: float,
    until: float,
    *,
    ahead_s: float,
) -> None:
    """Mark steps by the times that are stored with them, between two counted times; `ahead_s` is
    how far counted time is ahead of the database's clock.
    """
    kind = connection.dialect.name
    table, number = ("chunks", "first_seq") if info.has_chunks else ("experiences", "seq")
    stored_at = _STORED_AT[kind].format(table=table, number=number)
    statement = _BACKFILL.format(stored_at=stored_at, distance=LEAST_DISTANCE_S)
    values = {
        "id": info.id, "low": low, "high": high, "since": since, "until": until,
        "ahead": ahead_s, "n": min(BACKFILLED, high - low),
    }  # fmt: skip
    connection.execute(text(statement), values)


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
    # The first step that has a shared message: see `messages`, which keeps it for half a window.
    return text(
        f"SELECT coalesce((SELECT sum({size}) FROM {table} "
        f"WHERE {_OF_STEPS[dialect][has_chunks]}), 0) + coalesce((SELECT sum("
        f"{message_size(dialect)}) FROM messages "
        "WHERE buffer_id = :id AND last_seq > :low + :half AND last_seq <= :high + :half), 0)"
    )


_SIZES = {
    (dialect, has_chunks): _select_sizes(dialect, has_chunks)
    for dialect in _OF_STEPS
    for has_chunks in (False, True)
}


def bytes_between(connection: Connection, info: BufferInfo, low: int, high: int) -> int:
    """Return the bytes of the payloads of steps with low < seq <= high: a chunk as a whole, and
    shared messages that came with them.
    """
    statement = _SIZES[connection.dialect.name, info.has_chunks]
    half = max((info.config.retention.max_capacity or UNLIMITED_WINDOW) // 2, 1)
    values: dict[str, Any] = {"id": info.id, "low": low, "high": high, "half": half}
    return int(connection.execute(statement, values).scalar_one())


def forget_sizes(connection: Connection, buffer_id: int) -> None:
    """Have all steps measured again."""
    connection.execute(_FORGET_SIZES, {"id": buffer_id, "most": -1})


def trim_marks(connection: Connection, buffer_id: int, low: int) -> None:
    """Delete marks of steps that have left."""
    connection.execute(_TRIM, {"id": buffer_id, "low": low})


_FORGET_COUNTED = text("UPDATE retention_states SET counted_at = NULL WHERE buffer_id = :id")


def forget_marks(connection: Connection, buffer_id: int) -> None:
    """Delete all marks and looks of a buffer that has no limit any more."""
    for table in ("time_marks", "clock_looks"):
        connection.execute(text(f"DELETE FROM {table} WHERE buffer_id = :id"), {"id": buffer_id})
    connection.execute(_FORGET_COUNTED, {"id": buffer_id})


_FORGET_TIME = text("UPDATE retention_states SET unseen_s = 0, moved_s = 0 WHERE buffer_id = :id")


def forget_unseen(connection: Connection, buffer_id: int) -> None:
    """Forget what does not count, in a buffer without a limit of age."""
    connection.execute(_FORGET_TIME, {"id": buffer_id})
