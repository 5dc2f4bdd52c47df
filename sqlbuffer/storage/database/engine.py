"""One small pool of connections per URL and process, and the settings of a new connection."""

import itertools
import logging
import os
import threading
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from sqlbuffer.config import DEFAULT_URL, url_of_environment
from sqlbuffer.errors import StorageReadOnlyError, URLError
from sqlbuffer.storage.database.kept_connections import drop_connections, keep_connections
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.sqlite import listen_to_connections, prepare, warn_of_network
from sqlbuffer.storage.database.transactions import driver_of, listen_postgresql, listen_sqlite
from sqlbuffer.storage.database.urls import (
    URL_FORMS,
    Database,
    check_characters,
    is_immutable,
    is_memory,
    key_of,
    parsed_url,
    shown_url,
    sqlite_path,
    unread_log,
    url_of_path,
    with_options_of_sqlite,
)
from sqlbuffer.storage.schema.expressions import TransactionId

logger = logging.getLogger("sqlbuffer")

# Connections that a process keeps open to a database, and opens in addition while all are in use.
POOL_SIZE = 5
SPARE_CONNECTIONS = {"sqlite": 20, "postgresql": 5}
CONNECT_TIMEOUT_S = 10
BUSY_TIMEOUT_S = 30.0
OTHER_DATABASES = ("duckdb", "mariadb", "mongodb", "mssql", "mysql", "oracle", "redis")
IDLE_BEFORE_PING_S = 1.0

# WAL lets readers read while one writes, and needs one fsync a checkpoint instead of two a commit.
# It is a property of the file, so it is set once, by the process that creates the schema.
SQLITE_FILE_PRAGMAS = ("PRAGMA journal_mode = WAL",)

_lock = threading.Lock()
_engines: dict[Hashable, Engine] = {}
_inherited: list[Engine] = []
_numbers = itertools.count(1)
_epochs: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()
_adopted: WeakKeyDictionary[Engine, Engine] = WeakKeyDictionary()
_adopted_sqlite: WeakSet[Engine] = WeakSet()


class _Pool(QueuePool):
    """Drops each connection that comes back after the pool was closed."""

    _sqla_logger_namespace = "sqlalchemy.pool.impl.QueuePool"  # or it would log as this library
    _is_closed = False

    def dispose(self) -> None:
        self._is_closed = True
        super().dispose()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        super()._do_return_conn(record)
        # Checked after the return: the pool may be closed in between.
        if self._is_closed:
            super().dispose()


def resolve_url(url: Database) -> URL:
    """Return the URL in full: default from the settings, driver named, SQLite path absolute.

    Raises:
        URLError: Not a URL of SQLite or PostgreSQL, nor the path of a SQLite file.
    """
    if isinstance(url, Engine):
        url = url.url
    named = url_of_environment() if url is None else url
    named = DEFAULT_URL if named is None else named
    resolved = url_of_path(named) or parsed_url(named)
    backend = resolved.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return _resolve_postgresql(resolved)
    if backend == "sqlite":
        return _resolve_sqlite(resolved)
    # Only a known name is shown: this part may belong to a password.
    addition = f", not {backend}" if backend in OTHER_DATABASES else ""
    raise URLError(f"sqlbuffer speaks SQLite and PostgreSQL{addition}; write {URL_FORMS}")


_is_logged = False


def log_default(url: URL, name: str) -> None:
    """Log where a buffer is that was opened without a URL.

    If the environment has no URL either, it is a warning, because people see it without settings of
    logging; once in a process.

    Args:
        url: The default URL, resolved.
        name: The buffer.
    """
    global _is_logged
    if url_of_environment() is not None:
        logger.info("buffer %r is in %s, by SQLBUFFER_URL", name, shown_url(url))
    elif not _is_logged:
        _is_logged = True
        logger.warning(
            "no url was given, so buffer %r is in %s; give one, such as url='sqlite:///replay.db', "
            "or set SQLBUFFER_URL",
            name, shown_url(url),
        )  # fmt: skip


def _resolve_postgresql(url: URL) -> URL:
    driver = url.drivername.partition("+")[2]
    if driver not in ("", "psycopg"):
        raise URLError(
            "sqlbuffer uses psycopg 3; write postgresql:// or postgresql+psycopg://, without "
            "another driver"
        )
    check_characters(url)
    return url.set(drivername="postgresql+psycopg")


def _resolve_sqlite(url: URL) -> URL:
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise URLError("sqlbuffer uses Python's sqlite3; write sqlite:///, without another driver")
    if url.host or url.username or url.password or url.port:
        raise URLError("a SQLite URL names no host; write sqlite:///replay.db, with three slashes")
    if is_memory(url):
        return url
    if not (url.database or "").startswith("file:"):
        url = url.set(database=str(Path(url.database or "").expanduser().absolute()))
    check_characters(url)  # after the working folder was added
    return with_options_of_sqlite(url)


def engine_for(url: URL) -> Engine:
    """Return this process's engine of a resolved URL; the same one each time."""
    key = key_of(url)
    with _lock:
        if key not in _engines:
            _engines[key] = _create(url)
        return _engines[key]


def server_epoch(engine: Engine) -> int:
    """Return a number that changes when the server may have crashed.

    State of the server that was remembered under another number is no longer valid.
    """
    return _epochs.setdefault(engine, next(_numbers))


def begin_epoch(engine: Engine) -> None:
    """Note that a connection was lost."""
    _epochs[engine] = next(_numbers)


def close_idle(url: URL) -> None:
    """Drop this process's engine of a URL and close its idle connections."""
    key = key_of(url)
    with _lock:
        engine = _engines.pop(key, None)
    if engine is not None:
        drop_connections(engine)
        engine.dispose()
        # Close once more, for threads that had the engine before and continue with the new pool.
        engine.pool.dispose()


