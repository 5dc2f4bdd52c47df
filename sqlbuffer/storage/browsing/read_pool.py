"""A small pool of read-only connections for the browser page."""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqlbuffer.errors import StorageBusyError
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.readonly import SMALL_VALUES, guarded_engine
from sqlbuffer.storage.database.statement_process import (
    MAX_GROWTH_BYTES,
    TIME_S,
    StatementLimits,
    StatementProcesses,
    check_text,
    passed_limit,
    time_passed,
)
from sqlbuffer.storage.database.transactions import BEGIN, Begin, driver_of, invalidated_when_lost
from sqlbuffer.storage.database.urls import Database, shown_url

TIME_LIMIT_S = 5.0
WAIT_S = 10.0
MOST_CONNECTIONS = 4
_FETCH_BYTES = 2**20


@dataclass(frozen=True)
class LimitedAnswer:
    """Result of a statement, cut at the limits.

    Attributes:
        columns: Names of the columns.
        rows: The rows, in order.
        is_cut: The statement has more rows than the limits allow.
        seconds: Duration in seconds.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]
    is_cut: bool
    seconds: float


class ReadPool:
    """A pool of at most `size` guarded connections that only read.

    A buffer that is opened on `engine` reads through the same connections, with the same limits:

        buffer = ReplayBuffer(pool.engine, "default", create=False, retry_s=1.0)
        steps = buffer.get_all(condition)

    Closing that buffer leaves the pool open. Do not use such a buffer inside a block of
    `connection`. Each takes a connection, and threads that hold one while they wait for a second
    one block each other until `wait_s` has passed.

    Args:
        url: The database; a SQLite file must exist.
        size: Maximum number of connections.
        time_s: Maximum duration of a transaction, in seconds.
        wait_s: Seconds that a thread waits for a connection if all are in use.

    Attributes:
        engine: The engine over these connections.

    Raises:
        StorageUnreachableError: No such SQLite file. (A server is contacted at first use.)
        URLError: Not a database, or one in memory.
    """

    def __init__(
        self,
        url: Database,
        *,
        size: int = MOST_CONNECTIONS,
        time_s: float = TIME_LIMIT_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self._url, self._size, self._time_s, self._wait_s = resolve_url(url), size, time_s, wait_s
        self.engine: Engine = guarded_engine(self._url, size=size, wait_s=wait_s, time_s=time_s)
        is_file = self._url.get_backend_name() == "sqlite"
        self._processes = StatementProcesses(size, wait_s) if is_file else None

    @contextmanager
    def connection(
        self, *, time_s: float | None = None, in_order: bool = False
    ) -> Iterator[Connection]:
        """Yield a connection in one transaction, which sees one state of the database.

        Args:
            time_s: Time limit in seconds; None for the pool's.
            in_order: Read the first rows of an ordered query by walking an index; see `Begin`.

        Raises:
            ReadLimitError: The time limit passed, or a statement took too much memory.
            StorageBusyError: No connection became free in time.
            StorageUnreachableError: No file, or no server.
        """
        limit = self._time_s if time_s is None else time_s
        with translated(self._url):
            try:
                options = {TIME_S: limit, BEGIN: Begin(in_order=in_order)}
                connection = self.engine.connect().execution_options(**options)
            except PoolTimeoutError:
                raise StorageBusyError(
                    f"{shown_url(self._url)}: all {self._size} connections of the page are in use, "
                    f"and none came free within {self._wait_s:g} s; try again"
                ) from None
            with connection, connection.begin():
                driver = driver_of(connection)
                try:
                    yield connection
                except (DBAPIError, psycopg.Error, sqlite3.Error) as error:
                    cause = error.orig if isinstance(error, DBAPIError) else error
                    raise passed_limit(driver, cause, limit) or error from error

    def query(
        self,
        statement: str,
        *,
        time_s: float | None = None,
        max_rows: int,
        max_bytes: int,
    ) -> LimitedAnswer:
        """Run one read-only statement of a user, and return its rows up to the limits.

        On SQLite it runs in a process, of which there are at most `size`, and takes no connection.

        Args:
            statement: SQL of that database: a SELECT, or an EXPLAIN of one (in SQLite also EXPLAIN
                QUERY PLAN, on a server also SHOW).
            time_s: Time limit in seconds; None for the pool's.
            max_rows: Maximum number of rows.
            max_bytes: Maximum size of their values in bytes.

        Raises:
            ReadLimitError: The time limit passed, or the statement took too much memory.
            StorageBusyError: No connection or process became free in time.
            StorageError: The statement is wrong; the message quotes the database.
            StorageReadOnlyError: The statement does more than read.
            StorageUnreachableError: No file, or no server.
        """
        check_text(statement)
        started = time.monotonic()
        limit = self._time_s if time_s is None else time_s
        if self._processes is not None:
            limits = StatementLimits(limit, MAX_GROWTH_BYTES, SMALL_VALUES)
            with (
                translated(self._url),
                self._processes.answering(self._url, statement, limits) as stream,
            ):
                names = stream.columns
                rows, is_cut = _limited(stream.rows, max_rows, max_bytes)
        else:
            from sqlbuffer.storage.database.readonly_server import answering

            with self.connection(time_s=limit) as connection, invalidated_when_lost(connection):
                driver = driver_of(connection)
                with answering(driver, statement, None) as cursor:
                    names = [column.name for column in cursor.description or ()]
                    fetched = _fetched(cursor, max_rows, started + limit, limit)
                    rows, is_cut = _limited(fetched if names else (), max_rows, max_bytes)
        return LimitedAnswer(names, rows, is_cut, time.monotonic() - started)

    def close(self) -> None:
        """End the processes, and close the connections that are not in use; the others when they
        come back.
        """
        if self._processes is not None:
            self._processes.close()
        pool = self.engine.pool
        self.engine.dispose()
        pool.dispose()


def _fetched(
    cursor: "psycopg.Cursor[Any]", max_rows: int, ends_at: float, limit_s: float
) -> Iterator[tuple[Any, ...]]:
    """Yield rows, fewer at a time if they are large."""
    n_rows, n_bytes, size = 0, 0, 1
    while n_rows <= max_rows:
        if time.monotonic() > ends_at:
            raise time_passed(limit_s)
        rows = cursor.fetchmany(min(size, max_rows + 1 - n_rows))
        if not rows:
            return
        yield from rows
        n_rows += len(rows)
        n_bytes += sum(map(_size_bytes, rows))
        size = max(1, min(1_000, _FETCH_BYTES * n_rows // n_bytes))


def _limited(
    fetched: Iterable[tuple[Any, ...]], max_rows: int, max_bytes: int
) -> tuple[list[tuple[Any, ...]], bool]:
    rows: list[tuple[Any, ...]] = []
    n_bytes = 0
    for row in fetched:
        n_bytes += _size_bytes(row)
        if len(rows) == max_rows or n_bytes > max_bytes:
            return rows, True
        rows.append(tuple(row))
    return rows, False


def _size_bytes(value: Any) -> int:
    """Return the approximate memory that a value of an answer takes as text."""
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size_bytes(part) for pair in value.items() for part in pair) + 8
    if isinstance(value, (list, tuple)):
        return sum(map(_size_bytes, value)) + 8
    return 8
