"""Checks of a SQLite file."""

import os
import shutil
import sqlite3
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from sqlbuffer.display import shown_size
from sqlbuffer.errors import StorageError
from sqlbuffer.storage.buffers.hanging import HANGING_S, sqlite_lock_holder
from sqlbuffer.storage.database.sqlite import LARGE_WAL_BYTES as CUT_BACK_TO_BYTES
from sqlbuffer.storage.database.sqlite import (
    existing_file,
    filesystem_of,
    lock_path,
    opened_file,
    wal_path,
    warn_of_network,
)
from sqlbuffer.storage.inspect.doctor.finding import Checks, Finding, fetch_all, fetch_one

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LARGE_WAL_BYTES = 100_000_000
READ_LOCKS = range(123, 128)
# Other readers may start or end between two looks.
LOOKS, LOOK_PAUSE_S = 5, 0.05
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
                    f"writers must be able to write the file and its folder: chmod u+w {place}",
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
        writer = sqlite_lock_holder(url)
        if writer is not None and writer.age_s > HANGING_S:
            detail = f"{path}, held by {writer}: all other writers wait"
            return [Finding("lock file", "WARN", detail, f"end its transaction: kill {writer.pid}")]
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
            f"{mode}: readers and the writer block each other",
            f"while nothing has it open: sqlite3 '{path}' 'PRAGMA journal_mode = WAL'",
        )
    ]


def _wal_size(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    log = wal_path(path)
    n_bytes, n_file_bytes = log.stat().st_size if log.exists() else 0, path.stat().st_size
    is_larger = n_bytes > max(CUT_BACK_TO_BYTES, n_file_bytes)
    if n_bytes <= LARGE_WAL_BYTES and not is_larger:
        return [Finding("WAL size", "OK", shown_size(n_bytes))]
    readers = _lasting_readers(path)
    if readers:
        cause = f"{', '.join(readers)} keeps a read transaction open, and the log grows behind it"
        remedy = "end that transaction (commit, close the cursor, or end the process)"
    elif readers is None:
        cause = "probably a process keeps a read transaction open, and the log grows behind it"
        remedy = f"find it with `fuser {path}` and end its transaction"
    else:
        cause = "a read transaction was open for a long time; none is open now"
        remedy = f"nothing, if writers continue (`fuser {path}` names the processes)"
    return [
        Finding(
            "WAL size",
            "WARN",
            f"{shown_size(n_bytes)} next to a file of {shown_size(n_file_bytes)}: {cause}",
            f"{remedy}; then the next writer cuts the log back, or "
            f"sqlite3 '{path}' 'PRAGMA wal_checkpoint(TRUNCATE)'",
        )
    ]


def _lasting_readers(path: Path) -> list[str] | None:
    """Return the other processes that read one state of a file at several looks.

    Return None if this machine does not show them.
    """
    lasting: set[tuple[int, int]] | None = None
    for look in range(LOOKS):
        if look:
            time.sleep(LOOK_PAUSE_S)
        try:
            found = _read_locks(path)
        except OSError:
            return None
        lasting = found if lasting is None else lasting & found
    pids = sorted({pid for pid, _ in lasting or ()})
    return [f"process {pid}{_name_of(pid)}" for pid in pids]


def _read_locks(path: Path) -> set[tuple[int, int]]:
    """Return (process, lock) of the read transactions of other processes.

    The locks are those of bytes 123 to 127 of the -shm file; see SQLite's walformat.html. That file
    is not opened: closing it would release this process's locks on it.
    """
    shm = os.stat(f"{path}-shm")
    place = f"{os.major(shm.st_dev):02x}:{os.minor(shm.st_dev):02x}:{shm.st_ino}"
    found = set()
    for line in Path("/proc/locks").read_text().splitlines():
        match line.split():
            case [_, "POSIX", _, "READ", pid, where, start, _] if where == place:
                if int(start) in READ_LOCKS and int(pid) != os.getpid():
                    found.add((int(pid), int(start)))
    return found


def _name_of(pid: int) -> str:
    # Its arguments are not read: they may contain passwords.
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return ""


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
    (_wal_size, _file_system),
)
