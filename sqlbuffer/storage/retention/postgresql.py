"""Evicts rows on PostgreSQL."""

from sqlalchemy import Connection, text

_DROP_CHUNKS = text(
    "SELECT sqlbuffer_drop_chunks_v1(:id, ARRAY(SELECT first_seq FROM chunks WHERE buffer_id = :id "
    "ORDER BY first_seq LIMIT 10000)) WHERE EXISTS (SELECT 1 FROM chunks WHERE buffer_id = :id)"
)


def evict(connection: Connection, buffer_id: int) -> None:
    """Evict whole tasks or episodes that exceed the limits of a buffer.

    The caller holds the lock on the row of the buffer. Triggers evict single rows.
    """
    unit = text("SELECT evict_unit FROM buffers WHERE id = :id")
    found = connection.execute(unit, {"id": buffer_id}).scalar_one()
    if found != "row":
        connection.execute(text(f"SELECT sqlbuffer_evict_{found}s_v1(:id)"), {"id": buffer_id})


def drop_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete all chunks of a buffer, a limited number at a time.

    A plain DELETE would have its triggers count all buffers anew.
    """
    while connection.execute(_DROP_CHUNKS, {"id": buffer_id}).rowcount:
        pass
