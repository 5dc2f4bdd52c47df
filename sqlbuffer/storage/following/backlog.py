"""Steps that a follower has not read yet, and the writer that delays them."""

from typing import NamedTuple

from sqlbuffer.storage.buffers.hanging import postgresql as hanging_postgresql
from sqlbuffer.storage.buffers.hanging import sqlite as hanging_sqlite
from sqlbuffer.storage.buffers.hanging.hanging_writer import HangingWriter
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.retrying import ONCE_MORE_S, retried
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.following import postgresql, sqlite
from sqlbuffer.storage.following.buffer_state import BufferState

_count_beyond = by_database(sqlite=sqlite.count_beyond, postgresql=postgresql.count_beyond)
_hanging_writers = by_database(
    sqlite=hanging_sqlite.hanging_writers, postgresql=hanging_postgresql.hanging_writers
)


class Backlog(NamedTuple):
    """Steps that a follower has not read yet.

    Attributes:
        n_steps: Number of steps of the buffer that are not in the follower's state.
        writer: The writer whose transaction has been open longest, if it hangs.
    """

    n_steps: int
    writer: HangingWriter | None


def backlog_of(buffer: OpenBuffer, state: BufferState) -> Backlog:
    """Return the backlog of a follower. An outage is not waited for.

    Raises:
        StorageError: The database cannot be read.
    """
    buffer_id = buffer.info.id

    def look() -> Backlog:
        with translated(buffer.url), reading(buffer.engine) as connection:
            n_steps = _count_beyond(connection, buffer_id, state)
            writers = _hanging_writers(connection, buffer.url, buffer_id)
        return Backlog(n_steps, writers[0][1] if writers else None)

    return retried(look, ONCE_MORE_S, buffer.forget_connections)
