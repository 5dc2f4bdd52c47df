"""Connections to SQLite that only read, for the statements of the library.

Statements of users run in processes of their own; see `statement_process`.
"""

import sqlite3
from typing import Any

from sqlbuffer.storage.database.guarding.read_limits import MAX_GROWTH_BYTES
from sqlbuffer.storage.database.guarding.statement_worker import Guard
from sqlbuffer.storage.database.sqlite import FileConnection

# PRAGMAs that the library runs when it opens a buffer, and to read large payloads with few pages in
# memory. They change no data.
_LOOKS = frozenset(
    {("journal_mode", None), ("table_info", "sqlbuffer_alembic_version"), ("cache_size", "*")}
)
# Limits of a statement of a user: on the bytes of a value, and on the columns of a result.
SMALL_VALUES = (
    (sqlite3.SQLITE_LIMIT_LENGTH, 16 * 2**20),
    (sqlite3.SQLITE_LIMIT_COLUMN, 500),
)


class GuardedConnection(FileConnection):
    """A connection to a SQLite file that only reads, within limits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._guard = Guard(_LOOKS)
        super().__init__(*args, **kwargs)

    @property
    def passed(self) -> str | None:
        """Limit that ended a statement."""
        return self._guard.passed

    def guard(self) -> None:
        """Refuse every action except reading from now on."""
        self._guard.watch(self)

    def begin(self, time_s: float | None) -> None:
        """Begin a transaction.

        Args:
            time_s: Time limit in seconds; None for no limit on time and memory.
        """
        self._guard.limit(time_s, None if time_s is None else MAX_GROWTH_BYTES)
        with self._guard.trusted():
            self.execute("BEGIN")

    def rollback(self) -> None:
        """End the transaction."""
        self._guard.unlimit()
        with self._guard.trusted():
            super().rollback()

    def commit(self) -> None:
        """End the transaction, which has changed no data."""
        self.rollback()
