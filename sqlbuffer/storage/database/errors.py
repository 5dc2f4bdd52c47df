"""Translate database errors by cause into errors that tell the user what to do, and repeat calls.

A call is repeated after a lost connection, a deadlock or a conflict on a standby."""

import json
import logging
import random
import re
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, ResourceClosedError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqlbuffer.errors import (
    BufferNotFoundError,
    DatabaseMissingError,
    EpisodeEndedError,
    FieldError,
    ReadLimitError,
    RoleMissingError,
    SchemaMissingError,
    SQLBufferError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
    StorageUnreachableError,
    WrongPasswordError,
)
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.database.urls import (
    folder_of,
    is_read_only,
    shown_url,
    sqlite_path,
    unread_log,
)

logger = logging.getLogger("sqlbuffer")

# The triggers of both databases begin their message of an unknown buffer with this text.
NO_BUFFER = "sqlbuffer: no buffer"
# They begin their message of an unfinished copy, which takes no other steps, with this one.
UNFINISHED_COPY = "sqlbuffer: the buffer is an unfinished copy"
# Of steps for an episode that takes no more of them.
EPISODE_ENDED = "sqlbuffer: the episode has ended"
# SQLSTATE of a server that got a value larger than its type allows.
_PROGRAM_LIMIT_EXCEEDED = "54000"
_COPIED = re.compile(r"^COPY \w+, line (\d+)(?:, column (\w+))?", re.MULTILINE)


class ConnectionLost(StorageUnreachableError):
    """The server could not be reached, or the connection was lost in the middle of a call.

    The call may have taken effect or not.
    """


class Deadlock(StorageBusyError):
    """Two transactions waited for each other, and the server ended this one without any effect."""


class RecoveryConflict(StorageBusyError):
    """A standby ended a query that conflicted with the log that it must replay."""


def episode_ended(key: str, task_id: str, status: str) -> EpisodeEndedError:
    """Return the error of steps for an episode that takes no more of them."""
    way = "delete it first with delete_episodes()"
    if status == "aborted":
        way = "continue it with buffer.episode(task_id, episode_id=..., resume=True)"
    return EpisodeEndedError(
        f"episode {key!r} of task {task_id!r} has ended (it is {status}), and takes no more steps; "
        f"take another episode_id, or {way}",
        [(key, task_id)],
    )


def ended_otherwise(key: str, task_id: str, difference: str) -> EpisodeEndedError:
    """Return the error of an end that is not the one that an episode has."""
    return EpisodeEndedError(
        f"episode {key!r} of task {task_id!r} has ended already, with {difference}; "
        f"annotate_episode() changes its reward and its values",
        [(key, task_id)],
    )


_REMEDIES: dict[str, tuple[type[StorageError], str]] = {
    "40001": (Deadlock, "try again"),
    "40P01": (Deadlock, "try again"),
    "55P03": (StorageBusyError, "try again"),
    "57014": (StorageBusyError, "try again"),
    "25006": (
        StorageReadOnlyError,
        "the server is a standby (a read-only replica), or default_transaction_read_only is on: "
        "use the URL of the primary, or of a server that accepts writes",
    ),
    "42501": (
        StorageReadOnlyError,
        "ask the owner for a role that may: sqlbuffer_analyst reads, sqlbuffer_writer stores, "
        "sqlbuffer_learner also deletes, clears, resizes, annotates and leases, and only the owner "
        "drops buffers and copies into them (see `sqlbuffer db roles`)",
    ),
    "53100": (StorageFullError, "free space on the server and write again"),
}

# Why a server, or pgbouncer in front of it, refuses a connection. A refused connection has no
# state: only the text shows the reason. In another language than English it counts as a lost
# connection.
_REFUSALS: tuple[tuple[re.Pattern[str], type[StorageUnreachableError], str], ...] = tuple(
    (re.compile(f"^.*(?:{pattern}).*$", re.MULTILINE), kind, remedy)
    for pattern, kind, remedy in (
        (
            "(?:password|SASL) authentication failed|no password supplied|empty password",
            WrongPasswordError,
            "check the user and the password; in a URL, write @ : / of a password as %40 %3A %2F",
        ),
        (
            '(?:role|user) ".*" does not exist|no such user',
            RoleMissingError,
            "check the name of the user, or ask the owner of the server to make the role: "
            "CREATE ROLE ... LOGIN",
        ),
        (
            'database ".*" does not exist|no such database',
            DatabaseMissingError,
            "check the name of the database, or create it with `createdb`, and run "
            "`sqlbuffer db init` with this URL",
        ),
        (
            "pg_hba.conf|authentication failed|not permitted to log in|permission denied for",
            StorageUnreachableError,
            "ask the owner of the server to let this user in from this machine",
        ),
    )
)


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Raise database errors of the block as this library's errors."""
    try:
        yield
    except DBAPIError as error:
        raise translate(error.orig, url) from error
    except (sqlite3.Error, psycopg.Error) as error:
        raise translate(error, url) from error
    except PoolTimeoutError as error:
        raise StorageBusyError(
            f"{shown_url(url)}: every connection of the pool was in use for too long: {error}"
        ) from error
    except ResourceClosedError as error:
        raise ConnectionLost(f"{shown_url(url)}: the connection was closed: {error}") from error


