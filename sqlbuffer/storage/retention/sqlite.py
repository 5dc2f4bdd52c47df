"""Evict rows on SQLite."""

from sqlalchemy import Connection, text

from sqlbuffer.storage.chunks.sqlite import evict_chunks
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.rows.sqlite import remove_rows
from sqlbuffer.storage.schema.number_keys import MOST_NUMBERS, NUMBER_BITS

_EVICT = (
    f"DELETE FROM experiences WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) "
    "+ min(:held, (SELECT max(seq) FROM experiences WHERE buffer_id = :id) - :n)"
)
# Rows that a lease held when they left the window. This runs with each batch and not with each row:
# the condition is checked from the first row on.
_EVICT_NOT_LEASED = (
    f"DELETE FROM experiences WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) "
    "+ min(:held, (SELECT low_seq FROM v_windows WHERE buffer_id = :id)) "
    "AND NOT EXISTS (SELECT 1 FROM queue_items q WHERE q.buffer_id = :id "
    "AND q.seq = experiences.seq AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
)
_DROP_CHUNKS = (
    f"DELETE FROM chunks WHERE key > :id << {NUMBER_BITS} AND key < (:id + 1) << {NUMBER_BITS}"
)
_END_HOLDS = (
    "DELETE FROM holds WHERE buffer_id = :id",
    "UPDATE buffers SET has_holds = 0 WHERE id = :id",
)
_OVERFLOW = (
    "SELECT evict_unit, live_rows - max_capacity, live_episodes - max_episodes, has_queue, "
    "max_capacity, has_chunks, has_holds FROM buffers WHERE id = :id"
)
_OLDEST_TASKS = text("SELECT task_id FROM tasks WHERE buffer_id = :id ORDER BY last_seq LIMIT 2")
_OLDEST_EPISODE = text(
    "SELECT id FROM episode_states WHERE buffer_id = :id AND n_rows > 0 "
    "AND status <> 'open' ORDER BY id LIMIT 1"
)
_OLDEST_ROWS = text("SELECT seq FROM experiences WHERE buffer_id = :id ORDER BY seq LIMIT :n")
# Chunk by chunk, by the key: otherwise the numbers of all steps would be sorted first.
_OLDEST_STEPS = text(f"""
SELECT c.first_seq + n.place AS seq FROM (
    SELECT first_seq, n_steps FROM chunks
    WHERE key > :id << {NUMBER_BITS} AND key < (:id + 1) << {NUMBER_BITS} ORDER BY key LIMIT :n
) c CROSS JOIN chunk_places n ON n.place < c.n_steps
WHERE NOT EXISTS (
    SELECT 1 FROM deleted_steps x WHERE x.buffer_id = :id AND x.seq = c.first_seq + n.place)
ORDER BY seq LIMIT :n
""")


def evict(connection: Connection, buffer_id: int) -> None:
    """Evict rows that exceed the limits of a buffer. Triggers do so for rows of plain SQL."""
    driver = driver_of(connection)
    while True:
        unit, rows_over, episodes_over, has_queue, capacity, has_chunks, has_holds = driver.execute(
            _OVERFLOW, {"id": buffer_id}
        ).fetchone()
        held = _held(connection, buffer_id) if has_holds else None
        if unit == "row":
            bound = MOST_NUMBERS if held is None else held
            if capacity is not None and has_chunks:
                evict_chunks(connection, buffer_id, bound)
            elif capacity is not None:
                left = _EVICT_NOT_LEASED if has_queue else _EVICT
                driver.execute(left, {"id": buffer_id, "n": capacity, "held": bound})
            return
        if held is not None:
            return
        victim: str | int | None
        if unit == "task":
            victim = _oldest_task(connection, buffer_id) if (rows_over or 0) > 0 else None
        else:
            victim = _oldest_episode(connection, buffer_id) if (episodes_over or 0) > 0 else None
        if victim is not None:
            table, column = "chunks" if has_chunks else "experiences", f"{unit}_id"
            connection.exec_driver_sql(
                f"DELETE FROM {table} WHERE buffer_id = ? AND {column} = ?", (buffer_id, victim)
            )
        elif (rows_over or 0) > 0:
            oldest = _OLDEST_STEPS if has_chunks else _OLDEST_ROWS
            found = connection.execute(oldest, {"id": buffer_id, "n": rows_over}).scalars()
            remove_rows(connection, buffer_id, list(found), evicted=True)
        else:
            return


def _held(connection: Connection, buffer_id: int) -> int | None:
    """Return the number above which no step may be evicted; delete holds that have ended."""
    held = held_low(connection, buffer_id)
    if held is None:
        for statement in _END_HOLDS:
            connection.exec_driver_sql(statement, {"id": buffer_id})
    return held


def _oldest_task(connection: Connection, buffer_id: int) -> str | None:
    """Return the task whose last write is oldest; None if there is only one task."""
    found = connection.execute(_OLDEST_TASKS, {"id": buffer_id}).scalars().all()
    return found[0] if len(found) == 2 else None


def _oldest_episode(connection: Connection, buffer_id: int) -> int | None:
    """Return the ended episode that began first; None if all episodes are open."""
    return connection.execute(_OLDEST_EPISODE, {"id": buffer_id}).scalar()


def drop_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete all chunks of a buffer. A trigger deletes the bytes and narrow rows of each."""
    connection.exec_driver_sql(_DROP_CHUNKS, {"id": buffer_id})
