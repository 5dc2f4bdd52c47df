"""The begin of a transaction: its snapshot, its timeouts and its durability.

The library begins transactions itself, through an event of the engine. All settings of a
transaction then travel in one message to the server, and hold for this transaction alone: behind
pgbouncer in transaction mode a `SET` of the session would reach other clients.
"""

import selectors
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event

from sqlbuffer.errors import ArgumentError
from sqlbuffer.storage.database.kept_connections import connected
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.urls import is_memory

# The execution option of a connection that holds its `Begin`.
BEGIN = "sqlbuffer_begin"
_ANSWER = "sqlbuffer_answer"

# A statement waits for a lock of another one no longer than a writer of SQLite for the file.
LOCK_TIMEOUT_S = 30
SHORTEST_WAIT_MS = 20  # 0 would be without end
# Only a filter that no index serves on a very large table takes nearly as long.
STATEMENT_TIMEOUT_S = 600
# No transaction of the library stays open between two calls: a process that is idle in one hangs.
IDLE_TIMEOUT_S = 60

# JIT starts if a plan looks expensive, and plans that are forced by a penalty (`enable_sort = off`)
# always do: compiling took 1.2 s of claims that take 8 ms.
_NO_JIT = "SET LOCAL jit = off"

# Timeout for cancelling a query on Ctrl-C.
CANCEL_TIMEOUT_S = 5.0
_CANCEL_AGAIN_S = 0.2
# Such a result comes again and again; the server ends the COPY when the connection closes.
_COPIES = ("COPY_IN", "COPY_OUT", "COPY_BOTH")

# A server may wait for more than its own disk: `full` does not lower that.
_SYNCHRONOUS_COMMIT = {
    "relaxed": "SET LOCAL synchronous_commit = off",
    "full": "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)",
}


class Begin(NamedTuple):
    """Options of a new transaction.

    Attributes:
        writes: SQLite takes its write lock at the beginning.
        snapshot: Every statement sees the same state.
        durability: `relaxed`, `full`, or None for the setting of the server or the file.
        patient: Statements have no time limit.
        in_order: PostgreSQL reads rows in the requested order by an index, and sorts only the
            result. Without statistics it would sort the steps of all chunks.
        wait_s: How long a statement waits for the lock of another transaction; None: as long as a
            writer of SQLite waits for the file.
        query: A select without parameters that is sent with the begin, to a server in the same
            message. `answer` returns its rows.
    """

    writes: bool = False
    snapshot: bool = False
    durability: str | None = None
    patient: bool = False
    in_order: bool = False
    query: str | None = None
    wait_s: float | None = None


READ = Begin()
# Each statement is its own transaction, as VACUUM needs it. No setting is sent with it, so it is
# for statements whose plans never look expensive.
AT_ONCE = None


_TAKES_SNAPSHOT = "SELECT 1 FROM sqlite_schema LIMIT 1"
_HEADER_TIMEOUT_S = 5.0


def listen_sqlite(engine: Engine) -> None:
    """Make transactions of an engine begin with their `Begin`."""
    if not event.contains(engine, "begin", _begin_sqlite):
        event.listen(engine, "begin", _begin_sqlite)


def listen_postgresql(engine: Engine) -> None:
    """Make transactions of an engine begin with their `Begin`."""
    if not event.contains(engine, "begin", _begin_postgresql):
        event.listen(engine, "begin", _begin_postgresql)


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    # A writer has begun its transaction before SQLAlchemy does.
    if not driver_of(connection).in_transaction:
        # Transactions of a user may write: behind an older snapshot they could not.
        begin_sqlite(connection, options.get(BEGIN, READ), takes_snapshot=BEGIN in options)


def begin_sqlite(connection: Connection, begin: Begin, *, takes_snapshot: bool = True) -> None:
    """Begin a transaction; one that reads takes its snapshot now, or with its first statement."""
    # Without SQLAlchemy, which takes as long as the statements themselves.
    driver = driver_of(connection)
    if begin.writes:
        # Ignored inside a transaction, and kept by the connection for its next user.
        level = "FULL" if begin.durability == "full" else "NORMAL"
        if connection.info.get("synchronous", "NORMAL") != level:
            driver.execute(f"PRAGMA synchronous = {level}")
            connection.info["synchronous"] = level
    driver.execute("BEGIN IMMEDIATE" if begin.writes else "BEGIN")
    if begin.query is not None:
        connection.info[_ANSWER] = _first_rows(driver, begin.query)
    elif takes_snapshot and not begin.writes:
        _first_rows(driver, _TAKES_SNAPSHOT)


