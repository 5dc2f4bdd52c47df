"""Connections and transactions of PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from sqlbuffer.storage.database.transactions import (
    AT_ONCE,
    BEGIN,
    Begin,
    check_not_held,
    driver_of,
    invalidated_when_lost,
    reading,
)

# Without statistics the planner expects only a few rows of a queue, and would sort all of them.
_IN_ORDER = "; ".join(f"SET LOCAL enable_{way} = off" for way in ("bitmapscan", "seqscan", "sort"))


@contextmanager
def writing(
    engine: Engine,
    durability: str | None = None,
    query: str | None = None,
    wait_s: float | None = None,
) -> Iterator[Connection]:
    """Begin a transaction that writes; see `Begin`.

    It is committed at the end of the block, and rolled back on an exception.
    """
    check_not_held(engine)
    options = {BEGIN: Begin(writes=True, durability=durability, query=query, wait_s=wait_s)}
    with (
        engine.connect().execution_options(**options) as connection,
        connection.begin(),
        invalidated_when_lost(connection),
    ):
        yield connection


@contextmanager
def claiming(engine: Engine, durability: str | None, query: str) -> Iterator[Connection]:
    """Begin a transaction that claims rows of a queue; see `Begin.query`."""
    with writing(engine, durability, f"{_IN_ORDER}; {query}") as connection:
        yield connection


@contextmanager
def hurried(engine: Engine, wait_s: float = 0.0) -> Iterator[Connection]:
    """Begin a transaction for writes that can be left out.

    It waits `wait_s` for other writers, at least 20 ms, and does not wait for the disk.
    """
    with writing(engine, "relaxed", wait_s=wait_s) as connection:
        yield connection


@contextmanager
def at_once(engine: Engine) -> Iterator[Connection]:
    """Return a connection on which each statement is a transaction of its own.

    The statements only read, and few rows; see `transactions.AT_ONCE`.
    """
    with reading(engine, AT_ONCE) as connection:
        if not driver_of(connection).autocommit:  # an engine of the user's
            connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


def reuse_log(engine: Engine) -> bool:
    """Return False: the log of a server is not on the way of a write."""
    return False


def make_room(engine: Engine) -> str:
    """Return advice for a disk without room for a deletion; the library can do nothing here."""
    return (
        "a deletion writes to the disk of the server as well: free a few megabytes "
        "there (a dropped table frees its space immediately), then delete again"
    )
