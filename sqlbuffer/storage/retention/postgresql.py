"""Evicts rows on PostgreSQL."""

from sqlalchemy import Connection, text


def evict(connection: Connection, buffer_id: int) -> None:
    """Evict whole tasks or episodes that exceed the limits of a buffer.

    The caller holds the lock on the row of the buffer. Triggers evict single rows.
    """
    unit = text("SELECT evict_unit FROM buffers WHERE id = :id")
    found = connection.execute(unit, {"id": buffer_id}).scalar_one()
    if found != "row":
        connection.execute(text(f"SELECT sqlbuffer_evict_{found}s_v1(:id)"), {"id": buffer_id})