def _first_rows(driver: sqlite3.Connection, query: str) -> list[Any]:
    """Return the rows of the first query of a transaction, which takes its snapshot.

    A reader that may not write the file can meet the header of the log's index while a writer
    changes it. SQLite then says that the log must be recovered, which is over at once.
    """
    deadline = time.monotonic() + _HEADER_TIMEOUT_S
    while True:
        try:
            return driver.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            is_torn = getattr(error, "sqlite_errorname", None) == "SQLITE_READONLY_RECOVERY"
            if not is_torn or time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def _begin_postgresql(connection: Connection) -> None:
    options = connection.get_execution_options()
    begin: Begin | None = options.get(BEGIN, READ)
    if begin is AT_ONCE:
        return
    driver = driver_of(connection)
    statement = postgresql_statement(
        begin,
        inside=not driver.autocommit,
        read_only=bool(options.get("postgresql_readonly")),
    )
    with invalidated_when_lost(connection):
        # Several statements in one message need a cursor with the text protocol.
        cursor = psycopg.Cursor(driver).execute(statement)
        if begin.query is not None:
            while cursor.nextset():
                pass
            connection.info[_ANSWER] = cursor.fetchall()


def keep_answer(connection: Connection, rows: Sequence[Any]) -> None:
    """Store the rows of the query that was sent with the begin, for `answer`."""
    connection.info[_ANSWER] = rows


def answer(connection: Connection) -> Sequence[Any]:
    """Return the rows of the query that was sent with the begin."""
    rows: Sequence[Any] = connection.info.pop(_ANSWER)
    return rows


class _Thread(threading.local):
    """What a thread does with transactions.

    Attributes:
        joined: The transaction that reads and writes of this thread use in place of their own.
        working: Engines on which a function of the user has a transaction open.
    """

    joined: Connection | None = None
    working: tuple[Engine, ...] = ()


_thread = _Thread()


@contextmanager
def working(connection: Connection) -> Iterator[None]:
    """Note that a function of the user runs in a transaction, whose calls `joined` marks.

    Another write to the same database would wait for this transaction, and it for that.
    """
    before, _thread.working = _thread.working, (*_thread.working, connection.engine)
    try:
        yield
    finally:
        _thread.working = before


@contextmanager
def joined(connection: Connection) -> Iterator[None]:
    """Let reads and writes of this thread use the transaction of a connection."""
    before, _thread.joined = _thread.joined, connection
    try:
        yield
    finally:
        _thread.joined = before


def _is_same(one: Engine, other: Engine) -> bool:
    """Return True for engines of one database: a process may have made another one meanwhile."""
    return one is other or (one.url == other.url and not is_memory(one.url))


def is_joined() -> bool:
    """Return True if the calls of this thread are part of a transaction that goes on."""
    return _thread.joined is not None


def joined_connection(engine: Engine) -> Connection | None:
    """Return the connection that calls of this thread use; None: they begin their own one."""
    connection = _thread.joined
    return connection if connection is not None and _is_same(connection.engine, engine) else None


def is_working(engine: Engine) -> bool:
    """Return True if a function of the user has a transaction open in this thread."""
    return any(_is_same(other, engine) for other in _thread.working)


def check_not_working(engine: Engine) -> None:
    """Check that a write does not wait for a transaction of this thread.

    Raises:
        ArgumentError: It would.
    """
    if is_working(engine):
        raise ArgumentError(
            "this call would wait for the transaction around it: in the function that "
            "transaction() calls, write with what it gets, as in tx.store_batch(rows), and not "
            "with a buffer"
        )


@contextmanager
def snapshot(
    engine: Engine, query: str | None = None, *, in_order: bool = False
) -> Iterator[Connection]:
    """Begin a transaction that reads one state of the database throughout; see `Begin`."""
    with reading(engine, Begin(snapshot=True, query=query, in_order=in_order)) as connection:
        if query is not None and not connection.in_transaction():
            connection.begin()
        yield connection


@contextmanager
def reading(engine: Engine, begin: Begin | None = READ) -> Iterator[Connection]:
    """Return a connection whose transactions begin in one way; what they write is not committed.

    Where calls are part of a transaction (`joined`), it is the connection of that.
    """
    joined_here = joined_connection(engine)
    if joined_here is not None:
        if begin is not None and begin.query is not None:
            keep_answer(joined_here, driver_of(joined_here).execute(begin.query).fetchall())
        yield joined_here
        return
    with connected(engine) as connection, invalidated_when_lost(connection):
        yield connection.execution_options(**{BEGIN: begin})


