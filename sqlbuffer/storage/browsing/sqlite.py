"""Page queries that only SQLite needs."""

from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from sqlalchemy import Connection

from sqlbuffer.storage.database.sqlite import wal_path
from sqlbuffer.storage.database.urls import sqlite_path


def size_bytes(connection: Connection) -> int:
    """Return the size of the file and its log on disk."""
    path = sqlite_path(connection.engine.url)
    return _size_of(path) + _size_of(wal_path(path))


def in_order(connection: Connection) -> AbstractContextManager[None]:
    """Do nothing: SQLite walks an index if that avoids a sort."""
    return nullcontext()


def _size_of(path: Path) -> int:
    with suppress(OSError):  # the last connection removes the log
        return path.stat().st_size
    return 0
