"""Listings of the command line. Connections are read-only."""

from collections import defaultdict
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import (
    Connection,
    Integer,
    bindparam,
    column,
    literal_column,
    select,
    table,
)

from sqlbuffer.config import RETRY_S
from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.storage.buffers.window import BLOCK, windows
from sqlbuffer.storage.database.engine import close_idle, engine_for, resolve_url
from sqlbuffer.storage.database.errors import retried, translated
from sqlbuffer.storage.database.readonly import Answer, query, stream
from sqlbuffer.storage.database.statement_process import Stream
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.schema.expressions import IntegerList, is_one_of

if TYPE_CHECKING:
    from sqlbuffer.stats import Stats
    from sqlbuffer.storage.inspect.buffer_stats import HeldRows

# Counting the tasks of this many rows takes 0.2 s.
MOST_COUNTED = 100_000
# Counting this many numbers takes 0.1 s. Writers of the library leave up to 8,192 in a buffer; one
# that only plain SQL writes to may leave any number. What is looked at each second counts fewer.
MOST_UNCOUNTED, MOST_UNCOUNTED_LIVE = 1_000_000, 100_000

_SPAN = "CASE WHEN w.high_seq > w.low_seq THEN w.high_seq - w.low_seq ELSE 0 END"
_COUNTED_BLOCKS = f"""FROM row_blocks k WHERE k.buffer_id = w.buffer_id
    AND k.block > w.low_seq / {BLOCK} AND k.block < w.high_seq / {BLOCK}"""
_UNCOUNTED = f"""coalesce(sum(CASE WHEN w.evict_unit = 'row'
    THEN {_SPAN} - {BLOCK} * (SELECT count(*) {_COUNTED_BLOCKS}) ELSE 0 END), 0)"""
_TOTALS = f"SELECT coalesce(sum({_SPAN}), 0), {_UNCOUNTED} FROM v_windows w"
# The numbers of the window, without those that counted blocks lack.
_MEASURED = f"""CASE WHEN w.evict_unit <> 'row' THEN w.live_rows
    ELSE {_SPAN} - coalesce((SELECT sum({BLOCK} - k.n_rows) {_COUNTED_BLOCKS}), 0) END"""
_IS_MEASURED = "CASE WHEN w.evict_unit <> 'row' THEN 1 ELSE 0 END"
# A buffer has rows or chunks.
_TASKS_OF_WINDOW = f"""(SELECT count(DISTINCT e.task_id) FROM experiences e
         WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq)
        + (SELECT count(DISTINCT e.task_id) FROM chunk_steps e
           WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq
             AND e.first_seq > w.low_seq - {MAX_CHUNK_STEPS})"""
_FIRST_HELD = f"""coalesce(
        (SELECT e.seq FROM experiences e WHERE e.buffer_id = v.buffer_id AND e.seq > v.low_seq
         ORDER BY e.seq LIMIT 1),
        (SELECT e.seq FROM chunk_steps e WHERE e.buffer_id = v.buffer_id AND e.seq > v.low_seq
         AND e.first_seq > v.low_seq - {MAX_CHUNK_STEPS} ORDER BY e.first_seq, e.seq LIMIT 1))"""
_TIME_OF = f"""(SELECT x.executed_at FROM v_experiences x WHERE x.buffer = b.buffer
     AND x.seq = w.{{0}} AND x.first_seq BETWEEN w.{{0}} - {MAX_CHUNK_STEPS - 1} AND w.{{0}})"""
_BUFFERS = """
SELECT b.buffer, {rows} AS rows, {exact} AS exact, b.capacity,
    CAST({rows} AS double precision) / b.capacity AS fill, {tasks} AS tasks, b.last_insert_at
FROM v_windows w JOIN v_buffers b ON b.buffer_id = w.buffer_id
ORDER BY b.buffer
"""
_IN_FULL = f"""
SELECT b.buffer, {{rows}} AS rows, {{exact}} AS exact, b.capacity,
    CAST({{rows}} AS double precision) / b.capacity AS fill, {{tasks}} AS tasks, b.evict_by,
    {{oldest_at}} AS oldest_at, {{newest_at}} AS newest_at, b.last_insert_at, b.created_at,
    b.expired, b.used_up, b.other_session, b.partial, b.flat, b.leased, b.quarantined,
    b.clock, b.max_staleness, b.max_use, b.min_size, b.alpha
FROM (SELECT v.*, {_FIRST_HELD} AS first_held FROM v_windows v) w
JOIN v_buffers b ON b.buffer_id = w.buffer_id
ORDER BY b.buffer
"""
_FIELDS = """
SELECT buffer, field, level, dtype, shape, comparable FROM v_fields
ORDER BY buffer, level DESC, position
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

    `exact` is False where `rows` and `fill` are estimates: the numbers of the window, without those
    known to have no row. Rows are counted unless more than a million numbers are to be looked at;
    that takes a buffer that only plain SQL writes to, or very many buffers. Tasks are counted where
    there are few rows; else `tasks` is null.

    Args:
        url: The database.
        exact: Count rows and tasks, also if there are many.
    """
    return _listed(url, _BUFFERS, exact)


