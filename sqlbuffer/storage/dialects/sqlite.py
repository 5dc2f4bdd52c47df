"""Connections and transactions of SQLite."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine

from sqlbuffer.display import shown_size
from sqlbuffer.errors import StorageFullError
from sqlbuffer.storage.database.engine import BUSY_TIMEOUT_S
from sqlbuffer.storage.database.errors import translate
from sqlbuffer.storage.database.sqlite import (
    READERS_WAIT_S,
    lock_path,
    opened_file,
    spare_writer,
    wal_path,
    writer_lock,
)
from sqlbuffer.storage.database.transactions import (
    BEGIN,
    Begin,
    check_not_held,
    driver_of,
)
from sqlbuffer.storage.database.urls import sqlite_path

# Extra space for a deletion on a full disk: blocks of the file system, a few pages.
_SPARE_BYTES = 2**18


@contextmanager
def writing(
    engine: Engine,
    durability: str | None = None,
    query: str | None = None,
    wait_s: float | None = None,
) -> Iterator[Connection]:
    """Begin a transaction that writes; no other transaction writes at the same time.

    It is committed at the end of the block, and rolled back on an exception.
    """
    check_not_held(engine)
    path = lock_path(engine.url)
    options = {BEGIN: Begin(writes=True, durability=durability, query=query)}
    with (
        writer_lock(path, BUSY_TIMEOUT_S if wait_s is None else wait_s),
        engine.connect().execution_options(**options) as connection,
        connection.begin(),
    ):
        if path is not None:
            spare_writer(connection, path)
        yield connection


@contextmanager
def claiming(engine: Engine, durability: str | None, query: str) -> Iterator[Connection]:
    """Begin a transaction that claims rows of a queue; see `Begin.query`."""
    with writing(engine, durability, query) as connection:
        yield connection


@contextmanager
def hurried(engine: Engine, wait_s: float = 0.0) -> Iterator[Connection]:
    """Begin a transaction for writes that can be left out.

    It waits `wait_s` for other writers.

    Raises:
        StorageBusyError: Another writer is active.
    """
    path = lock_path(engine.url)
    options = {BEGIN: Begin(writes=True)}
    with (
        writer_lock(path, wait_s),
        engine.connect().execution_options(**options) as connection,
    ):
        driver = driver_of(connection)
        driver.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
        try:
            with connection.begin():
                if path is not None:
                    spare_writer(connection, path)
                yield connection
        finally:
            driver.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")


@contextmanager
def at_once(engine: Engine) -> Iterator[Connection]:
    """Return a connection on which each statement is a transaction of its own.

    The statements only read, and few rows; see `transactions.AT_ONCE`.
    """
    with engine.connect() as connection:
        yield connection


def reuse_log(engine: Engine) -> bool:
    """Move the log into the file, so that the next writes use its space; return True if that helps.

    On a full disk the log cannot grow, and SQLite moves it only after 4 MB: a write may not fit
    behind those before it, though the file has free pages.
    """
    path, lock = sqlite_path(engine.url), lock_path(engine.url)
    if lock is None or not wal_path(path).exists():
        return False
    try:
        return not _restart_log(engine)
    except sqlite3.Error as error:
        if not isinstance(translate(error, engine.url), StorageFullError):
            raise
        return False  # the file has to grow


def _restart_log(engine: Engine) -> bool:
    """Move the log into the file, and have the next writer begin it again; return True if a reader
    prevents that.
    """
    path, lock = sqlite_path(engine.url), lock_path(engine.url)
    with (
        writer_lock(lock, BUSY_TIMEOUT_S),
        opened_file(path, isolation_level=None, timeout=READERS_WAIT_S) as file,
    ):
        ((is_busy, _, _),) = file.execute("PRAGMA wal_checkpoint(RESTART)")
    return bool(is_busy)


def make_room(engine: Engine) -> str:
    """Move the log into the file if the disk is almost full; return advice if that is not enough.

    The deletion can then use the space of the log. Call this before the deletion: a deletion that
    fails makes the log longer, and uses up the freed space.
    """
    path, lock = sqlite_path(engine.url), lock_path(engine.url)
    if lock is None:
        return "free memory and delete again"
    n_bytes = path.stat().st_size
    advice = f"delete fewer rows at a time, or free {shown_size(n_bytes)} on the disk of {path}"
    log = wal_path(path)
    if not log.exists() or shutil.disk_usage(path.parent).free > n_bytes + log.stat().st_size:
        return advice
    try:
        is_busy = _restart_log(engine)
    except sqlite3.Error as error:
        if not isinstance(translate(error, engine.url), StorageFullError):
            raise
        missing = shown_size(_needed_bytes(path) - n_bytes + _SPARE_BYTES)
        return (
            f"deleting rows needs {missing} more: remove or move other files on the disk "
            f"of {path}, then delete again"
        )
    if is_busy:
        return (
            "an open read transaction keeps the log from being used again: end it "
            "(`sqlbuffer doctor` names its process), then delete again"
        )
    return advice


def _needed_bytes(path: Path) -> int:
    """Return the size of a file with its log."""
    query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    with opened_file(path, isolation_level=None) as file:
        ((n_bytes,),) = file.execute(query)
    return int(n_bytes)
