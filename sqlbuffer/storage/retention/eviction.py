"""Evict rows beyond the limits of a buffer: single rows, whole tasks or whole episodes."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Index, Table, text

from sqlbuffer.storage.buffers.catalog import change_config, check_resizable, read_config
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.postgresql import evict_chunks as postgresql_evict_chunks
from sqlbuffer.storage.chunks.sqlite import evict_chunks as sqlite_evict_chunks
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.leases.tables import not_leased
from sqlbuffer.storage.retention.sweeps import Sweep
from sqlbuffer.storage.retention.time_marks import forget_marks, forget_unseen
from sqlbuffer.storage.rows.removal import remove_where, sqlite_remove_rows
from sqlbuffer.storage.schema.metadata import KEY, buffer_key, metadata
from sqlbuffer.storage.schema.number_keys import MOST_NUMBERS, NUMBER_BITS

# Kept by triggers, for buffers that evict by task.
tasks = Table(
    "tasks",
    metadata,
    buffer_key(),
    Column("task_id", KEY, primary_key=True, comment="the task"),
    Column("n_rows", BigInteger, nullable=False, comment="rows held"),
    Column("last_seq", BigInteger, nullable=False, comment="seq of the last write"),
)
Index(None, tasks.c.buffer_id, tasks.c.last_seq)


_EVICT = (
    f"DELETE FROM experiences WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) "
    "+ min(:hold_low, (SELECT max(seq) FROM experiences WHERE buffer_id = :id) - :n)"
)
# Rows that a lease held when they left the window. This runs with each batch and not with each row:
# the condition is checked from the first row on.
_EVICT_NOT_LEASED = (
    f"DELETE FROM experiences WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) "
    "+ min(:hold_low, (SELECT low_seq FROM v_windows WHERE buffer_id = :id)) "
    "AND NOT EXISTS (SELECT 1 FROM queue_items q WHERE q.buffer_id = :id "
    "AND q.seq = experiences.seq AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
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


def sqlite_evict(connection: Connection, buffer_id: int) -> None:
    """Evict rows that exceed the limits of a buffer. Triggers do so for rows of plain SQL."""
    driver = driver_of(connection)
    while True:
        unit, rows_over, episodes_over, has_queue, capacity, has_chunks, has_holds = driver.execute(
            _OVERFLOW, {"id": buffer_id}
        ).fetchone()
        hold_low = _live_hold_low(connection, buffer_id) if has_holds else None
        if unit == "row":
            bound = MOST_NUMBERS if hold_low is None else hold_low
            if capacity is not None and has_chunks:
                sqlite_evict_chunks(connection, buffer_id, bound)
            elif capacity is not None:
                deletion = _EVICT_NOT_LEASED if has_queue else _EVICT
                driver.execute(deletion, {"id": buffer_id, "n": capacity, "hold_low": bound})
            return
        if hold_low is not None:
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
            seqs = connection.execute(oldest, {"id": buffer_id, "n": rows_over}).scalars()
            sqlite_remove_rows(connection, buffer_id, list(seqs), evicted=True)
        else:
            return


def _live_hold_low(connection: Connection, buffer_id: int) -> int | None:
    """Return the number above which no step may be evicted; delete holds that have ended."""
    hold_low = held_low(connection, buffer_id)
    if hold_low is None:
        for statement in _END_HOLDS:
            connection.exec_driver_sql(statement, {"id": buffer_id})
    return hold_low


def _oldest_task(connection: Connection, buffer_id: int) -> str | None:
    """Return the task whose last write is oldest; None if there is only one task."""
    task_ids = connection.execute(_OLDEST_TASKS, {"id": buffer_id}).scalars().all()
    return task_ids[0] if len(task_ids) == 2 else None


def _oldest_episode(connection: Connection, buffer_id: int) -> int | None:
    """Return the ended episode that began first; None if all episodes are open."""
    return connection.execute(_OLDEST_EPISODE, {"id": buffer_id}).scalar()


_UNIT = text("SELECT evict_unit, has_chunks FROM buffers WHERE id = :id")


def _postgresql_evict(connection: Connection, buffer_id: int) -> None:
    """Evict rows that exceed the limits of a buffer: whole tasks or episodes, or chunks.

    The caller holds the lock on the row of the buffer. Triggers evict single rows.
    """
    unit, has_chunks = connection.execute(_UNIT, {"id": buffer_id}).one()
    if unit != "row":
        connection.execute(text(f"SELECT sqlbuffer_evict_{unit}s_v1(:id)"), {"id": buffer_id})
    elif has_chunks:
        postgresql_evict_chunks(connection, buffer_id)


evict = by_database(sqlite=sqlite_evict, postgresql=_postgresql_evict)


def resize_buffer(buffer: OpenBuffer, limits: Mapping[str, Any]) -> None:
    """Set limits of the buffer, and immediately evict rows that exceed them."""
    check_resizable(buffer.info)
    sweep = Sweep(buffer)

    def work(connection: Connection) -> None:
        sweep.count_capacity(connection)
        buffer.lock(connection)
        window = buffer.note_deletion(connection)
        change_config(connection, buffer.info.id, limits)
        retention = read_config(connection, buffer.info.id).retention
        if retention.max_age is None:
            forget_unseen(connection, buffer.info.id)
        if retention.max_age is None and retention.max_bytes is None:
            forget_marks(connection, buffer.info.id)
        if window.evict_by != "row" or buffer.info.has_chunks:
            evict(connection, buffer.info.id)
        else:
            low = buffer.window_in(connection).low
            hold_low = held_low(connection, buffer.info.id)
            low = low if hold_low is None else min(low, hold_low)
            leaving = experiences.c.seq <= low
            if buffer.info.config.leases.enabled:
                leaving = leaving & not_leased(buffer.info.id, experiences)
            remove_where(connection, buffer.info.id, leaving)
        sweep.count_capacity(connection)
        buffer.window_in(connection)  # so that this process knows the new limits

    buffer.write(work)
