"""Drop a buffer."""

from sqlalchemy import Engine, delete
from sqlalchemy.engine import URL

from sqlbuffer.storage.buffers.buffer_info import find_buffer
from sqlbuffer.storage.buffers.catalog import not_found
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.migrations.schema_presence import with_schema
from sqlbuffer.storage.rows.removal import remove_where
from sqlbuffer.storage.schema.metadata import metadata


def drop_buffer(url: str | URL | Engine | None, name: str, retry_s: float = 0.0) -> None:
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
        found = find_buffer(connection, name)
        if dropped and (found is None or found.id not in dropped):
            return
        if found is None:
            raise not_found(name, url)
        connection.execute(delete(buffers).where(buffers.c.id == found.id))
        remove_where(connection, found.id)
        for table in metadata.tables.values():
            if "buffer_id" in table.c and table is not experiences:
                connection.execute(delete(table).where(table.c.buffer_id == found.id))
        dropped.append(found.id)
