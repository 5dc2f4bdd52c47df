"""Listings of the command line. Connections are read-only."""

from collections.abc import Collection
from contextlib import AbstractContextManager

from sqlalchemy import Connection, text

from sqlbuffer.config.connection import RETRY_S
from sqlbuffer.stats import Stats
from sqlbuffer.storage.buffers.live_count import BLOCK
from sqlbuffer.storage.database.engine import close_idle, engine_for, resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.readonly import Answer, Stream, query, stream
from sqlbuffer.storage.database.retrying import retried
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.inspect import buffer_stats
from sqlbuffer.storage.inspect.eviction_counts import eviction_counts

# Counting this many rows and their tasks takes 0.2 s.
MOST_COUNTED = 100_000

_SPAN = "CASE WHEN w.high_seq > w.low_seq THEN w.high_seq - w.low_seq ELSE 0 END"
_TOTAL = f"SELECT coalesce(sum({_SPAN}), 0) FROM v_windows w"
# A buffer has rows or chunks.
_TASKS_OF_WINDOW = """(SELECT count(DISTINCT e.task_id) FROM experiences e
         WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq)
        + (SELECT count(DISTINCT e.task_id) FROM chunk_steps e
           WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq
             AND e.first_seq > w.low_seq - 256)"""
_COUNTED = f"""
SELECT b.buffer, b.rows, b.capacity, b.fill, {_TASKS_OF_WINDOW} AS tasks, b.last_insert_at
FROM v_buffers b JOIN v_windows w ON w.buffer_id = b.buffer_id
ORDER BY b.buffer
"""
_COUNTED_ROWS = "SELECT buffer_id, buffer, rows FROM v_buffers"
_COUNTED_IN_FULL = f"""
SELECT b.buffer, b.rows, b.capacity, b.fill, {_TASKS_OF_WINDOW} AS tasks,
    b.evict_by, b.oldest_at, b.newest_at, b.last_insert_at, b.created_at,
    b.expired, b.used_up, b.other_session, b.partial, b.leased, b.quarantined,
    b.clock, b.max_staleness, b.max_use, b.min_size, b.alpha
FROM v_buffers b JOIN v_windows w ON w.buffer_id = b.buffer_id
ORDER BY b.buffer
"""
# Number of rows by the numbers of the window, without those missing in counted blocks.
_MEASURED_ROWS = f"""
SELECT w.buffer_id, w.buffer, w.max_capacity AS capacity, w.evict_unit, w.low_seq, w.high_seq,
    CASE WHEN w.evict_unit <> 'row' THEN w.live_rows ELSE {_SPAN} - coalesce(
        (SELECT sum({BLOCK} - k.n_rows) FROM row_blocks k
         WHERE k.buffer_id = w.buffer_id AND k.block > w.low_seq / {BLOCK}
           AND k.block < w.high_seq / {BLOCK}), 0) END AS rows,
    v.last_insert_at
FROM v_windows w JOIN v_buffers v ON v.buffer_id = w.buffer_id
"""
_MEASURED = f"""
SELECT buffer, rows, capacity, rows * 1.0 / capacity AS fill, NULL AS tasks, last_insert_at
FROM ({_MEASURED_ROWS}) measured
ORDER BY buffer
"""
_MEASURED_IN_FULL = f"""
SELECT m.buffer, m.rows, m.capacity, m.rows * 1.0 / m.capacity AS fill, NULL AS tasks,
    m.evict_unit AS evict_by,
    (SELECT x.executed_at FROM v_experiences x
     WHERE x.buffer = m.buffer AND x.seq = m.oldest_seq
       AND x.first_seq BETWEEN m.oldest_seq - 255 AND m.oldest_seq) AS oldest_at,
    (SELECT x.executed_at FROM v_experiences x
     WHERE x.buffer = m.buffer AND x.seq = m.high_seq
       AND x.first_seq BETWEEN m.high_seq - 255 AND m.high_seq) AS newest_at,
    m.last_insert_at, b.created_at,
    b.n_expired AS expired, b.n_used_up AS used_up, b.n_other_session AS other_session,
    b.n_partial AS partial,
    (SELECT CAST(coalesce(sum(l.rows), 0) AS bigint) FROM v_leases l
     WHERE l.buffer = m.buffer AND l.alive) AS leased,
    CASE WHEN b.has_quarantine THEN
        (SELECT count(*) FROM quarantine q WHERE q.buffer_id = b.id AND q.seq > m.low_seq)
    ELSE 0 END AS quarantined,
    b.clock, v.max_staleness, v.max_use, v.min_size, b.alpha
FROM (
    SELECT r.*, coalesce(
        (SELECT e.seq FROM experiences e WHERE e.buffer_id = r.buffer_id AND e.seq > r.low_seq
         ORDER BY e.seq LIMIT 1),
        (SELECT e.seq FROM chunk_steps e WHERE e.buffer_id = r.buffer_id AND e.seq > r.low_seq
         AND e.first_seq > r.low_seq - 256 ORDER BY e.first_seq, e.seq LIMIT 1)) AS oldest_seq
    FROM ({_MEASURED_ROWS}) r
) m
JOIN buffers b ON b.id = m.buffer_id
JOIN v_buffers v ON v.buffer_id = m.buffer_id
ORDER BY m.buffer
"""
_TASKS = """
SELECT task_id, task_name, steps, agents, total_reward, first_at, last_at,
    count(*) OVER () AS tasks
FROM v_tasks WHERE buffer = :buffer ORDER BY last_at DESC NULLS LAST, task_id
"""
_BUFFERS_OF_TASK = "SELECT DISTINCT buffer FROM v_experiences WHERE task_id = :task ORDER BY buffer"
_TASK_IDS = "SELECT task_id FROM v_tasks LIMIT :limit"
_TASK_IDS_OF_BUFFER = "SELECT task_id FROM v_tasks WHERE buffer = :buffer LIMIT :limit"
_NEWEST_SEQ = "SELECT high_seq FROM v_windows WHERE buffer = :buffer"


