"""Connections to SQLite that only read.

The file is opened with `mode=ro`, and an authorizer allows only what a SELECT needs. With `mode=ro`
alone `VACUUM INTO` and `ATTACH` write files, and a PRAGMA switches `query_only` off.
"""

import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlbuffer.errors import ReadLimitError, StorageReadOnlyError
from sqlbuffer.storage.database.guarding.read_limits import MAX_GROWTH_BYTES, memory_peak_bytes
from sqlbuffer.storage.database.sqlite_connections import FileConnection

# Steps of SQLite's machine between two checks of the limits. A step makes at most one value. Python
# notices Ctrl-C there, too.
_STEPS_BETWEEN_LOOKS = 500
# Limits of a statement of a user: on the bytes of a value, and on the columns of a result.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 16 * 2**20,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
}

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
# PRAGMAs that the library runs when it opens a buffer; statements of users cannot. They change no
# data.
LOOKS = frozenset({("journal_mode", None), ("table_info", "sqlbuffer_alembic_version")})
# The library also reads large payloads with few pages in memory: a setting of the connection alone.
_SETTING = "cache_size"
_WRITES = {
    "ANALYZE", "ATTACH", "DELETE", "DETACH", "INSERT", "PRAGMA", "REINDEX", "SAVEPOINT",
    "TRANSACTION", "UPDATE",
}  # fmt: skip
_ACTIONS = {
    getattr(sqlite3, name): name.removeprefix("SQLITE_").replace("_", " ")
    for name in dir(sqlite3)
    if name.startswith(("SQLITE_CREATE", "SQLITE_DROP", "SQLITE_ALTER"))
    or name.removeprefix("SQLITE_") in _WRITES
}
# They load code, or return the address of code. The last three exist in SQLite's own shell.
_REFUSED_OF_SQLITE = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}


class GuardedConnection(FileConnection):
    """A connection to a SQLite file that only reads, within limits.

    The library begins and ends transactions on it; a statement of a user cannot.

    Attributes:
        ends_at: Deadline on the clock of `time.monotonic`; None for no limit.
        passed: Limit that ended a statement.
        denied: Last action that the authorizer refused.
        looks: The PRAGMAs that are allowed, and their values.
    """

    ends_at: float | None = None
    passed: str | None = None
    denied: str | None = None
    looks = LOOKS
    _is_trusted = True
    _most_bytes = sys.maxsize

    def guard(self) -> None:
        """Refuse every action except reading from now on."""
        # At their first use SQLite asks the authorizer if it may write the schema.
        self.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").fetchall()
        self._is_trusted = False
        self.set_authorizer(self._authorize)
        self.set_progress_handler(self._look, _STEPS_BETWEEN_LOOKS)

    def begin(self, time_s: float | None) -> None:
        """Begin a transaction.

        Args:
            time_s: Time limit in seconds; None for no limit on time and memory.
        """
        self.passed = self.denied = None
        if time_s is not None:
            self.ends_at = time.monotonic() + time_s
            self._most_bytes = memory_peak_bytes() + MAX_GROWTH_BYTES
        with self._trusted():
            self.execute("BEGIN")

    def rollback(self) -> None:
        """End the transaction."""
        self.ends_at, self._most_bytes = None, sys.maxsize
        with self._trusted():
            super().rollback()

    def commit(self) -> None:
        """End the transaction, which has changed no data."""
        self.rollback()

    @contextmanager
    def _trusted(self) -> Iterator[None]:
        before, self._is_trusted = self._is_trusted, True
        try:
            yield
        finally:
            self._is_trusted = before

    def _authorize(self, action: int, first: Any, second: Any, *_: Any) -> int:
        is_allowed = action in _ALLOWED and not (
            action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _REFUSED_OF_SQLITE
        )
        is_known = (first, second) in self.looks or (bool(self.looks) and first == _SETTING)
        is_look = action == sqlite3.SQLITE_PRAGMA and is_known
        if self._is_trusted or is_allowed or is_look:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            self.denied = f"{second}()"
        else:
            self.denied = f"{_ACTIONS.get(action, action)} {first or ''}".strip()
        return sqlite3.SQLITE_DENY

    def _look(self) -> bool:
        """Return True to end the statement."""
        if self.ends_at is not None and time.monotonic() > self.ends_at:
            self.passed = "time"
        elif memory_peak_bytes() > self._most_bytes:
            self.passed = "memory"
        return self.passed is not None


@contextmanager
def answering(
    connection: GuardedConnection, statement: str, parameters: Mapping[str, Any] | None
) -> Iterator[sqlite3.Cursor]:
    """Yield the cursor of a user's statement, in a transaction.

    Raises:
        StorageReadOnlyError: The statement does more than read.
    """
    before = connection.text_factory, connection.looks
    connection.looks = frozenset()
    # Text that another program stored may not be UTF-8.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        yield connection.execute(statement, parameters or {})
    except sqlite3.DatabaseError as error:
        if connection.denied is not None:
            raise StorageReadOnlyError(
                f"{connection.denied} is refused: this connection is read-only; write a SELECT"
            ) from error
        raise
    finally:
        connection.text_factory, connection.looks = before


@contextmanager
def small_values(connection: GuardedConnection) -> Iterator[None]:
    """Limit the values of statements in the block to 16 MiB, and their columns to 500."""
    before = {kind: connection.setlimit(kind, limit) for kind, limit in _LIMITS.items()}
    try:
        yield
    except sqlite3.DataError as error:
        if "too big" not in str(error):
            raise
        raise ReadLimitError(
            "the statement makes a value of more than 16 MiB; ask for a part of it, as by substr"
        ) from error
    finally:
        for kind, limit in before.items():
            connection.setlimit(kind, limit)
