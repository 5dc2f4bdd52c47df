"""The connection of a file's writers, which they keep from one transaction to the next.

One transaction writes to a file at a time, so one connection serves them all. To check one out of
the pool for each, and to let SQLAlchemy begin and commit, took a tenth of the time of a write.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from sqlalchemy import Connection, Engine, Pool
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError

from sqlbuffer.processes import at_process_end, own_pid
from sqlbuffer.storage.database.sqlite import pause_use, resume_use
from sqlbuffer.storage.database.transactions import BEGIN, Begin, begin_sqlite, driver_of


class _Kept(NamedTuple):
    pid: int
    pool: Pool
    connection: Connection


_mutex = threading.Lock()
# Of each engine that keeps one; None while it is in use.
_kept: dict[Engine, _Kept | None] = {}


def keep_writer(engine: Engine) -> None:
    """Let the writers of an engine of a file keep their connection, until `drop_writer`."""
    _kept[engine] = None
    at_process_end(_drop_all)


def drop_writer(engine: Engine) -> None:
    """Give the kept connection back to the pool; from now on, each one is given back after use."""
    with _mutex:
        kept = _kept.pop(engine, None)
    if kept is not None and kept.pid == own_pid():
        kept.connection.close()


def _drop_all() -> None:
    for engine in list(_kept):
        drop_writer(engine)


@contextmanager
def file_writer(engine: Engine, begin: Begin) -> Iterator[Connection]:
    """Begin a transaction of the writer of a file, which holds its lock; otherwise as `writing`.

    On a kept connection, SQLAlchemy begins nothing until it runs a statement itself.
    """
    if engine not in _kept:
        options = {BEGIN: begin}
        with engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection
        return
    pool, connection = engine.pool, _taken(engine)
    try:
        begin_sqlite(connection, begin)
        yield connection
        if connection.in_transaction():
            connection.commit()
        else:
            driver_of(connection).commit()
    except BaseException:
        _give_back(connection)
        raise
    _keep(engine, _Kept(own_pid(), pool, connection))


def _taken(engine: Engine) -> Connection:
    """Return the kept connection, or another one."""
    with _mutex:
        kept = _kept.get(engine)
        if kept is not None and kept.pid == own_pid():
            _kept[engine] = None
        else:  # in use, or another process's
            kept = None
    if kept is not None:
        if kept.pool is not engine.pool:  # it was disposed of
            kept.connection.close()
            return engine.connect()
        try:
            resume_use(driver_of(kept.connection))
        except DisconnectionError:  # a fork closed it
            kept.connection.invalidate()
            kept.connection.close()
        else:
            return kept.connection
    return engine.connect()


def _keep(engine: Engine, kept: _Kept) -> None:
    pause_use(driver_of(kept.connection))
    with _mutex:
        is_kept = engine in _kept and _kept[engine] is None
        if is_kept:
            _kept[engine] = kept
    if not is_kept:
        kept.connection.close()


def _give_back(connection: Connection) -> None:
    """Undo a transaction, and give its connection back to the pool."""
    with suppress(sqlite3.Error, SQLAlchemyError):
        if connection.in_transaction():
            connection.rollback()
        elif not (connection.closed or connection.invalidated):
            driver_of(connection).rollback()
    connection.close()