@contextmanager
def file_writer(engine: Engine, begin: Begin) -> Iterator[Connection]:
    """Begin a transaction of the writer of a file, who holds its lock, and commit it at the end.

    The driver does that: SQLAlchemy takes as long as some of the statements.
    """
    with connected(engine) as connection:
        driver = driver_of(connection)
        begin_sqlite(connection, begin)
        try:
            yield connection
            if connection.in_transaction():  # SQLAlchemy has run a statement
                connection.commit()
            else:
                driver.commit()
        except BaseException:
            with suppress(sqlite3.Error):
                driver.rollback()
            raise


@contextmanager
def invalidated_when_lost(connection: Connection) -> Iterator[None]:
    """Drop a connection that is lost, or interrupted, while the driver is used directly.

    The pool would try to roll it back, and log that it cannot. A file cannot be lost. Any exception
    may be an interrupt: the handler of a signal raises what it wants.
    """
    try:
        yield
    except BaseException:
        if connection.closed or connection.invalidated:  # by SQLAlchemy, which ran the statement
            raise
        driver = driver_of(connection)
        if not isinstance(driver, psycopg.Connection):
            raise
        is_asked = driver.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
        if is_asked:
            _cancel(driver)
        in_pipeline = driver.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF
        if is_asked or driver.closed or in_pipeline:
            connection.invalidate()
        raise


def _cancel(driver: "psycopg.Connection[Any]") -> None:
    """Cancel what the server does for a connection, and wait for its end.

    A server ignores a cancel that overtakes the statement, so it is sent until the server answers.
    """
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    with suppress(psycopg.Error):
        while (rest := deadline - time.monotonic()) > 0:
            driver.cancel_safe(timeout=rest)
            if _is_answered(driver.pgconn, min(rest, _CANCEL_AGAIN_S)):
                return


def _is_answered(pgconn: "psycopg.pq.abc.PGconn", timeout: float) -> bool:
    """Whether the server ends its answer to the current statement within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        while (rest := deadline - time.monotonic()) > 0 and selector.select(rest):
            pgconn.consume_input()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:  # in a pipeline each statement has its own end
                    if pgconn.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
                        return True
                elif psycopg.pq.ExecStatus(result.status).name in _COPIES:
                    return True
    return False


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undo only the block if it fails: the transaction continues."""
    with connection.begin_nested(), invalidated_when_lost(connection):
        yield


def postgresql_statement(begin: Begin, *, inside: bool = False, read_only: bool = False) -> Any:
    """Return the SQL that begins a transaction.

    Args:
        begin: Options of the transaction.
        inside: The driver has begun the transaction already.
        read_only: The transaction cannot write.
    """
    return "; ".join(begin_commands(begin, inside=inside, read_only=read_only))


def begin_commands(begin: Begin, *, inside: bool = False, read_only: bool = False) -> list[str]:
    """Return the statements that begin a transaction; see `postgresql_statement`."""
    level = "REPEATABLE READ" if begin.snapshot else "READ COMMITTED"
    mode = f"ISOLATION LEVEL {level}{', READ ONLY' if read_only else ''}"
    commands = [
        f"SET TRANSACTION {mode}" if inside else f"BEGIN {mode}",
        f"SET LOCAL lock_timeout = '{_lock_timeout_ms(begin)}ms'",
        f"SET LOCAL statement_timeout = '{0 if begin.patient else STATEMENT_TIMEOUT_S}s'",
        f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'",
        _NO_JIT,
    ]
    if begin.in_order:
        commands.append("SET LOCAL enable_sort = off")
    if begin.durability is not None:
        commands.append(_SYNCHRONOUS_COMMIT[begin.durability])
    if begin.query is not None:
        commands.append(begin.query)
    return commands


def _lock_timeout_ms(begin: Begin) -> int:
    if begin.wait_s is None:
        return LOCK_TIMEOUT_S * 1000
    return max(SHORTEST_WAIT_MS, min(int(begin.wait_s * 1000), LOCK_TIMEOUT_S * 1000))


def driver_of(connection: Connection) -> Any:
    """Return the driver's own connection: SQLAlchemy takes as long as a small statement."""
    return connection.connection.driver_connection


def fetch(
    connection: Connection, statement: Any, parameters: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """Return the rows of a select of whole rows, in the driver's form.

    SQLAlchemy's rows would take a third of the time of a sample.

    Args:
        connection: The transaction.
        statement: A statement, or its text in the driver's form.
        parameters: Its parameters.
    """
    result: Any
    if isinstance(statement, str):
        result = connection.exec_driver_sql(statement, dict(parameters or {}))
    else:
        result = connection.execute(statement, parameters)
    rows: Any = result.cursor.fetchall()
    result.close()
    return list(rows)
