"""Writes that take effect once, also over lost connections."""

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageUnreachableError
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.database.errors import ConnectionLost, translated
from sqlbuffer.storage.database.transactions import answer, joined_connection
from sqlbuffer.storage.database.urls import key_of, shown_url
from sqlbuffer.storage.dialects import by_database, writing

# An id is kept while a call is repeated, and for this much longer: a commit may take long, and a
# lost connection is noticed late.
KEPT_LONGER_S = 120.0
# A call looks for its id no later than this before the id is deleted.
MARGIN_S = 30.0
LONGEST_KEPT_S = 86_400.0

T = TypeVar("T")


@dataclass
class Commits:
    """Number of writes to a buffer that this process has committed."""

    n: int = 0


_commits: defaultdict[tuple[Hashable, int], Commits] = defaultdict(Commits)


def _sqlite_note_write(engine: Engine, buffer_id: int, write_id: str, keep_s: float) -> str | None:
    """Return None: a connection to a file is not lost."""
    return None


def _postgresql_note_write(
    engine: Engine, buffer_id: int, write_id: str, keep_s: float
) -> str | None:
    """Return the query that stores the id of a write; see `Begin.query`.

    The query returns false if the write was applied before.
    """
    return f"SELECT sqlbuffer_note_write_v1({buffer_id:d}, '{write_id}', {keep_s:f})"


note_write = by_database(sqlite=_sqlite_note_write, postgresql=_postgresql_note_write)


def commits_of(url: URL, buffer_id: int) -> Commits:
    """Return the counter of a buffer, which all its openers in this process share."""
    return _commits[key_of(url), buffer_id]


class WriteId(NamedTuple):
    """The random id of a write, which its transaction stores.

    Attributes:
        write_id: The id, a UUID.
        keep_s: Time for which the id is kept, in seconds.
        is_repeated: An earlier attempt may have stored it.
    """

    write_id: str
    keep_s: float
    is_repeated: bool = False


class WriteOnce(Generic[T]):
    """A write that takes effect once, although it may be tried again after a lost connection.

    Only the last attempt can be in doubt. Each attempt learns the outcome of the one before, since
    two transactions that store the same id wait for each other.

    Args:
        url: The database, as errors name it.
        buffer_id: The buffer.
        retry_s: Seconds for which the call is repeated; 0 for a single attempt without an id.

    Attributes:
        note: The id that the work of this attempt must store; None if it is stored already.
    """

    def __init__(self, url: URL, buffer_id: int, retry_s: float) -> None:
        self._url, self._buffer_id = url, buffer_id
        self._keep_s = min(retry_s + KEPT_LONGER_S, LONGEST_KEPT_S) if retry_s else 0.0
        self._write_id, self._began_at = "", 0.0
        self._in_doubt: list[T] = []
        self._is_repeated = False
        self.note: WriteId | None = None

    def run(
        self,
        engine: Engine,
        durability: str | None,
        work: Callable[[Connection], T],
        *,
        notes: bool = False,
        wait_s: float | None = None,
    ) -> T:
        """Run `work` in one transaction and return its result, once for all attempts.

        If an earlier attempt was committed, return the result of that one.

        Args:
            engine: The engine.
            durability: See `Begin`.
            work: Function to run in the transaction.
            notes: `work` stores `note` itself, together with other data.
            wait_s: See `Begin`.

        Raises:
            ConnectionLost: It is not known if the write was committed; run again.
            StorageUnreachableError: It can no longer be found out if the write was committed.
        """
        joined = joined_connection(engine)
        if joined is not None:  # the transaction around takes effect once
            self.note = None
            with translated(self._url):
                return work(joined)
        done: list[T] = []
        try:
            query = self._query(engine, notes)
            with (
                translated(self._url),
                writing(engine, durability, query, wait_s) as connection,
            ):
                if query is not None and not answer(connection)[0][0]:
                    return self._in_doubt[0]
                self._in_doubt = []
                done.append(work(connection))
        except ConnectionLost:
            # An attempt sends no commit before the end of its work.
            self._in_doubt = done or self._in_doubt
            raise
        commits_of(self._url, self._buffer_id).n += 1
        return done[0]

    def run_alone(self, work: Callable[[WriteId | None], T]) -> T:
        """Run `work` and return its result: one transaction, which stores the id and its result.

        Args:
            work: Function to run with the id, if one is to be stored. If the id is stored already,
                it changes nothing, and returns the result of that attempt.

        Raises:
            ConnectionLost: As `run`.
            StorageUnreachableError: As `run`.
        """
        self._begin_attempt(in_doubt=self._is_repeated)
        note = WriteId(self._write_id, self._keep_s, self._is_repeated) if self._keep_s else None
        try:
            with translated(self._url):
                result = work(note)
        except ConnectionLost:
            self._is_repeated = True
            raise
        commits_of(self._url, self._buffer_id).n += 1
        return result

    def _query(self, engine: Engine, notes: bool) -> str | None:
        """Return the query that stores the id; None if there is none, or `work` stores it."""
        self.note = None
        self._begin_attempt(in_doubt=bool(self._in_doubt))
        if not self._keep_s:
            return None
        if notes and not self._in_doubt:
            self.note = WriteId(self._write_id, self._keep_s)
            return None
        return note_write(engine, self._buffer_id, self._write_id, self._keep_s)

    def _begin_attempt(self, *, in_doubt: bool) -> None:
        """Take a new id, unless an earlier attempt may have been committed under the last one."""
        now = time.monotonic()
        if not in_doubt:
            # Use another id: the server may not have ended an attempt whose connection was lost.
            self._write_id, self._began_at = uuid7(), now
        elif now - self._began_at > self._keep_s - MARGIN_S:
            raise StorageUnreachableError(
                f"{shown_url(self._url)}: the connection was lost at a commit {self._keep_s:.0f} s "
                f"ago, and it is no longer known if the write was stored; check that before you "
                f"repeat the call"
            )
