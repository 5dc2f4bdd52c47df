"""The lock file that the writers of a SQLite database queue on."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageBusyError, StorageReadOnlyError
from sqlbuffer.storage.database.sqlite import close_own, open_own
from sqlbuffer.storage.database.urls import is_memory, path_of_database

try:
    import fcntl
except ImportError:  # Windows: only SQLite's own busy handler is available
    fcntl = None  # type: ignore[assignment]


def lock_path(url: URL) -> Path | None:
    """Return the file that writers of a database queue on; None if the database has no file."""
    if url.get_backend_name() != "sqlite" or is_memory(url):
        return None
    return _lock_of(str(url.database))


@lru_cache(maxsize=64)
def _lock_of(database: str) -> Path:
    return Path(f"{path_of_database(database)}.lock")


@contextmanager
def writer_lock(path: Path | None, timeout_s: float) -> Iterator[None]:
    """Hold the lock of a database file; None, for a database in memory, needs no lock.

    Raises:
        StorageBusyError: Another writer held the lock for the whole timeout.
        StorageReadOnlyError: The lock file cannot be created next to the database.
    """
    if path is None or fcntl is None:
        yield
        return
    descriptor = _acquire(path, timeout_s)
    try:
        yield
    finally:
        close_own(descriptor)


def _acquire(path: Path, timeout_s: float) -> int:
    try:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise StorageReadOnlyError(
            f"cannot write {path.with_suffix('')}: its lock file {path.name}: {error.strerror}"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _Waiter(descriptor).wait(path, timeout_s)
    with suppress(OSError):  # for processes that read how long the lock has been held
        os.utime(descriptor)
    return descriptor


class _Waiter:
    """Waits in a blocking flock on its own thread, so that the caller can be interrupted.

    The caller can also time out.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mutex = threading.Lock()
        self._acquired = threading.Event()
        self._abandoned = False

    def wait(self, path: Path, timeout_s: float) -> None:
        threading.Thread(target=self._block, name="sqlbuffer-writer-lock", daemon=True).start()
        try:
            if self._acquired.wait(timeout_s):
                return
        except BaseException:
            self._abandon()
            raise
        self._abandon()
        raise StorageBusyError(
            f"another writer held {path} for {timeout_s:g} s; try again, or find the process with "
            f"`fuser {path}`"
        )

    def _block(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._mutex:
            if self._abandoned:
                close_own(self._descriptor)
            else:
                self._acquired.set()

    def _abandon(self) -> None:
        with self._mutex:
            self._abandoned = True
            if self._acquired.is_set():
                close_own(self._descriptor)


def lock_holder(path: Path) -> tuple[int, float] | None:
    """Return the process that holds a lock file, and for how many seconds; None if none is visible.

    Linux lists the locks of processes; each writer notes its start time in the lock file.
    """
    try:
        status = os.stat(path)
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in locks:
        match line.split():
            case [_, "FLOCK", _, "WRITE", pid, where, _, _] if where == place:
                return int(pid), max(0.0, time.time() - status.st_mtime)
    return None
