"""Connections and transactions, as each database needs them.

An operation of one capability is in the folder of that capability instead, in its modules `sqlite`
and `postgresql`.
"""

from contextlib import AbstractContextManager

from sqlalchemy import Connection, Engine

from sqlbuffer.errors import StorageBusyError
from sqlbuffer.storage.database.transactions import is_held
from sqlbuffer.storage.dialects import postgresql, sqlite
from sqlbuffer.storage.dialects.by_database import by_database

writing = by_database(sqlite=sqlite.writing, postgresql=postgresql.writing)
claiming = by_database(sqlite=sqlite.claiming, postgresql=postgresql.claiming)
_hurried = by_database(sqlite=sqlite.hurried, postgresql=postgresql.hurried)
at_once = by_database(sqlite=sqlite.at_once, postgresql=postgresql.at_once)
reuse_log = by_database(sqlite=sqlite.reuse_log, postgresql=postgresql.reuse_log)
make_room = by_database(sqlite=sqlite.make_room, postgresql=postgresql.make_room)


def hurried(engine: Engine, wait_s: float = 0.0) -> AbstractContextManager[Connection]:
    """Begin a transaction for writes that can be left out.

    It waits `wait_s` for other writers, and not for a transaction of this thread.

    Raises:
        StorageBusyError: Another writer is active.
    """
    if is_held(engine):
        raise StorageBusyError("a transaction of this thread is open")
    return _hurried(engine, wait_s)