def buffers_in_full(url: str | None, *, exact: bool = False) -> Answer:
    """Return a full description of each buffer.

    Args:
        url: The database.
        exact: See `buffers`. If tasks are not counted, `oldest_at` and `newest_at` are the times of
            the row written first and of the row written last.
    """
    return _listed(url, _IN_FULL, exact)


def _listed(url: str | None, statement: str, exact: bool) -> Answer:
    ((n_numbers, n_uncounted),) = query(url, _TOTALS).rows
    counts_tasks = exact or n_numbers <= MOST_COUNTED
    counts_rows = exact or n_uncounted <= MOST_UNCOUNTED
    answer = query(
        url,
        statement.format(
            rows="b.rows" if counts_rows else _MEASURED,
            exact="1" if counts_rows else _IS_MEASURED,
            tasks=_TASKS_OF_WINDOW if counts_tasks else "NULL",
            oldest_at="b.oldest_at" if counts_tasks else _TIME_OF.format("first_held"),
            newest_at="b.newest_at" if counts_tasks else _TIME_OF.format("high_seq"),
        ),
    )
    place = answer.columns.index("exact")  # which SQLite returns as a number
    rows = [(*row[:place], bool(row[place]), *row[place + 1 :]) for row in answer.rows]
    return Answer(answer.columns, rows)


def fields(url: str | None) -> dict[str, list[dict[str, Any]]]:
    """Return the typed fields of each buffer that has some: `field`, `level`, `dtype`, `shape` and
    `comparable`, those of steps before those of episodes.
    """
    fields_of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for buffer, field, level, dtype, shape, comparable in query(url, _FIELDS).rows:
        lengths = orjson.loads(shape) if isinstance(shape, str) else shape
        fields_of[buffer].append(
            {
                "field": field,
                "level": level,
                "dtype": dtype,
                "shape": lengths,
                "comparable": bool(comparable),
            }
        )
    return fields_of


def figures(url: str | None, buffer: str | None, window_s: float) -> "list[Stats]":
    """Return the statistics of one buffer, or of each by name.

    Args:
        url: The database.
        buffer: The buffer; None for all. An unknown buffer gives an empty list.
        window_s: Time of the rates in seconds. `rows` is as in `buffers`.
    """
    from sqlbuffer.storage.inspect import buffer_stats

    named = "" if buffer is None else " WHERE buffer = :buffer"
    rows = query(url, f"SELECT buffer_id FROM v_windows{named}", {"buffer": buffer}).rows
    ids = [int(number) for (number,) in rows]
    resolved = resolve_url(url)

    def look() -> "list[Stats]":
        engine = engine_for(resolved)
        with translated(resolved):
            counts = buffer_stats.eviction_counts(engine, ids)
            with snapshot(engine) as connection:
                held = held_rows(connection, ids)
                return buffer_stats.look(connection, held, window_s, counts)

    return retried(look, RETRY_S, lambda: close_idle(resolved))


def held_rows(connection: Connection, ids: Collection[int]) -> "dict[int, HeldRows]":
    """Return the number of rows of each of some buffers; see `buffers`. It counts fewer."""
    from sqlbuffer.storage.inspect.buffer_stats import HeldRows

    listed = bindparam("ids", list(ids), IntegerList())
    w, b = windows.alias("w"), table("v_buffers", column("buffer_id"), column("rows"))
    is_one = is_one_of(w.c.buffer_id, listed)
    uncounted = select(literal_column(_UNCOUNTED, Integer)).select_from(w).where(is_one)
    if connection.execute(uncounted).scalar_one() <= MOST_UNCOUNTED_LIVE:
        counted = select(b.c.buffer_id, b.c.rows).where(is_one_of(b.c.buffer_id, listed))
        return {int(number): HeldRows(int(rows)) for number, rows in connection.execute(counted)}
    columns: list[Any] = [literal_column(_MEASURED), literal_column(_IS_MEASURED)]
    measured = select(w.c.buffer_id, *columns).where(is_one)
    return {
        int(number): HeldRows(int(rows), bool(exact))
        for number, rows, exact in connection.execute(measured)
    }


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
    answer = query(url, statement, {"buffer": buffer, "limit": limit})
    return [task_id for (task_id,) in answer.rows]


def newest_seq(url: str | None, buffer: str) -> int:
    """Return the number of the newest row of a buffer."""
    ((newest,),) = query(url, _NEWEST_SEQ, {"buffer": buffer}).rows
    return int(newest)


def buffers_with_layout(url: str | None) -> list[str]:
    """Return the names of the buffers that keep more than rows, for compat."""
    names = query(url, "SELECT name FROM buffers WHERE layout IS NOT NULL ORDER BY name")
    return [name for (name,) in names.rows]


def unfinished_copies(url: str | None) -> list[str]:
    """Return the source and the progress of each buffer that is an unfinished copy."""
    answer = query(
        url,
        "SELECT b.name, c.source_buffer, c.source_database, c.copied_seq, c.high_seq, c.n_steps "
        "FROM copies c JOIN buffers b ON b.id = c.buffer_id WHERE c.finished_at IS NULL "
        "ORDER BY b.name",
    )
    return [
        f"buffer {name!r} is an unfinished copy of {source!r} in {database}: it has {n_steps:,} "
        f"steps, and is at seq {copied:,} of {high:,}; copy again to continue, or drop it"
        for name, source, database, copied, high, n_steps in answer.rows
    ]
