"""Database errors by cause, as errors that tell the user what to do."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, ResourceClosedError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqlbuffer.errors import (
    BufferNotFoundError,
    FieldError,
    SchemaMissingError,
    SQLBufferError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
    StorageUnreachableError,
)
from sqlbuffer.storage.database.urls import shown_url, unread_log

# What a server says that starts, recovers or shuts down: by state in a session, and to one who
# connects by text alone.
_RESTARTING_STATES = ("57P01", "57P02", "57P03")
_RESTARTING = (
    "the database system is starting up",
    "the database system is shutting down",
    "the database system is in recovery mode",
    "the database system is not yet accepting connections",
    "the database system is not accepting connections",
)
# How the triggers of both databases begin to say that a buffer is unknown.
NO_BUFFER = "sqlbuffer: no buffer"
# What the drivers raise when another writer holds an id.
UniqueViolation = psycopg.errors.UniqueViolation
# What a server raises where a value is larger than its type takes.
ProgramLimitExceeded = psycopg.errors.ProgramLimitExceeded
_COPIED = re.compile(r"^COPY \w+, line (\d+)(?:, column (\w+))?", re.MULTILINE)


class ConnectionLost(StorageUnreachableError):
    """The server could not be reached, or went away in the middle: what was under way may have
    happened or not.
    """


class ServerRestarting(ConnectionLost):
    """The server says that it starts, recovers or shuts down."""


class Deadlock(StorageBusyError):
    """Two transactions waited for each other, and the server ended this one: nothing happened."""


class RecoveryConflict(StorageBusyError):
    """A standby ended a query that stood in the way of what it has to replay."""


_REMEDIES: dict[str, tuple[type[StorageError], str]] = {
    "40001": (Deadlock, "try again"),
    "40P01": (Deadlock, "try again"),
    "55P03": (StorageBusyError, "try again"),
    "57014": (StorageBusyError, "try again"),
    "25006": (
        StorageReadOnlyError,
        "the server is a standby (a read-only replica), or default_transaction_read_only is on: "
        "use the URL of the primary, or of a server that may be written",
    ),
    "42501": (
        StorageReadOnlyError,
        "ask the owner for a role that may (see `sqlbuffer db roles`)",
    ),
    "53100": (StorageFullError, "free space on the server and write again"),
}


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
    """Return the library's error for a driver's."""
    shown, reason = (
        shown_url(url),
        str(error).strip().splitlines()[0] if str(error) else type(error).__name__,
    )
    state = getattr(error, "sqlstate", None) or ""
    if NO_BUFFER in reason or (state == "42P01" and "sqlbuffer_seq_" in reason):
        return BufferNotFoundError(f"{shown}: {reason}; it was dropped, open it anew")
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
    if state == ProgramLimitExceeded.sqlstate:
        return FieldError(_too_large(reason))
    unanswered = isinstance(error, psycopg.OperationalError) and not state
    if unanswered or state.startswith(("08", "57P", "53", "25P03")):
        is_restarting = state in _RESTARTING_STATES or any(
            map(str(error).__contains__, _RESTARTING)
        )
        return (ServerRestarting if is_restarting else ConnectionLost)(
            f"cannot reach {shown}: {reason}; check that the server runs and accepts connections"
        )
    return StorageError(f"{shown}: {reason}")


def _is_recovery_conflict(error: BaseException | None, state: str) -> bool:
    # The message is in the server's language. Failures to serialize come from other source files.
    source = error.diag.source_file if isinstance(error, psycopg.Error) else None
    return state in ("40001", "40P01") and source == "postgres.c"


def too_large(error: psycopg.Error, ids: Sequence[str]) -> FieldError:
    """Return the error of a batch with a value that a server does not take.

    Args:
        error: What the server said.
        ids: The ids of the rows that were sent, in their order.
    """
    found = _COPIED.search(error.diag.context or "")
    reason = _too_large(str(error).strip().splitlines()[0])
    if found is None or not 1 <= int(found[1]) <= len(ids):
        return FieldError(reason)
    column = f"{found[2]}: " if found[2] else ""
    return FieldError(f"row {ids[int(found[1]) - 1]!r}: {column}{reason}")


def _too_large(reason: str) -> str:
    return (
        f"too large for the database ({reason}; JSON grows as PostgreSQL's JSONB); give long lists "
        f"of numbers as numpy arrays and long text as bytes, or store it in several rows"
    )


# Besides SQLITE_FULL, what SQLite calls a full disk, a quota or a limit on the size of a file: at
# the shared memory of a file that it opens, and at a write.
_FULL = ("SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_WRITE")


def _translate_sqlite(error: sqlite3.Error, url: URL, reason: str) -> SQLBufferError:
    shown = shown_url(url)
    if "too big" in reason:
        return FieldError(_too_large(reason))
    if "locked" in reason or "busy" in reason:
        return StorageBusyError(
            f"{shown}: {reason}; another program holds the file: close it or try again"
        )
    if "readonly" in reason or "read-only" in reason:
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
            f"cannot open {shown}: {reason}; check that the folder exists and may be written"
        )
    if "not a database" in reason:
        return StorageUnreachableError(f"{shown} is not a SQLite file: {reason}; name another file")
    if "no such table" in reason or "no such view" in reason:
        return SchemaMissingError(f"{shown}: {reason}; run `sqlbuffer db init '{shown}'`")
    return StorageError(f"{shown}: {reason}")
