"""What the command line lists, read on connections that cannot write."""

from contextlib import AbstractContextManager

from sqlbuffer.storage.readonly import Answer, Stream, query, stream

# The rows are counted in an index and the rest is looked up: v_buffers takes twice as long.
_BUFFERS = """
SELECT buffer, rows, capacity, rows * 1.0 / capacity AS fill, tasks, last_insert_at
FROM (
    SELECT w.buffer, w.max_capacity AS capacity,
        (SELECT count(*) FROM experiences e
         WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq) AS rows,
        (SELECT count(DISTINCT e.task_id) FROM experiences e
         WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq) AS tasks,
        (SELECT e.inserted_at FROM experiences e
         WHERE e.buffer_id = w.buffer_id AND e.seq = w.high_seq AND e.seq > w.low_seq
        ) AS last_insert_at
    FROM v_windows w
) counted
ORDER BY buffer
"""
_BUFFERS_IN_FULL = """
SELECT b.buffer, b.rows, b.capacity, b.fill,
    (SELECT count(DISTINCT e.task_id) FROM experiences e
     WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq) AS tasks,
    b.evict_by, b.oldest_at, b.newest_at, b.last_insert_at, b.created_at,
    b.expired, b.used_up, b.other_session, b.partial, b.leased, b.quarantined,
    b.clock, b.max_staleness, b.max_use, b.min_size, b.alpha
FROM v_buffers b JOIN v_windows w ON w.buffer_id = b.buffer_id
ORDER BY b.buffer
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


def buffers(url: str | None) -> Answer:
    """Return what there is to say quickly of each buffer."""
    return query(url, _BUFFERS)


def buffers_in_full(url: str | None) -> Answer:
    """Return all there is to say of each buffer."""
    return query(url, _BUFFERS_IN_FULL)


def tasks(url: str | None, buffer: str, limit: int) -> AbstractContextManager[Stream]:
    """Stream the tasks of a buffer, latest first; the last column says how many there are in all.

    Args:
        url: The database.
        buffer: The buffer.
        limit: How many at most; 0 for all.
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
