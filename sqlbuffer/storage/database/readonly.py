"""SQL typed by a user, run on a connection that cannot write."""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.adapt import Loader
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader
from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageUnreachableError, URLError
from sqlbuffer.storage.database.engine import (
    BUSY_TIMEOUT_S,
    engine_for,
    is_memory,
    refuse_unread_log,
    resolve_url,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.sqlite_connections import opened_file
from sqlbuffer.storage.database.transactions import BEGIN, Begin, driver_of, invalidated_when_lost
from sqlbuffer.storage.database.urls import Database, is_immutable, sqlite_path

FETCH_ROWS = 1_000
# Python notices Ctrl-C between two calls of the handler only.
_STEPS_BETWEEN_SIGNALS = 100_000
_Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a query returned.

    Attributes:
        columns: Names of the columns.
        rows: The rows, in order.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True)
class Stream:
    """What a query returns, for as long as its connection is open.

    Attributes:
        columns: Names of the columns.
        rows: The rows, in order, as they are read.
    """

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


def query(url: Database, statement: str, parameters: _Parameters | None = None) -> Answer:
    """Run one SQL statement that reads and return all it finds.

    Args:
        url: The database; a SQLite file must exist.
        statement: SQL of that database.
        parameters: Values of the `:name` in the statement; without any, a colon is a colon.

    Raises:
        StorageReadOnlyError: The statement writes.
        StorageUnreachableError: No such file, or no server.
        URLError: A database in memory.
    """
    with stream(url, statement, parameters) as found:
        return Answer(found.columns, list(found.rows))


@contextmanager
def stream(
    url: Database, statement: str, parameters: _Parameters | None = None
) -> Iterator[Stream]:
    """Run one SQL statement that reads; its rows come as they are read, in little memory.

    The arguments and errors are those of `query`.
    """
    resolved = resolve_url(url)
    run = _stream_sqlite if resolved.get_backend_name() == "sqlite" else _stream_postgresql
    with translated(resolved), run(resolved, statement, parameters) as found:
        yield found


def existing_file(url: URL) -> Path:
    """Return the file of a resolved SQLite URL.

    Raises:
        StorageUnreachableError: There is none; opening it would create it.
        URLError: A database in memory.
    """
    refuse_memory(url)
    path = sqlite_path(url).absolute()
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


@contextmanager
def _stream_sqlite(url: URL, statement: str, parameters: _Parameters | None) -> Iterator[Stream]:
    uri = f"{existing_file(url).as_uri()}?mode=ro"
    if is_immutable(url):
        refuse_unread_log(url)
        uri += "&immutable=1"
    with opened_file(uri, uri=True, timeout=BUSY_TIMEOUT_S) as connection:
        # What another program stored as text may be no UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.set_progress_handler(lambda: 0, _STEPS_BETWEEN_SIGNALS)
        try:
            cursor = connection.execute(statement, parameters or {})
            yield Stream([column[0] for column in cursor.description or ()], cursor)
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted":
                raise KeyboardInterrupt from error
            raise


@contextmanager
def _stream_postgresql(
    url: URL, statement: str, parameters: _Parameters | None
) -> Iterator[Stream]:
    if parameters:
        statement = re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", statement.replace("%", "%%"))
    with ExitStack() as stack:
        try:
            cursor = stack.enter_context(_declared(url, statement, parameters))
        except (psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
            # No cursor can be declared for EXPLAIN or SHOW, nor for what writes or is wrong, where
            # the server's own words are wanted.
            cursor = stack.enter_context(_sent(url, statement, parameters))
        described = cursor.description
        if described is None:
            yield Stream([], iter(()))
        else:
            yield Stream([column.name for column in described], iter(cursor))


@contextmanager
def _declared(url: URL, statement: str, parameters: _Parameters | None) -> Iterator[Any]:
    """Yield a cursor that stays on the server."""
    with _reading(url) as driver, psycopg.ServerCursor(driver, "sqlbuffer") as cursor:
        cursor.itersize = FETCH_ROWS
        for type_, loader in _LENIENT_LOADERS.items():
            cursor.adapters.register_loader(type_, loader)
        cursor.execute(statement, parameters)
        yield cursor


@contextmanager
def _sent(url: URL, statement: str, parameters: _Parameters | None) -> Iterator[Any]:
    """Yield a cursor that has received everything."""
    with _reading(url) as driver, psycopg.Cursor(driver) as cursor:
        # Asked for binary results the server refuses a second statement, which could leave the
        # read-only transaction. (A declared cursor takes one only by itself.)
        cursor.execute(statement, parameters, binary=True)
        yield cursor


@contextmanager
def _reading(url: URL) -> Iterator[Any]:
    """Yield the driver's connection in a transaction that cannot write."""
    options: Any = {"postgresql_readonly": True, BEGIN: Begin(patient=True)}
    with (
        engine_for(url).connect().execution_options(**options) as connection,
        connection.begin(),
        invalidated_when_lost(connection),
    ):
        driver = driver_of(connection)
        # Between two fetches a person may read a page.
        psycopg.Cursor(driver).execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield driver


def _lenient(loader: type[Loader]) -> type[Loader]:
    """Return a loader that gives what Python has no date for (infinity, the year 55000) as text."""

    class Lenient(loader):  # type: ignore[valid-type,misc]
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return Lenient


_LENIENT_LOADERS = {
    "date": _lenient(DateLoader),
    "timestamp": _lenient(TimestampLoader),
    "timestamptz": _lenient(TimestamptzLoader),
}