def own_engine(url: Database, resolved: URL) -> Engine | None:
    """Return the engine of one buffer alone; None for the process's shared engine.

    It is the user's engine, or a new one for a database in memory.

    Raises:
        URLError: An engine of another driver, or of a SQLite database in memory that threads do not
            share.
    """
    if isinstance(url, Engine):
        return _adopt(url)
    return _create(resolved) if is_memory(resolved) else None


def adopt_as_it_is(engine: Engine) -> None:
    """Make buffers that are opened on an engine use it unchanged.

    The engine begins transactions in its own way.
    """
    _adopted[engine] = engine


def _adopt(engine: Engine) -> Engine:
    if engine in _adopted:
        return _adopted[engine]
    if engine.dialect.name != "sqlite":
        # A separate engine over the same pool: the user's transactions begin as before.
        _adopted[engine] = engine.execution_options()
        listen_postgresql(_adopted[engine])
        return _adopted[engine]
    if is_memory(engine.url) and not isinstance(engine.pool, (StaticPool, QueuePool)):
        raise URLError(
            "an engine on a SQLite database in memory must be made with poolclass=StaticPool"
        )
    listen_sqlite(engine)
    _listen_to_files(engine)
    if not is_memory(engine.url):
        if engine not in _adopted_sqlite:
            _adopted_sqlite.add(engine)
            engine.dispose()  # it may have connections that a fork does not close
        return engine
    with engine.connect() as connection:  # it may have been opened before the listeners were added
        driver = driver_of(connection)
        prepare(driver)
    return engine


def _create(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        if not is_memory(url):
            warn_of_network(sqlite_path(url))
        # A database in memory has one connection, which is the whole database.
        sizes: dict[str, Any] = (
            {"pool_size": 1, "max_overflow": 0}
            if is_memory(url)
            else {"pool_size": POOL_SIZE, "max_overflow": SPARE_CONNECTIONS["sqlite"]}
        )
        engine = sqlite_engine(url, **sizes)
        listen_sqlite(engine)
        if not is_memory(url):
            keep_connections(engine)
        return engine
    spare = SPARE_CONNECTIONS["postgresql"]
    engine = postgresql_engine(url, pool_size=POOL_SIZE, max_overflow=spare)
    listen_postgresql(engine)
    return engine


def postgresql_engine(url: URL, **sizes: Any) -> Engine:
    """Return a new engine of a server; the caller decides how its transactions begin.

    Args:
        url: The resolved URL.
        sizes: Arguments of the pool.
    """
    from sqlbuffer.storage.database.binary_cursor import BinaryCursor

    engine = create_engine(
        url,
        poolclass=_Pool,
        # It would look for that type in the server's catalog before the first statement.
        use_native_hstore=False,
        connect_args={
            "cursor_factory": BinaryCursor,
            **{name: url.query.get(name, value) for name, value in _settings().items()},
            # Prepared statements do not survive pgbouncer in transaction mode and gain under a
            # tenth.
            "prepare_threshold": None,
            # Transactions begin in `transactions`.
            "autocommit": True,
        },
        **sizes,
    )
    # For the comparison of the models with a database.
    dialect: Any = engine.dialect
    dialect.ischema_names["xid8"] = TransactionId
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", _ping_after_idling)
    event.listen(engine, "invalidate", lambda *_: begin_epoch(engine))
    return engine


def sqlite_engine(
    url: URL, connect_args: Mapping[str, Any] = MappingProxyType({}), **sizes: Any
) -> Engine:
    """Return a new engine of a SQLite database; the caller decides how its transactions begin.

    Args:
        url: The resolved URL.
        connect_args: Arguments of the driver, in addition to the library's own.
        sizes: Arguments of the pool.
    """
    arguments = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False, **connect_args}
    engine = create_engine(url, poolclass=_Pool, connect_args=arguments, **sizes)
    _listen_to_files(engine)
    return engine


def _settings() -> dict[str, Any]:
    """Return the settings of a connection to PostgreSQL, unless the URL changes them."""
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": f"sqlbuffer {os.getpid()}",
        # A server whose machine is gone is noticed within a minute, not after two hours.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }


def _note_use(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info["used_at"] = time.monotonic()


def _ping_after_idling(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Replace a connection that died while idle in the pool; a constant ping costs a round trip."""
    if time.monotonic() - record.info.get("used_at", time.monotonic()) < IDLE_BEFORE_PING_S:
        return
    try:
        connection.execute("SELECT 1")
    except psycopg.Error as error:
        raise DisconnectionError("the connection died while idle") from error


def _listen_to_files(engine: Engine) -> None:
    if not event.contains(engine, "do_connect", _refuse_unread_log):
        event.listen(engine, "do_connect", _refuse_unread_log)
    listen_to_connections(engine, is_memory=is_memory(engine.url))


def _refuse_unread_log(_dialect: Any, _record: Any, arguments: Any, _options: Any) -> None:
    refuse_unread_log(URL.create("sqlite", database=arguments[0]))


def refuse_unread_log(url: URL) -> None:
    """Raise StorageReadOnlyError if a URL leaves out the log, and the log holds rows."""
    if is_immutable(url) and (advice := unread_log(url)):
        raise StorageReadOnlyError(f"immutable=1 reads {sqlite_path(url)} alone, and {advice}")


def _forget_engines() -> None:
    """Leave the parent's connections alone in a forked child.

    The collector must not close them either.
    """
    global _lock
    _lock = threading.Lock()
    _inherited.extend(_engines.values())
    _engines.clear()
    for engine in list(_adopted_sqlite):
        engine.dispose(close=False)  # a thread of the parent may hold the pool's locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_engines)
