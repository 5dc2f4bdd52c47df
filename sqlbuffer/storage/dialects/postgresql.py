"""Whole operations as PostgreSQL does them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine

from sqlbuffer.storage.database.transactions import AT_ONCE, BEGIN, Begin, invalidated_when_lost

# Without statistics the planner takes a queue for a few rows, and would sort all of them.
_IN_ORDER = "; ".join(f"SET LOCAL enable_{way} = off" for way in ("bitmapscan", "seqscan", "sort"))


class PostgreSQL:
    """The operations that SQLite does otherwise; `sqlite.SQLite` has the same ones."""

    @contextmanager
    def writing(
        self, engine: Engine, durability: str | None = None, query: str | None = None
    ) -> Iterator[Connection]:
        """A transaction that writes: committed at the end of the block, rolled back on an
        exception.
        """
        options = {BEGIN: Begin(writes=True, durability=durability, query=query)}
        with (
            engine.connect().execution_options(**options) as connection,
            connection.begin(),
            invalidated_when_lost(connection),
        ):
            yield connection

    def make_room(self, engine: Engine) -> str:
        """Return what to do where the disk has no room for a deletion: nothing can be done here."""
        return (
            "a deletion writes to the disk of the server as well: free a few megabytes there (a "
            "table that is dropped gives its space back at once), then delete again"
        )

    @contextmanager
    def claiming(self, engine: Engine, durability: str | None, query: str) -> Iterator[Connection]:
        """A transaction that claims rows of a queue; see `Begin.query`."""
        with self.writing(engine, durability, f"{_IN_ORDER}; {query}") as connection:
            yield connection

    @contextmanager
    def at_once(self, engine: Engine) -> Iterator[Connection]:
        """A connection whose statements are each its own transaction: they only read, and few
        rows (see `transactions.AT_ONCE`).
        """
        with engine.connect().execution_options(**{BEGIN: AT_ONCE}) as connection:
            driver: Any = connection.connection.driver_connection
            if not driver.autocommit:  # an engine of the user's
                connection.execution_options(isolation_level="AUTOCOMMIT")
            with invalidated_when_lost(connection):
                yield connection

    @contextmanager
    def hurried(self, engine: Engine, wait_s: float = 0.0) -> Iterator[Connection]:
        """A transaction that writes what can be left out as well: it waits for others so long at
        most, or 20 ms, and not for the disk.
        """
        with self.writing(engine, "relaxed") as connection:
            timeout_ms = max(20, int(wait_s * 1000))
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {timeout_ms}")
            yield connection

    @contextmanager
    def snapshot(self, engine: Engine, query: str | None = None) -> Iterator[Connection]:
        """A transaction that reads one state of the database throughout; see `Begin.query`."""
        options = {BEGIN: Begin(snapshot=True, query=query)}
        with engine.connect().execution_options(**options) as connection:
            if query is not None:
                connection.begin()
            yield connection

    def lock(self, connection: Connection, buffer_id: int) -> None:
        """Hold the row of a buffer until the transaction ends, as any writer may."""
        _driver(connection).execute("SELECT sqlbuffer_lock_v1(%s::integer)", (buffer_id,))


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver_connection: Any = connection.connection.driver_connection
    return driver_connection  # type: ignore[no-any-return]
