"""The log of a SQLite file, and the checkpoints that move its pages into the file."""

import logging
import os
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from sqlbuffer.errors import SQLBufferError
from sqlbuffer.processes import at_process_end
from sqlbuffer.storage.database.kept_connections import connected
from sqlbuffer.storage.database.sqlite import USUAL_PAGES, opened_file
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.database.writer_lock import lock_path, writer_lock

logger = logging.getLogger("sqlbuffer")

# After a checkpoint SQLite truncates the log to this size; see `sqlite.CONNECTION_PRAGMAS`.
LARGE_WAL_BYTES = 64 * 2**20
# Bytes of a process after which it moves the log, while no other writes: each move waits twice for
# the disk.
MOVED_ALONE_BYTES = 16 * 2**20
# The same, while others write: about the 1,000 pages after which SQLite itself would move it.
MOVED_BYTES = 4 * 2**20
# While several processes write, the log has new pages when the others have been moved, and does not
# begin again. From this many pages on, the last ones are moved while writers wait.
MANY_PAGES = 6_000
# At most this many pages are moved while writers wait; more are moved before that.
FEW_PAGES = 2_000
# Seconds that writers may wait for short readers, so that the log can start again at its beginning.
READERS_WAIT_S = 0.1
QUEUE_S = 5.0
PAUSE_S = 0.25
# A thread ends when no writer has found a large log for this long.
IDLE_S = 5.0
END_S = 5.0
_PAGES, _VERSION = "wal_autocheckpoint", "data_version"


def wal_path(path: Path) -> Path:
    """Return the log of a SQLite file."""
    return path.with_name(f"{path.name}-wal")


def spare_writer(connection: Connection, lock: Path) -> None:
    """Leave a large log to a thread, instead of moving it at the commit of this transaction.

    Args:
        connection: The transaction, of a writer.
        lock: The lock file of the database.
    """
    wal = f"{str(lock).removesuffix('.lock')}-wal"
    pages = connection.info.get(_PAGES, USUAL_PAGES)
    if _size(wal) > LARGE_WAL_BYTES and _mover_of(lock).is_at_work():
        if pages != 0:
            _set_pages(connection, 0)
    elif pages == 0:
        _set_pages(connection, USUAL_PAGES)


@dataclass
class _Written:
    """What this process has written to a file since it moved the log."""

    n_bytes: int = 0
    limit: int = MOVED_BYTES


_written: WeakKeyDictionary[Engine, _Written] = WeakKeyDictionary()


def move_log(engine: Engine, n_bytes: int) -> None:
    """Move the log into its file, if this process has written much since it did so last.

    Called after a write, when others can write. At its commit they would wait for the disk.

    Args:
        engine: The engine of a file.
        n_bytes: About how many bytes the last transaction has written.
    """
    written = _written.setdefault(engine, _Written())
    written.n_bytes += n_bytes
    if written.n_bytes < written.limit or (lock := lock_path(engine.url)) is None:
        return
    written.n_bytes = 0
    # The write is committed: whatever happens here, a later one moves the log.
    with suppress(sqlite3.Error, SQLBufferError, SQLAlchemyError), connected(engine) as connection:
        n_pages, n_moved = _moved(connection)
        written.limit = MOVED_ALONE_BYTES if _is_alone(connection) else MOVED_BYTES
        if MANY_PAGES < n_pages < n_moved + FEW_PAGES:
            with writer_lock(lock, QUEUE_S):
                _moved(connection)


def _is_alone(connection: Connection) -> bool:
    """Whether no other connection has written since the last call with this one."""
    ((version,),) = driver_of(connection).execute("PRAGMA data_version").fetchall()
    is_alone: bool = version == connection.info.get(_VERSION)
    connection.info[_VERSION] = version
    return is_alone


def _moved(connection: Connection) -> tuple[int, int]:
    """Move the pages that no reader needs; return how many the log has, and how many were moved."""
    statement = "PRAGMA wal_checkpoint(PASSIVE)"
    ((_, n_pages, n_moved),) = driver_of(connection).execute(statement).fetchall()
    return n_pages, n_moved


def _set_pages(connection: Connection, n_pages: int) -> None:
    driver = driver_of(connection)
    driver.execute(f"PRAGMA wal_autocheckpoint = {n_pages}")
    connection.info[_PAGES] = n_pages


def _size(wal: str) -> int:
    try:
        return os.stat(wal).st_size
    except OSError:
        return 0


class _Mover:
    """Moves the log of one file, for one process.

    Args:
        lock: The lock file of the database.
    """

    def __init__(self, lock: Path) -> None:
        self.pid, self._lock = os.getpid(), lock
        self._path = str(lock).removesuffix(".lock")
        self._mutex = threading.Lock()
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()

    def is_at_work(self) -> bool:
        """Start the thread if it does not run; return True if it runs."""
        with self._mutex:
            self._asked_at = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sqlbuffer-wal", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # at the end of the process, or at a limit on threads
                    self._thread = None
            return self._thread is not None and not self._is_ending.is_set()

    def finish(self, timeout_s: float) -> None:
        """End the thread after its current attempt."""
        self._is_ending.set()
        if (thread := self._thread) is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                pause_s = self._move()
            except (sqlite3.Error, SQLBufferError, OSError) as error:
                logger.debug("could not move the log of %s: %s", self._path, error)
                pause_s = PAUSE_S
            is_ending = self._is_ending.wait(pause_s)
            with self._mutex:
                is_idle = time.monotonic() - self._asked_at > IDLE_S
                if is_ending or is_idle or _size(f"{self._path}-wal") <= LARGE_WAL_BYTES:
                    self._thread = None
                    return

    def _move(self) -> float:
        """Move the pages that no reader needs; return the seconds to pause."""
        _, n_pages, n_moved = self._checkpoint("PASSIVE")
        if n_pages - n_moved > FEW_PAGES:
            # A reader is open, or writers were quick and the rest is soon moved.
            return PAUSE_S
        # In the queue, where no fork waits for this thread.
        with writer_lock(self._lock, QUEUE_S):
            is_busy, *_ = self._checkpoint("TRUNCATE")
        return 4 * PAUSE_S if is_busy else 0.0

    def _checkpoint(self, mode: str) -> tuple[int, int, int]:
        """Return if others blocked the checkpoint, the pages of the log, and the pages moved."""
        # With this name SQLite does not create the file if it was removed.
        name = f"{Path(self._path).absolute().as_uri()}?mode=rw"
        with opened_file(name, uri=True, isolation_level=None, timeout=READERS_WAIT_S) as file:
            (result,) = file.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            return result  # type: ignore[no-any-return]


_movers: dict[Path, _Mover] = {}


def _mover_of(lock: Path) -> _Mover:
    mover = _movers.get(lock)
    if mover is None or mover.pid != os.getpid():
        mover = _movers[lock] = _Mover(lock)
        at_process_end(_finish)
    return mover


def _finish() -> None:
    deadline = time.monotonic() + END_S
    for mover in list(_movers.values()):
        if mover.pid == os.getpid():
            mover.finish(max(0.0, deadline - time.monotonic()))
