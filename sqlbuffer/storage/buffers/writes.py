"""Writes that take effect once, also over lost connections."""

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from sqlbuffer.errors import SQLBufferError, StorageUnreachableError
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.database.errors import ConnectionLost, translated
from sqlbuffer.storage.database.pipelines import Rows, Statement, run_transaction
from sqlbuffer.storage.database.transactions import answer, joined_connection
from sqlbuffer.storage.database.urls import key_of, shown_url
from sqlbuffer.storage.dialects import writing

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
    two transactions that store the same id wait for each other. Files need no ids: their
    connections are not lost.

    An attempt is also in doubt after an interrupt: the next one is of a later call.

    Args:
        url: The database, as errors name it.
        buffer_id: The buffer.
        retry_s: Seconds for which the call is repeated; 0 for a single attempt without an id.
        is_queued: Attempts go on until one succeeds, also when the id is no longer kept.

    Attributes:
        note: The id that the work of this attempt must store; None if it is stored already.
    """

    def __init__(
        self, url: URL, buffer_id: int, retry_s: float, *, is_queued: bool = False
    ) -> None:
        self._url, self._buffer_id, self._is_queued = url, buffer_id, is_queued
        has_id = retry_s > 0 and url.get_backend_name() == "postgresql"
        self._keep_s = min(retry_s + KEPT_LONGER_S, LONGEST_KEPT_S) if has_id else 0.0
        self._write_id, self._began_at = "", 0.0
        # An attempt with the last id may have been committed, with this result if `run` made it.
        self._in_doubt = self._must_look = self._was_alone = False
        self._results: list[T] = []
        self.note: WriteId | None = None

    def must_look(self) -> bool:
        """Return True if the work must look for its own steps in the buffer.

        An earlier attempt may have stored them, and no id tells.
        """
        if self._in_doubt and (not self._keep_s or (self._is_queued and self._is_forgotten())):
            self._must_look, self._in_doubt = True, False
        return self._must_look

    def may_run_alone(self) -> bool:
        """Return False if `run` must repeat the work.

        An attempt of `run` that is in doubt may have stored a part of it, or nothing tells what it
        has stored.
        """
        return not self.must_look() and (self._was_alone or not self._in_doubt)

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
        query = self._query(notes)
        try:
            with (
                translated(self._url),
                writing(engine, durability, query, wait_s) as connection,
            ):
                if query is not None and not answer(connection)[0][0]:
                    return self._results[0]
                self._in_doubt = False
                done.append(work(connection))
                # An attempt sends no commit before the end of its work.
                self._in_doubt, self._was_alone, self._results = True, False, done
        except SQLBufferError as error:
            if done and not isinstance(error, ConnectionLost):  # the server has refused the commit
                self._in_doubt = False
            raise
        commits_of(self._url, self._buffer_id).n += 1
        return done[0]

    def run_alone(
        self,
        engine: Engine,
        durability: str | None,
        make: Callable[[Connection, WriteId | None], Statement],
    ) -> Rows:
        """Run one statement in a transaction of its own, and return its rows.

        If it returns a null, it has changed nothing. Only if `may_run_alone`.

        Args:
            engine: The engine.
            durability: See `Begin`.
            make: Function that returns the statement, which stores the id if one is given. If the
                id is stored already, it changes nothing, and returns the rows of that attempt.

        Raises:
            ConnectionLost: As `run`.
            StorageUnreachableError: As `run`.
        """
        self._begin_attempt()
        was_in_doubt = self._in_doubt
        note = WriteId(self._write_id, self._keep_s, was_in_doubt) if self._keep_s else None

        def made(connection: Connection) -> Statement:
            statement = make(connection, note)
            self._in_doubt = self._was_alone = True  # it is sent now
            self._results = []
            return statement

        try:
            with translated(self._url):
                rows = run_transaction(engine, made, durability)
        except SQLBufferError as error:
            if not isinstance(error, ConnectionLost):  # nothing of this attempt is stored
                self._in_doubt = was_in_doubt
            raise
        if rows == [(None,)]:
            self._in_doubt = was_in_doubt
        else:
            commits_of(self._url, self._buffer_id).n += 1
        return rows

    def _query(self, notes: bool) -> str | None:
        """Return the query that stores the id; None if there is none, or `work` stores it.

        It returns false if an attempt with this id was committed.
        """
        self.note = None
        self._begin_attempt()
        if not self._keep_s:
            return None
        if notes and not self._in_doubt:
            self.note = WriteId(self._write_id, self._keep_s)
            return None
        return (
            f"SELECT sqlbuffer_note_write_v1({self._buffer_id:d}, '{self._write_id}', "
            f"{self._keep_s:f})"
        )

    def _is_forgotten(self) -> bool:
        """Return True if the server may have deleted the id."""
        return time.monotonic() - self._began_at > self._keep_s - MARGIN_S

    def _begin_attempt(self) -> None:
        """Take a new id, unless an earlier attempt may have been committed under the last one."""
        self.must_look()
        if not self._in_doubt:
            # Use another id: the server may not have ended an attempt whose connection was lost.
            self._write_id, self._began_at = uuid7(), time.monotonic()
        elif self._is_forgotten():
            raise StorageUnreachableError(
                f"{shown_url(self._url)}: the connection was lost at a commit {self._keep_s:.0f} s "
                f"ago, and it is no longer known if the write was stored; check that before you "
                f"repeat the call"
            )
