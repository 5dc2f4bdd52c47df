"""An engine whose connections only read, within limits."""

from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from sqlbuffer.storage.database.engine import adopt_as_it_is, postgresql_engine, sqlite_engine
from sqlbuffer.storage.database.guarding.postgresql import (
    GuardedServerConnection,
    begin_reading,
    role_settings,
)
from sqlbuffer.storage.database.guarding.read_limits import TIME_S
from sqlbuffer.storage.database.guarding.sqlite import GuardedConnection
from sqlbuffer.storage.database.sqlite import existing_file
from sqlbuffer.storage.database.transactions import BEGIN, READ, Begin, driver_of, keep_answer
from sqlbuffer.storage.database.urls import with_options_of_sqlite


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
        engine = postgresql_engine(url, **sizes)
        event.listen(engine, "do_connect", _connect_postgresql)
        event.listen(engine, "connect", lambda driver, _record: _note_role(driver))
        event.listen(engine, "checkin", lambda driver, _record: _unlimit(driver))
    event.listen(engine, "begin", lambda connection: _begin(connection, time_s))
    adopt_as_it_is(engine)
    return engine


def _connect_postgresql(
    _dialect: Any, _record: Any, arguments: Any, options: Any
) -> GuardedServerConnection:
    return GuardedServerConnection.connect(*arguments, **options)


def _note_role(driver: GuardedServerConnection) -> None:
    driver.role_settings = role_settings(driver)


def _prepare(driver: GuardedConnection, record: ConnectionPoolEntry, path: Path) -> None:
    driver.guard()
    record.info["file"] = _file_id(path)


def _check_file(record: ConnectionPoolEntry, path: Path) -> None:
    """Open the file again if another file has replaced the one that was opened."""
    if record.info.get("file") != _file_id(path):
        raise DisconnectionError("another file has this name now")


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _unlimit(driver: GuardedServerConnection | None) -> None:
    if driver is not None:
        driver.unlimit()


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
    begin_reading(driver, begin, time_s)
    if begin.query is not None:
        keep_answer(connection, psycopg.Cursor(driver).execute(begin.query).fetchall())
