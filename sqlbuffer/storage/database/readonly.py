"""SQL of the library's listings and of users, run where it cannot write."""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy.engine import URL

from sqlbuffer.storage.database.engine import (
    BUSY_TIMEOUT_S,
    engine_for,
    refuse_unread_log,
    resolve_url,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.guarding import postgresql
from sqlbuffer.storage.database.guarding.postgresql import role_settings
from sqlbuffer.storage.database.guarding.sqlite import GuardedConnection
from sqlbuffer.storage.database.guarding.statement_process import (
    StatementLimits,
    StatementProcess,
    Stream,
)
from sqlbuffer.storage.database.sqlite import existing_file, opened_file
from sqlbuffer.storage.database.transactions import BEGIN, Begin, driver_of, invalidated_when_lost
from sqlbuffer.storage.database.urls import Database, is_immutable

_Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """Result of a query.

    Attributes:
        columns: Names of the columns.
        rows: The rows, in order.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]


def query(url: Database, statement: str, parameters: _Parameters | None = None) -> Answer:
    """Run one read-only SQL statement of the library and return all its rows.

    Args:
        url: The database; a SQLite file must exist.
        statement: SQL of that database.
        parameters: Values of each `:name` in the statement. Without parameters, colons have no
            special meaning.

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
    """Run one statement of the library and yield its rows as they are read, in little memory.

    The arguments and errors are those of `query`.
    """
    resolved = resolve_url(url)
    run = _stream_sqlite if resolved.get_backend_name() == "sqlite" else _stream_postgresql
    with translated(resolved), run(resolved, statement, parameters) as found:
        yield found


@contextmanager
def asked(url: Database, statement: str) -> Iterator[Stream]:
    """Run one statement of a user and yield its rows as they are read, in little memory.

    On SQLite it runs in a process, which ends with the block: also after Ctrl-C, whatever it does.

    Args:
        url: The database; a SQLite file must exist.
        statement: SQL of that database.

    Raises:
        StorageError: The statement is wrong; the message quotes the database.
        StorageReadOnlyError: The statement does more than read.
        StorageUnreachableError: No such file, or no server.
        URLError: A database in memory.
    """
    resolved = resolve_url(url)
    if resolved.get_backend_name() != "sqlite":
        with stream(url, statement) as found:
            yield found
        return
    with translated(resolved):
        process = StatementProcess()
        try:
            with process.answering(resolved, statement, StatementLimits()) as found:
                yield found
        finally:
            process.end()


@contextmanager
def _stream_sqlite(url: URL, statement: str, parameters: _Parameters | None) -> Iterator[Stream]:
    uri = f"{existing_file(url).as_uri()}?mode=ro"
    if is_immutable(url):
        refuse_unread_log(url)
        uri += "&immutable=1"
    options: Any = {"uri": True, "timeout": BUSY_TIMEOUT_S, "cached_statements": 0}
    with opened_file(uri, factory=GuardedConnection, **options) as connection:
        assert isinstance(connection, GuardedConnection)
        # Text that another program stored may not be UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.guard()
        connection.begin(None)
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
    with _reading(url) as driver, postgresql.answering(driver, statement, parameters) as cursor:
        described = cursor.description
        if described is None:
            yield Stream([], iter(()))
        else:
            yield Stream([column.name for column in described], iter(cursor))


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
        settings = ["SET LOCAL idle_in_transaction_session_timeout = 0", role_settings(driver)]
        psycopg.Cursor(driver).execute("; ".join(settings))
        yield driver
