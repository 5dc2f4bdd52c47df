"""Locks on the row of a buffer."""

from sqlalchemy import Connection, select

from sqlbuffer.storage.buffers import postgresql, sqlite
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.dialects.by_database import by_database

lock_as_writer = by_database(sqlite=sqlite.lock_as_writer, postgresql=postgresql.lock_as_writer)


def lock_buffer(connection: Connection, buffer_id: int) -> bool:
    """Lock the row of a buffer until the transaction ends; return False if there is none."""
    own = select(buffers.c.id).where(buffers.c.id == buffer_id).with_for_update(key_share=True)
    return connection.execute(own).first() is not None
