"""Checks of a SQLite file."""

import os
import shutil
import sqlite3
import warnings
from collections.abc import Sequence

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageError
from sqlbuffer.storage.doctor.finding import Checks, Finding, fetch_all, fetch_one
from sqlbuffer.storage.filesystems import filesystem_of, warn_of_network
from sqlbuffer.storage.readonly import existing_file
from sqlbuffer.storage.sizes import shown_size
from sqlbuffer.storage.sqlite import lock_path
from sqlbuffer.storage.sqlite_connections import opened_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LARGE_WAL_BYTES = 100_000_000
LITTLE_SPACE_BYTES = 1_000_000_000


def _can_read(connection: Connection, url: URL) -> Sequence[Finding]:
    rows = fetch_one(connection, "SELECT count(*) FROM sqlite_master")[0]
    return [Finding("can read", "OK", f"{existing_file(url)}, {rows} objects")]


def _can_write(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            return [
                Finding(
                    "can write",
                    "WARN",
                    f"{place} is not writable for this user: reading only",
                    f"whoever stores has to write the file and its folder: chmod u+w {place}",
                )
            ]
    try:
        with opened_file(path, timeout=0, isolation_level=None) as own:
            own.execute("BEGIN IMMEDIATE")
            own.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        return [Finding("can write", "OK", "another process is writing right now")]
    return [Finding("can write", "OK", "the file and its folder are writable")]


def _lock_file(connection: Connection, url: URL) -> Sequence[Finding]:
    path = lock_path(url)
    if path is None or fcntl is None:
        return []
    if not path.exists():
        return [Finding("lock file", "OK", "not there yet; the first writer makes it")]
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        remedy = f"every user who stores must write it: chmod a+rw {path}"
        return [Finding("lock file", "WARN", f"{path}: {error.strerror}", remedy)]
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return [Finding("lock file", "OK", f"{path}, held by a writer right now")]
    finally:
        os.close(descriptor)
    return [Finding("lock file", "OK", f"{path}, free")]


def _journal(connection: Connection, url: URL) -> Sequence[Finding]:
    (mode,) = fetch_one(connection, "PRAGMA journal_mode")
    if mode == "wal":
        return [
            Finding("journal mode", "OK", "WAL: readers and the writer do not wait for each other")
        ]
    path = existing_file(url)
    return [
        Finding(
            "journal mode",
            "WARN",
            f"{mode}: readers block the writer, and it them",
            f"while nothing has it open: sqlite3 '{path}' 'PRAGMA journal_mode = WAL'",
        )
    ]


def _wal_size(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    wal = path.with_name(f"{path.name}-wal")
    n_bytes = wal.stat().st_size if wal.exists() else 0
    if n_bytes <= LARGE_WAL_BYTES:
        return [Finding("WAL size", "OK", shown_size(n_bytes))]
    return [
        Finding(
            "WAL size",
            "WARN",
            f"{shown_size(n_bytes)}: checkpoints do not get through",
            f"end the reader that keeps a transaction open (`fuser {path}` names processes)",
        )
    ]


def _file_system(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_network(path)
    found = [Finding("file system", "OK", filesystem_of(path) or "not known on this machine")]
    if caught:
        detail, _, remedy = str(caught[0].message).rpartition("; ")
        found = [Finding("file system", "WARN", detail, remedy)]
    free, size = shutil.disk_usage(path.parent).free, path.stat().st_size
    if free < LITTLE_SPACE_BYTES or free < size // 10:
        detail = f"{shown_size(free)} free, the file has {shown_size(size)}"
        return [*found, Finding("disk space", "WARN", detail, "free space or lower the capacity")]
    return [*found, Finding("disk space", "OK", f"{shown_size(free)} free")]


def _integrity(connection: Connection, url: URL) -> Sequence[Finding]:
    found = [line for (line,) in fetch_all(connection, "PRAGMA quick_check(5)")]
    if found == ["ok"]:
        return [Finding("integrity", "OK", "quick_check found nothing")]
    remedy = "restore the last backup, or save what can be read with sqlite3's .recover"
    return [Finding("integrity", "FAIL", "; ".join(found), remedy, StorageError)]


CHECKS = Checks(
    (_can_read, _can_write, _lock_file, _journal, _wal_size, _file_system),
    (_integrity,),
    (),
    "SELECT type, name FROM sqlite_master",
)
