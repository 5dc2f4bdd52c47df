"""The connections of a file that stay checked out of their pool from one transaction to the next.

To check one out for each transaction took up to a tenth of the time of a write or a draw. Writers
and readers use the same ones: SQLite drops the pages that a connection has cached when another one
has written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Pool
from sqlalchemy.exc import DisconnectionError

from sqlbuffer.processes import ForkLock, at_process_end, own_pid
from sqlbuffer.storage.database.sqlite import pause_use, resume_use

# Of one process: a thread that writes, and one that draws.
MOST_KEPT = 2


class _Kept(NamedTuple):
    pid: int
    pool: Pool
    connection: Connection
    driver: Any


_mutex = ForkLock()
# Of each engine that keeps some, those that are not in use; the one that was used last is the last.
_kept: dict[Engine, list[_Kept]] = {}


def keep_connections(engine: Engine) -> None:
    """Let transactions of an engine of a file keep their connections, until `drop_connections`."""
    _kept[engine] = []
    at_process_end(_drop_all)


def drop_connections(engine: Engine) -> None:
    """Give the kept connections back to their pool; from now on, each goes back after its use."""
    with _mutex:
        kept = _kept.pop(engine, [])
    for one in kept:
        if one.pid == own_pid():
            one.connection.close()


def _drop_all() -> None:
    for engine in list(_kept):
        drop_connections(engine)


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """Return a connection, whose transaction is undone at the end if it was not committed."""
    if engine not in _kept:
        with engine.connect() as connection:
            yield connection
        return
    pool, connection = engine.pool, _taken(engine) or engine.connect()
    try:
        yield connection
        if connection.in_transaction():
            connection.rollback()
    except BaseException:
        connection.close()
        raise
    driver = connection.connection.driver_connection
    _keep(engine, _Kept(own_pid(), pool, connection, driver))


def _taken(engine: Engine) -> Connection | None:
    """Return a kept connection; None if there is none, or other threads use them."""
    with _mutex:
        of_engine = _kept.get(engine)
        if not of_engine or of_engine[-1].pid != own_pid():
            return None
        kept = of_engine.pop()
    if kept.pool is engine.pool:
        try:
            resume_use(kept.driver)
        except DisconnectionError:  # a fork closed it
            kept.connection.invalidate()
        else:
            return kept.connection
    kept.connection.close()
    return None


def _keep(engine: Engine, kept: _Kept) -> None:
    pause_use(kept.driver)
    with _mutex:
        of_engine = _kept.get(engine)
        is_kept = of_engine is not None and len(of_engine) < MOST_KEPT
        if of_engine is not None and is_kept:
            of_engine.append(kept)
    if not is_kept:
        kept.connection.close()