def translate(error: BaseException | None, url: URL) -> SQLBufferError:
    """Return the library's error for a driver's error."""
    shown, reason = (
        shown_url(url),
        str(error).strip().splitlines()[0] if str(error) else type(error).__name__,
    )
    state = getattr(error, "sqlstate", None) or ""
    if (own := _own_refusal(error, state, shown, reason)) is not None:
        return own
    if reason == "interrupted":
        return ReadLimitError(f"{shown}: reading passed its time limit; ask for less")
    if isinstance(error, sqlite3.Error):
        return _translate_sqlite(error, url, reason)
    if _is_recovery_conflict(error, state):
        return RecoveryConflict(
            f"{shown}: {reason}: the server is a standby, and had to replay a change of the rows "
            f"that were being read; try again, or set hot_standby_feedback = on there"
        )
    if state in _REMEDIES:
        kind, remedy = _REMEDIES[state]
        return kind(f"{shown}: {reason}; {remedy}")
    if state in ("42P01", "42883"):
        return SchemaMissingError(f"{shown}: {reason}; run `sqlbuffer db init '{shown}'`")
    if state == _PROGRAM_LIMIT_EXCEEDED:
        return FieldError(_too_large(reason))
    unanswered = isinstance(error, psycopg.OperationalError) and not state
    if unanswered or state.startswith(("08", "57P", "53", "25P03")):
        return _refusal(error, shown) or ConnectionLost(
            f"cannot reach {shown}: {reason}; check that the server runs and accepts connections"
        )
    return StorageError(f"{shown}: {reason}")


def _own_refusal(
    error: BaseException | None, state: str, shown: str, reason: str
) -> SQLBufferError | None:
    """Return the library's error for what its own triggers refuse; None for other errors."""
    if NO_BUFFER in reason or (state == "42P01" and "sqlbuffer_seq_" in reason):
        return BufferNotFoundError(f"{shown}: {reason}; it was dropped, open it again")
    if EPISODE_ENDED in reason and isinstance(error, psycopg.Error):
        return episode_ended(*json.loads(error.diag.message_detail or "[]"))
    if UNFINISHED_COPY in reason:
        return StorageReadOnlyError(
            f"{shown}: the buffer is an unfinished copy, and takes no other steps; run the copy "
            f"again to complete it (`sqlbuffer info` names its source), or drop the buffer"
        )
    return None


def _refusal(error: BaseException | None, shown: str) -> StorageUnreachableError | None:
    """Return the error of a server that answers, but will refuse this user at every attempt."""
    for pattern, kind, remedy in _REFUSALS:
        if match := pattern.search(str(error)):
            reason = match[0].rpartition("FATAL:")[2].strip()
            return kind(f"cannot open {shown}: {reason}; {remedy}")
    return None


def _is_recovery_conflict(error: BaseException | None, state: str) -> bool:
    # The message is in the server's language. Failures to serialize come from other source files.
    source = error.diag.source_file if isinstance(error, psycopg.Error) else None
    return state in ("40001", "40P01") and source == "postgres.c"


def too_large(error: "psycopg.Error", ids: Sequence[str]) -> FieldError:
    """Return the error of a batch with a value that a server refuses.

    Args:
        error: Error of the server.
        ids: The ids of the rows that were sent, in their order.
    """
    match = _COPIED.search(error.diag.context or "")
    reason = _too_large(str(error).strip().splitlines()[0])
    if match is None or not 1 <= int(match[1]) <= len(ids):
        return FieldError(reason)
    column = f"{match[2]}: " if match[2] else ""
    return FieldError(f"row {ids[int(match[1]) - 1]!r}: {column}{reason}")


def _too_large(reason: str) -> str:
    return (
        f"too large for the database ({reason}; JSON grows as PostgreSQL's JSONB); give long lists "
        f"of numbers as numpy arrays and long text as bytes, or store it in several rows"
    )


# In addition to SQLITE_FULL, SQLite reports a full disk, a quota or a limit on the size of a file
# with these names: at the shared memory of a file that it opens, and at a write.
_FULL = ("SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_WRITE")


