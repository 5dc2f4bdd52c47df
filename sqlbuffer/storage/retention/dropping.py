"""Drop a buffer."""

from sqlalchemy import Engine, delete, select
from sqlalchemy.engine import URL

from sqlbuffer.storage.buffers.catalog import not_found
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.migrations.schema_presence import with_schema
from sqlbuffer.storage.retention.eviction import drop_chunks
from sqlbuffer.storage.rows.removal import remove_where
from sqlbuffer.storage.schema.metadata import metadata


def drop_buffer(url: Database, name: str, retry_s: float = 0.0) -> None:
    """Delete a buffer and all that belongs to it.

    Raises:
        BufferNotFoundError: No such buffer.
    """
    resolved = resolve_url(url)
    dropped: list[int] = []
    with_schema(url, resolved, retry_s, lambda engine: _drop(engine, resolved, name, dropped))


def _drop(engine: Engine, url: URL, name: str, dropped: list[int]) -> None:
    """Delete a buffer.

    Args:
        engine: The engine.
        url: Its resolved URL.
        name: The buffer.
        dropped: Ids of buffers of that name that earlier attempts may have deleted.
    """
    with translated(url), writing(engine) as connection:
        found = connection.scalar(select(buffers.c.id).where(buffers.c.name == name))
        if dropped and (found is None or found not in dropped):
            return
        if found is None:
            raise not_found(name, url)
        connection.execute(delete(buffers).where(buffers.c.id == found))
        remove_where(connection, found)
        drop_chunks(connection, found)
        for table in metadata.tables.values():
            if "buffer_id" in table.c and table is not experiences:
                connection.execute(delete(table).where(table.c.buffer_id == found))
        dropped.append(found)
