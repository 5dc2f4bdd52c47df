"""Evicts rows on SQLite."""

from typing import Any

from sqlalchemy import Connection, select, text

from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.rows.sqlite import remove_rows
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

_EVICT = (
    f"DELETE FROM experiences WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) "
    "+ (SELECT max(seq) FROM experiences WHERE buffer_id = :id) - :n"
)
# Rows that a lease held when they left the window. With each batch and not with each row: the
# condition is looked at from the first row on.
_EVICT_NOT_LEASED = (
    f"DELETE FROM experiences WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) "
    "+ (SELECT low_seq FROM v_windows WHERE buffer_id = :id) "
    "AND NOT EXISTS (SELECT 1 FROM queue_items q WHERE q.buffer_id = :id "
    "AND q.seq = experiences.seq AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
)
# A chunk with a step that a lease holds stays.
_EVICT_CHUNKS = (
    "DELETE FROM chunks WHERE key > :id << 40 AND first_seq + n_steps - 1 <= (SELECT low_seq FROM "
    "v_windows WHERE buffer_id = :id) AND key <= (:id << 40) + (SELECT low_seq FROM v_windows "
    "WHERE buffer_id = :id) AND NOT EXISTS (SELECT 1 FROM queue_items q WHERE q.buffer_id = :id "
    "AND q.seq >= chunks.first_seq AND q.seq < chunks.first_seq + chunks.n_steps "
    "AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
)
_OVERFLOW = text(
    "SELECT evict_unit, live_rows - max_capacity, live_episodes - max_episodes, has_queue, "
    "max_capacity, has_chunks FROM buffers WHERE id = :id"
)
_OLDEST_TASKS = text("SELECT task_id FROM tasks WHERE buffer_id = :id ORDER BY last_seq LIMIT 2")
_OLDEST_EPISODE = text(
    "SELECT id FROM episode_states WHERE buffer_id = :id AND n_rows > 0 "
    "AND status <> 'open' ORDER BY id LIMIT 1"
)


def evict(connection: Connection, buffer_id: int) -> None:
    """Evict what exceeds the limits of a buffer. Triggers do so for rows that plain SQL writes."""
    rows = select(experiences.c.seq).where(experiences.c.buffer_id == buffer_id)
    while True:
        unit, rows_over, episodes_over, has_queue, capacity, has_chunks = connection.execute(
            _OVERFLOW, {"id": buffer_id}
        ).one()
        if has_chunks:
            if unit == "row" and capacity is not None:
                connection.exec_driver_sql(_EVICT_CHUNKS, {"id": buffer_id})
            victims = None
        elif has_queue:
            connection.exec_driver_sql(_EVICT_NOT_LEASED, {"id": buffer_id})
        elif unit == "row" and capacity is not None:
            connection.exec_driver_sql(_EVICT, {"id": buffer_id, "n": capacity})
        victims = None
        if unit == "task" and (rows_over or 0) > 0:
            victims = _oldest_task(connection, buffer_id, rows)
        elif unit == "episode" and (episodes_over or 0) > 0:
            victims = _oldest_episode(connection, buffer_id, rows)
        if victims is None:
            if unit == "row" or (rows_over or 0) <= 0:
                return
            victims = rows.order_by(experiences.c.seq).limit(rows_over)
        remove_rows(connection, buffer_id, list(connection.execute(victims).scalars()))


def _oldest_task(connection: Connection, buffer_id: int, rows: Any) -> Any:
    """Select the rows of the task whose last write is oldest; None if there is only one task."""
    found = connection.execute(_OLDEST_TASKS, {"id": buffer_id}).scalars().all()
    return rows.where(experiences.c.task_id == found[0]) if len(found) == 2 else None


def _oldest_episode(connection: Connection, buffer_id: int, rows: Any) -> Any:
    """Select the rows of the ended episode that began first; None if all episodes are open."""
    found = connection.execute(_OLDEST_EPISODE, {"id": buffer_id}).scalar()
    return None if found is None else rows.where(experiences.c.episode_id == found)