def _translate_sqlite(error: sqlite3.Error, url: URL, reason: str) -> SQLBufferError:
    shown = shown_url(url)
    if "too big" in reason:
        return FieldError(_too_large(reason))
    if "locked" in reason or "busy" in reason:
        return StorageBusyError(
            f"{shown}: {reason}; another program holds the file: close it or try again"
        )
    if any(word in reason for word in ("readonly", "read-only", "not authorized")):
        # Other names mean that the folder is not writable, so that a log cannot even be read.
        name = getattr(error, "sqlite_errorname", "")
        if name in ("SQLITE_READONLY", "SQLITE_AUTH") and is_read_only(url):
            return StorageReadOnlyError(
                f"{shown} was opened for reading only; to write, open it without mode=ro and "
                f"immutable=1"
            )
        advice = unread_log(url) or (
            "to read a file that no process writes, open sqlite:///PATH?immutable=1"
        )
        return StorageReadOnlyError(
            f"{shown}: {reason}; the file or its folder is not writable: {advice}"
        )
    if "full" in reason or getattr(error, "sqlite_errorname", "") in _FULL:
        return StorageFullError(
            f"{shown}: {reason}; free space on the disk, or raise the quota, and write again"
        )
    if "unable to open" in reason:
        return StorageUnreachableError(
            folder_of(url)
            or f"cannot open {shown}: {reason}; check that the folder exists and is writable"
        )
    if "not a database" in reason:
        return StorageUnreachableError(
            f"{shown} is not a SQLite file: {reason}; name another file, or restore a backup if it "
            f"was one"
        )
    if "malformed" in reason:
        name = shlex.quote(str(sqlite_path(url)))
        return StorageError(
            f"{shown} is damaged: {reason}; stop its writers and copy the file with its -wal; "
            f"`sqlbuffer doctor {name} --full` says where; restore a backup, or save what can "
            f"be read: `sqlite3 {name} .recover | sqlite3 saved.db`"
        )
    if "no such table" in reason or "no such view" in reason:
        return SchemaMissingError(f"{shown}: {reason}; run `sqlbuffer db init '{shown}'`")
    return StorageError(f"{shown}: {reason}")


# Not the generator that the user may have seeded.
_RANDOM = random.SystemRandom()


FIRST_PAUSE_S = 0.01  # a connection that died in the pool: the next one is good
LONGEST_PAUSE_S = 1.0
ONCE_MORE_S = 0.05
DEADLOCKS = 10
# Seconds after which a waiting call logs it first; then after 3 s, 9 s and so on.
FIRST_LOG_S, SECOND_LOG_S, LOG_GROWTH = 0.1, 3.0, 3

T = TypeVar("T")


class _Thread(threading.local):
    repeats = True


_thread = _Thread()


@contextmanager
def without_repeats() -> Iterator[None]:
    """Let calls of this thread fail at the first lost connection: the caller repeats the block."""
    before, _thread.repeats = _thread.repeats, False
    try:
        yield
    finally:
        _thread.repeats = before


def retried(work: Callable[[], T], retry_s: float, on_loss: Callable[[], None]) -> T:
    """Return the result of `work`, repeated after a deadlock, a lost connection or a conflict.

    After a loss, or when a standby ended the query, it is repeated for a limited time.

    Args:
        work: Function to run; it may be called several times.
        retry_s: Seconds after the first loss or conflict in which it is repeated; 0 for one call.
        on_loss: Function called after each loss.

    Raises:
        StorageUnreachableError: The server could not be reached in that time.
        StorageBusyError: Each of many attempts ended in a deadlock, or a standby ended the query
            each time.
    """
    if is_joined():
        return work()  # the transaction around is repeated as a whole
    began: float | None = None
    deadlocks = 0
    pause_s, log_s = FIRST_PAUSE_S, FIRST_LOG_S
    while True:
        try:
            return work()
        except Deadlock:
            deadlocks += 1
            if deadlocks == DEADLOCKS:
                raise
            continue
        except (ConnectionLost, RecoveryConflict) as error:
            if isinstance(error, ConnectionLost):
                on_loss()
            if not _thread.repeats:
                raise
            now = time.monotonic()
            began = now if began is None else began
            waited_s = now - began
            if waited_s + pause_s > retry_s:
                tried = "" if retry_s <= ONCE_MORE_S else f"; tried again for {retry_s:g} s"
                kind = StorageUnreachableError if isinstance(error, ConnectionLost) else type(error)
                raise kind(f"{error}{tried}") from error
            if waited_s >= log_s:
                logger.warning("%s; trying again for %.0f s", error, retry_s - waited_s)
                log_s = max(SECOND_LOG_S, LOG_GROWTH * waited_s)
        # Writers wait for different times, so that they do not all return together.
        time.sleep(pause_s * _RANDOM.uniform(0.5, 1))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
