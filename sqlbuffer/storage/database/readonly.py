"""Connections that only read, and the SQL of users and of listings on them.

On PostgreSQL the server limits the transaction, and each name in a statement of a user is looked
up: see `readonly_server`, which whoever reads a file does not import. On SQLite, statements of
users run in processes of their own; see `statement_process`.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from sqlbuffer.storage.database.engine import (
    BUSY_TIMEOUT_S,
    adopt_as_it_is,
    refuse_unread_log,
    resolve_url,
    sqlite_engine,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.sqlite import FileConnection, existing_file, opened_file
from sqlbuffer.storage.database.statement_process import (
    MAX_GROWTH_BYTES,
    TIME_S,
    StatementLimits,
    StatementProcess,
    Stream,
)
from sqlbuffer.storage.database.statement_worker import Guard
from sqlbuffer.storage.database.transactions import (
    BEGIN,
    READ,
    Begin,
    driver_of,
    keep_answer,
)
from sqlbuffer.storage.database.urls import Database, is_immutable, with_options_of_sqlite

# PRAGMAs that the library runs when it opens a buffer, and to read large payloads with few pages in
# memory. They change no data.
_LOOKS = frozenset(
    {("journal_mode", None), ("table_info", "sqlbuffer_alembic_version"), ("cache_size", "*")}
)
# Limits of a statement of a user: on the bytes of a value, and on the columns of a result.
SMALL_VALUES = (
    (sqlite3.SQLITE_LIMIT_LENGTH, 16 * 2**20),
    (sqlite3.SQLITE_LIMIT_COLUMN, 500),
)


class GuardedConnection(FileConnection):
    """A connection to a SQLite file that only reads, within limits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._guard = Guard(_LOOKS)
        super().__init__(*args, **kwargs)

    @property
    def passed(self) -> str | None:
        """Limit that ended a statement."""
        return self._guard.passed

    def guard(self) -> None:
        """Refuse every action except reading from now on."""
        self._guard.watch(self)

    def begin(self, time_s: float | None) -> None:
        """Begin a transaction.

        Args:
            time_s: Time limit in seconds; None for no limit on time and memory.
        """
        self._guard.limit(time_s, None if time_s is None else MAX_GROWTH_BYTES)
        with self._guard.trusted():
            self.execute("BEGIN")

    def rollback(self) -> None:
        """End the transaction."""
        self._guard.unlimit()
        with self._guard.trusted():
            super().rollback()

    def commit(self) -> None:
        """End the transaction, which has changed no data."""
        self.rollback()


_Parameters = Mapping[str, Any]


class Answer(NamedTuple):
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
    with stream(url, statement, parameters) as rows:
        return Answer(rows.columns, list(rows.rows))


@contextmanager
def stream(
    url: Database, statement: str, parameters: _Parameters | None = None
) -> Iterator[Stream]:
    """Run one statement of the library and yield its rows as they are read, in little memory.

    The arguments and errors are those of `query`.
    """
    resolved = resolve_url(url)
    if resolved.get_backend_name() == "sqlite":
        run = _stream_sqlite
    else:
        from sqlbuffer.storage.database.readonly_server import stream_server as run
    with translated(resolved), run(resolved, statement, parameters) as rows:
        yield rows


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
        with stream(url, statement) as rows:
            yield rows
        return
    with translated(resolved):
        process = StatementProcess()
        try:
            with process.answering(resolved, statement, StatementLimits()) as rows:
                yield rows
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


def guarded_engine(url: URL, *, size: int, wait_s: float, time_s: float | None) -> Engine:
    """Return an engine with its own pool, whose connections only read, within limits.

    A buffer that is opened on it reads through the same connections.

    Args:
        url: The resolved URL of a file or a server.
        size: Maximum number of connections.
        wait_s: Seconds to wait if all are in use.
        time_s: Maximum duration of a transaction in seconds, unless its connection has the option
            `TIME_S`.
    """
    sizes = {"pool_size": size, "max_overflow": 0, "pool_timeout": wait_s}
    if url.get_backend_name() == "sqlite":
        path = existing_file(url)
        engine = sqlite_engine(
            with_options_of_sqlite(url.update_query_dict({"mode": "ro"})),
            # A cached statement of the library would not be authorized a second time.
            connect_args={"factory": GuardedConnection, "cached_statements": 0},
            **sizes,
        )
        event.listen(engine, "connect", lambda driver, record: _prepare(driver, record, path))
        event.listen(engine, "checkout", lambda _driver, record, _: _check_file(record, path))
    else:
        from sqlbuffer.storage.database.readonly_server import guarded_server

        engine = guarded_server(url, **sizes)
    event.listen(engine, "begin", lambda connection: _begin(connection, time_s))
    adopt_as_it_is(engine)
    return engine


def _prepare(driver: GuardedConnection, record: ConnectionPoolEntry, path: Path) -> None:
    driver.guard()
    record.info["file"] = _file_id(path)


def _check_file(record: ConnectionPoolEntry, path: Path) -> None:
    """Open the file again if another file has replaced the one that was opened."""
    if record.info.get("file") != _file_id(path):
        raise DisconnectionError("another file has this name now")


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _begin(connection: Connection, default_s: float | None) -> None:
    options = connection.get_execution_options()
    begin: Begin = options.get(BEGIN) or READ
    time_s = options.get(TIME_S, default_s)
    driver = driver_of(connection)
    if isinstance(driver, GuardedConnection):
        driver.begin(time_s)
        if begin.query is not None:
            keep_answer(connection, driver.execute(begin.query).fetchall())
        return
    from sqlbuffer.storage.database.readonly_server import begin_reading

    begin_reading(driver, begin, time_s)
    if begin.query is not None:
        keep_answer(connection, psycopg.Cursor(driver).execute(begin.query).fetchall())
