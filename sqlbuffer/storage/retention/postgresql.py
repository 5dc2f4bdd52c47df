"""Evict rows on PostgreSQL."""

from sqlalchemy import Connection, text

from sqlbuffer.storage.chunks.postgresql import evict_chunks

_UNIT = text("SELECT evict_unit, has_chunks FROM buffers WHERE id = :id")
_DROP_CHUNKS = text(
    "SELECT sqlbuffer_drop_chunks_v1(:id, ARRAY(SELECT first_seq FROM chunks WHERE buffer_id = :id "
    "ORDER BY first_seq LIMIT 10000)) WHERE EXISTS (SELECT 1 FROM chunks WHERE buffer_id = :id)"
)


def evict(connection: Connection, buffer_id: int) -> None:
    """Evict rows that exceed the limits of a buffer: whole tasks or episodes, or chunks.

    The caller holds the lock on the row of the buffer. Triggers evict single rows.
    """
    unit, has_chunks = connection.execute(_UNIT, {"id": buffer_id}).one()
    if unit != "row":
        connection.execute(text(f"SELECT sqlbuffer_evict_{unit}s_v1(:id)"), {"id": buffer_id})
    elif has_chunks:
        evict_chunks(connection, buffer_id)


def drop_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete all chunks of a buffer, a limited number at a time.

    The triggers of a plain DELETE would count all buffers again.
    """
    while connection.execute(_DROP_CHUNKS, {"id": buffer_id}).rowcount:
        pass