def buffers(url: str | None, *, exact: bool = False) -> Answer:
    """Return a short description of each buffer.

    Args:
        url: The database.
        exact: Count rows and tasks, also if there are many. By default they are counted only if
            there are few. Otherwise `rows` is the number of row numbers in the window, without
            those known to have no row, and `tasks` is null.
    """
    return query(url, _COUNTED if exact or _is_small(url) else _MEASURED)


def buffers_in_full(url: str | None, *, exact: bool = False) -> Answer:
    """Return a full description of each buffer.

    Args:
        url: The database.
        exact: See `buffers`. If rows are not counted, `oldest_at` and `newest_at` are the times of
            the row written first and of the row written last.
    """
    return query(url, _COUNTED_IN_FULL if exact or _is_small(url) else _MEASURED_IN_FULL)


def figures(url: str | None, buffer: str | None, window_s: float) -> list[Stats]:
    """Return the statistics of one buffer, or of each by name.

    Args:
        url: The database.
        buffer: The buffer; None for all. An unknown buffer gives an empty list.
        window_s: Time of the rates in seconds. `rows` is as in `buffers`.
    """
    named = "" if buffer is None else " WHERE buffer = :buffer"
    found = query(url, f"SELECT buffer_id FROM v_windows{named}", {"buffer": buffer}).rows
    ids = [int(number) for (number,) in found]
    resolved = resolve_url(url)

    def look() -> list[Stats]:
        engine = engine_for(resolved)
        with translated(resolved):
            counts = eviction_counts(engine, ids)
            with snapshot(engine) as connection:
                held = held_rows(connection, ids)
                return buffer_stats.look(connection, held, window_s, counts)

    return retried(look, RETRY_S, lambda: close_idle(resolved))


def held_rows(connection: Connection, ids: Collection[int]) -> dict[int, int]:
    """Return the number of rows of each of some buffers; see `figures`."""
    is_small = connection.execute(text(_TOTAL)).scalar_one() <= MOST_COUNTED
    counted = _COUNTED_ROWS if is_small else _MEASURED_ROWS
    held = connection.execute(text(f"SELECT buffer_id, rows FROM ({counted}) held"))
    return {int(number): int(rows) for number, rows in held if number in ids}


def _is_small(url: str | None) -> bool:
    ((total,),) = query(url, _TOTAL).rows
    return bool(total <= MOST_COUNTED)


def tasks(url: str | None, buffer: str, limit: int) -> AbstractContextManager[Stream]:
    """Stream the tasks of a buffer, latest first; the last column has the total number of tasks.

    Args:
        url: The database.
        buffer: The buffer.
        limit: Maximum number of tasks; 0 for all.
    """
    statement = f"{_TASKS} LIMIT :limit" if limit else _TASKS
    return stream(url, statement, {"buffer": buffer, "limit": limit})


def buffers_of_task(url: str | None, task: str) -> list[str]:
    """Return the names of the buffers that hold a row of the task."""
    return [name for (name,) in query(url, _BUFFERS_OF_TASK, {"task": task}).rows]


def task_ids(url: str | None, buffer: str | None, limit: int) -> list[str]:
    """Return up to `limit` tasks of a buffer, or of all of them."""
    statement = _TASK_IDS if buffer is None else _TASK_IDS_OF_BUFFER
    found = query(url, statement, {"buffer": buffer, "limit": limit})
    return [task_id for (task_id,) in found.rows]


def newest_seq(url: str | None, buffer: str) -> int:
    """Return the number of the newest row of a buffer."""
    ((newest,),) = query(url, _NEWEST_SEQ, {"buffer": buffer}).rows
    return int(newest)


def buffers_with_layout(url: str | None) -> list[str]:
    """Return the names of the buffers that keep more than rows, for compat."""
    found = query(url, "SELECT name FROM buffers WHERE layout IS NOT NULL ORDER BY name")
    return [name for (name,) in found.rows]


def unfinished_copies(url: str | None) -> list[str]:
    """Return the source and the progress of each buffer that is an unfinished copy."""
    found = query(
        url,
        "SELECT b.name, c.source_buffer, c.source_database, c.copied_seq, c.high_seq, c.n_steps "
        "FROM copies c JOIN buffers b ON b.id = c.buffer_id WHERE c.finished_at IS NULL "
        "ORDER BY b.name",
    )
    return [
        f"buffer {name!r} is an unfinished copy of {source!r} in {database}: it has {n_steps:,} "
        f"steps, and is at seq {copied:,} of {high:,}; copy again to continue, or drop it"
        for name, source, database, copied, high, n_steps in found.rows
    ]
