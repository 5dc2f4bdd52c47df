"""The connections of a file that stay checked out of their pool from one transaction to the next.

One transaction writes to a file at a time, so one connection serves all writers of a process. Those
that read one after the other take turns with one as well. To check a connection out of the pool for
each transaction took up to a tenth of the time of a write or a draw.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Engine, Pool
from sqlalchemy.exc import DisconnectionError

from sqlbuffer.processes import at_process_end, own_pid
from sqlbuffer.storage.database.sqlite import pause_use, resume_use

Kind = Literal["reader", "writer"]


class _Kept(NamedTuple):
    pid: int
    pool: Pool
    connection: Connection


_mutex = threading.Lock()
# Of each engine that keeps some, those that are not in use.
_kept: dict[Engine, dict[Kind, _Kept]] = {}


def keep_connections(engine: Engine) -> None:
    """Let transactions of an engine of a file keep their connections, until `drop_connections`."""
    _kept[engine] = {}
    at_process_end(_drop_all)


def drop_connections(engine: Engine) -> None:
    """Give the kept connections back to their pool; from now on, each goes back after its use."""
    with _mutex:
        kept = _kept.pop(engine, {})
    for one in kept.values():
        if one.pid == own_pid():
            one.connection.close()


def _drop_all() -> None:
    for engine in list(_kept):
        drop_connections(engine)


@contextmanager
def connected(engine: Engine, kind: Kind) -> Iterator[Connection]:
    """Return a connection, whose transaction is undone at the end if it was not committed."""
    if engine not in _kept:
        with engine.connect() as connection:
            yield connection
        return
    pool, connection = engine.pool, _taken(engine, kind) or engine.connect()
    try:
        yield connection
        if connection.in_transaction():
            connection.rollback()
        elif _driver_of(connection).in_transaction:
            _driver_of(connection).rollback()
    except BaseException:
        connection.close()
        raise
    _keep(engine, kind, _Kept(own_pid(), pool, connection))


def _taken(engine: Engine, kind: Kind) -> Connection | None:
    """Return the kept connection; None if there is none, or another thread uses it."""
    with _mutex:
        of_engine = _kept.get(engine, {})
        kept = of_engine.get(kind)
        if kept is None or kept.pid != own_pid():
            return None
        del of_engine[kind]
    if kept.pool is engine.pool:
        try:
            resume_use(_driver_of(kept.connection))
        except DisconnectionError:  # a fork closed it
            kept.connection.invalidate()
        else:
            return kept.connection
    kept.connection.close()
    return None


def _keep(engine: Engine, kind: Kind, kept: _Kept) -> None:
    pause_use(_driver_of(kept.connection))
    with _mutex:
        of_engine = _kept.get(engine)
        is_kept = of_engine is not None and of_engine.setdefault(kind, kept) is kept
    if not is_kept:
        kept.connection.close()


def _driver_of(connection: Connection) -> Any:
    return connection.connection.driver_connection
