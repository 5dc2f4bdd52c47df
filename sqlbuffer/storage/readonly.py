"""SQL typed by a user, run on a connection that cannot write."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageUnreachableError, URLError
from sqlbuffer.storage.engine import BUSY_TIMEOUT_S, engine_for, is_memory, resolve_url
from sqlbuffer.storage.errors import translated


@dataclass(frozen=True)
class Answer:
    """What a query returned.

    Attributes:
        columns: Names of the columns.
        rows: The rows, in order.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]


def query(url: str | URL | None, statement: str) -> Answer:
    """Run one SQL statement that reads and return all it finds.

    Args:
        url: The database; a SQLite file must exist.
        statement: SQL of that database, without parameters.

    Raises:
        StorageReadOnlyError: The statement writes.
        StorageUnreachableError: No such file, or no server.
        URLError: A database in memory.
    """
    resolved = resolve_url(url)
    run = _query_sqlite if resolved.get_backend_name() == "sqlite" else _query_postgresql
    with translated(resolved):
        return run(resolved, statement)


def existing_file(url: URL) -> Path:
    """Return the file of a resolved SQLite URL.

    Raises:
        StorageUnreachableError: There is none; opening it would create it.
        URLError: A database in memory.
    """
    refuse_memory(url)
    path = Path((url.database or "").removeprefix("file:")).absolute()
    if not path.is_file():
        raise StorageUnreachableError(
            f"there is no file {path}; check the path, or create it with "
            f"`sqlbuffer db init 'sqlite:///{path}'`"
        )
    return path


def refuse_memory(url: URL) -> None:
    """Raise URLError for a database in memory."""
    if is_memory(url):
        raise URLError(
            "a database in memory ends with its process; name a file: sqlite:///replay.db"
        )


def _query_sqlite(url: URL, statement: str) -> Answer:
    uri = f"{existing_file(url).as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)
    try:
        cursor = connection.execute(statement)
        return Answer([column[0] for column in cursor.description or ()], cursor.fetchall())
    finally:
        connection.close()


def _query_postgresql(url: URL, statement: str) -> Answer:
    # Without parameters a percent sign is one, and the engine's binary results let the server
    # refuse a second statement, which could leave the read-only transaction.
    options = {"postgresql_readonly": True, "no_parameters": True}
    with engine_for(url).connect().execution_options(**options) as connection:
        result = connection.exec_driver_sql(statement)
        if not result.returns_rows:
            return Answer([], [])
        return Answer(list(result.keys()), [tuple(row) for row in result])
