"""Changes of the file of a database, and steps that a follower has not read yet.

Changes of the file show without a statement. `PRAGMA data_version` reports them too, but on a
connection that is kept open, and a fork would wait for it.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

from sqlbuffer.storage.buffers.hanging import (
    HangingWriter,
    postgresql_hanging_writers,
    sqlite_hanging_writers,
)
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.retrying import ONCE_MORE_S, retried
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.following import postgresql, sqlite
from sqlbuffer.storage.following.state import BufferState

# Some file systems store the time of a change in steps of two seconds.
COARSEST_NS = 2_500_000_000


class FileMark(NamedTuple):
    """Data of the file system about a database file and its log.

    Attributes:
        parts: Number, size and time of the last change of each.
        is_old: The last change is old enough that a later one must have another time.
    """

    parts: tuple[tuple[int, int, int], ...]
    is_old: bool


def file_mark(path: Path) -> FileMark | None:
    """Return the mark of a database file; None if it cannot be read."""
    now, parts = time.time_ns(), []
    for own in (path, path.with_name(path.name + "-wal")):
        try:
            found = os.stat(own)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        parts.append((found.st_ino, found.st_size, found.st_mtime_ns))
    newest = max((time_ns for _, _, time_ns in parts), default=now)
    return FileMark(tuple(parts), newest + COARSEST_NS < now)


def is_unchanged(before: FileMark | None, now: FileMark | None) -> bool:
    """Return True if nothing can have been committed since an earlier mark was taken."""
    return before is not None and now is not None and before.is_old and before.parts == now.parts


_count_beyond = by_database(sqlite=sqlite.count_beyond, postgresql=postgresql.count_beyond)
_hanging_writers = by_database(
    sqlite=sqlite_hanging_writers,
    postgresql=postgresql_hanging_writers,
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
