"""SQLite files that must already exist."""

from pathlib import Path

from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageUnreachableError, URLError
from sqlbuffer.storage.database.urls import folder_of, is_memory, sqlite_path


def existing_file(url: URL) -> Path:
    """Return the file of a resolved SQLite URL.

    Raises:
        StorageUnreachableError: The file does not exist; opening it would create it.
        URLError: A database in memory.
    """
    refuse_memory(url)
    path = sqlite_path(url).absolute()
    if not path.is_file():
        raise StorageUnreachableError(
            folder_of(url)
            or f"there is no file {path}; check the path, or create it with "
            f"`sqlbuffer db init 'sqlite:///{path}'`"
        )
    return path


def refuse_memory(url: URL) -> None:
    """Raise URLError for a database in memory."""
    if is_memory(url):
        raise URLError(
            "a database in memory ends with its process; name a file: sqlite:///replay.db"
        )
