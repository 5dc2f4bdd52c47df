"""Connections to SQLite and its files, and what forks do to them."""

import atexit
import os
import re
import sqlite3
import threading
import time
import warnings
from collections.abc import Hashable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from sqlbuffer.errors import StorageError, StorageUnreachableError, URLError
from sqlbuffer.storage.database.urls import folder_of, is_memory, sqlite_path

# Seconds that a fork waits for the transactions of other threads.
FORK_WAIT_S = 5.0

# A commit that finds more pages in the log moves them while others wait. `wal.move_log` moves them
# before. Fewer would make writes to random pages slow: a claim of 256 rows writes 1 MB,
# and pages that change again are written to the file once.
USUAL_PAGES = 8_000

CONNECTION_PRAGMAS = (
    # In WAL mode NORMAL survives the death of any process; only a power cut may take the last
    # commits.
    "PRAGMA synchronous = NORMAL",
    # The default of 2 MB is less than the hot pages of a million rows.
    "PRAGMA cache_size = -65536",
    "PRAGMA temp_store = MEMORY",
    # SQLite's own default. Debian's build overwrites the pages of deleted rows with zeros, and
    # writes them to the log: a fifth of the time of a write that evicts.
    "PRAGMA secure_delete = OFF",
    # After a checkpoint the WAL file is truncated to this size, instead of keeping its largest
    # size.
    "PRAGMA journal_size_limit = 67108864",
    f"PRAGMA wal_autocheckpoint = {USUAL_PAGES}",
)


class FileConnection(sqlite3.Connection):
    """A connection to a file that a fork closes.

    Attributes:
        is_idle: It is in a pool. Before it is first returned there, a thread may be preparing it.
        is_closed: It was closed, possibly by a fork.
        entry: Its entry in a pool, if it is of one.
    """

    is_idle = False
    is_closed = False
    entry: ConnectionPoolEntry | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if _is_refused:
            raise _refusal()
        with forks_held_off():
            super().__init__(*args, **kwargs)
            prepare(self)
            _open.add(self)

    def rollback(self) -> None:
        """Undo the transaction, if a fork has not closed the connection."""
        if not self.is_closed:
            super().rollback()

    def close(self) -> None:
        """Close the connection; a fork waits for it.

        A transaction is rolled back first. SQLite would keep it, and its lock, until Python frees
        the cursor of a statement that was interrupted.
        """
        with forks_held_off():
            if not self.is_closed and self.in_transaction:
                self.rollback()
            super().close()
            self.is_closed = True
            _open.discard(self)


class _InheritedConnection(FileConnection):
    """A connection that a forked child can neither use nor close without harm."""

    def cursor(self, *_: Any, **__: Any) -> Any:
        raise _refusal()

    execute = executemany = executescript = blobopen = commit = cursor

    def rollback(self) -> None:
        """Leave the transaction to the parent."""

    def close(self) -> None:
        """Leave the connection to the parent."""


_changed = threading.Condition()
_users: dict[Hashable, int] = {}
_open: "WeakSet[FileConnection]" = WeakSet()
_forking_thread: int | None = None
_foreign: set[int] = set()
_obstacle: str | None = None  # reason why the last fork did not close all connections
_is_refused = False
_inherited: list[FileConnection] = []


def prepare(connection: sqlite3.Connection) -> None:
    """Configure a new connection for the library."""
    # Python's own transaction handling would begin late and commit before DDL.
    connection.isolation_level = None
    for pragma in CONNECTION_PRAGMAS:
        connection.execute(pragma)


@contextmanager
def opened_file(
    name: str | Path, factory: type[FileConnection] = FileConnection, **options: Any
) -> Iterator[FileConnection]:
    """Open a file without the engine, and close it at the end of the block; forks wait until then.

    Args:
        name: Its path, or a URI.
        factory: Class of the connection.
        options: Options of `sqlite3.connect`.

    Raises:
        StorageError: This process was forked while SQLite was in use.
    """
    with (
        forks_held_off(),
        closing(factory(name, **options)) as connection,
    ):
        yield connection


@contextmanager
def forks_held_off() -> Iterator[None]:
    """Make forks of other threads wait until the end of the block.

    A thread that enters while another thread forks waits until that is done.
    """
    user = object()
    _begin_use(user)
    try:
        yield
    finally:
        _end_use(user)


def listen_to_connections(engine: Engine, *, is_memory: bool) -> None:
    """Prepare each new connection of a SQLite engine.

    Forks wait for connections in use, and close those to a file.
    """
    if event.contains(engine, "checkin", _check_in):
        return
    event.listen(engine, "checkin", _check_in)
    event.listen(engine, "connect", _prepare)
    if is_memory:
        event.listen(engine, "checkout", _check_out_memory)
        return
    event.listen(engine, "do_connect", _open_file)
    event.listen(engine, "connect", _note_foreign)
    event.listen(engine, "close", _forget_foreign)
    event.listen(engine, "checkout", _check_out)


def _open_file(_dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:
    options.setdefault("factory", FileConnection)


def _prepare(connection: Any, _record: Any) -> None:
    if not isinstance(connection, FileConnection):
        prepare(connection)


def _note_foreign(connection: Any, _record: Any) -> None:
    """Register a connection that the user's engine opened itself: no fork closes it."""
    if not isinstance(connection, FileConnection):
        _foreign.add(id(connection))


def _forget_foreign(connection: Any, _record: Any) -> None:
    _foreign.discard(id(connection))


def _check_out_memory(_connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
    _begin_use(record)


def _check_out(connection: Any, record: ConnectionPoolEntry | None, _proxy: Any) -> None:
    if _is_refused:
        raise _refusal()
    is_ours = isinstance(connection, FileConnection)
    # A fork waits for the first use of a new connection, so its thread must not wait for the fork.
    _begin_use(record, waits=not is_ours or connection.is_idle)
    if not is_ours:
        return
    connection.entry = record
    if connection.is_closed:
        raise DisconnectionError("a fork closed the connection")
    connection.is_idle = False


def _check_in(connection: Any, record: ConnectionPoolEntry | None) -> None:
    if isinstance(connection, FileConnection):
        connection.is_idle = True
    _end_use(record)


def pause_use(connection: FileConnection) -> None:
    """Let forks close a connection that stays checked out of its pool."""
    _check_in(connection, connection.entry)


def resume_use(connection: FileConnection) -> None:
    """Use a connection again after `pause_use`.

    Raises:
        DisconnectionError: A fork has closed it.
        StorageError: This process was forked while SQLite was in use.
    """
    _check_out(connection, connection.entry, None)


def _begin_use(user: Hashable, *, waits: bool = True) -> None:
    me = threading.get_ident()
    with _changed:
        # The fork waits for a thread that already uses one connection, so that thread must not wait
        # too.
        while waits and _forking_thread not in (None, me) and me not in _users.values():
            _changed.wait()
        _users[user] = me


def _end_use(user: Hashable) -> None:
    with _changed:
        _users.pop(user, None)
        _changed.notify_all()


def _refusal() -> StorageError:
    return StorageError(
        f"process {os.getpid()} was forked while its parent used SQLite: {_obstacle}. Fork before "
        f"the parent opens the file, or start processes with multiprocessing's 'spawn' method"
    )


def _before_fork() -> None:
    global _forking_thread, _obstacle
    me = threading.get_ident()
    with _changed:
        while _forking_thread is not None:
            _changed.wait()
        _forking_thread = me
        _obstacle = "the wait for other threads was interrupted"
        deadline = time.monotonic() + FORK_WAIT_S
        while _is_used() and me not in _users.values() and time.monotonic() < deadline:
            _changed.wait(deadline - time.monotonic())
        _obstacle = _found_obstacle(me)
        if _obstacle is None:
            _obstacle = _close_all()


def _is_used() -> bool:
    return bool(_users) or not all(connection.is_idle for connection in list(_open))


def _found_obstacle(me: int) -> str | None:
    if me in _users.values():
        return "the forking thread was in a transaction"
    if _is_used():
        return f"a transaction of another thread did not end within {FORK_WAIT_S:g} s"
    if _foreign:
        return "an Engine with a `creator` has connections that the library cannot close"
    return None


def _close_all() -> str | None:
    """Close every connection to a file; return the reason if that failed."""
    try:
        for connection in list(_open):
            connection.close()
    except sqlite3.Error as error:  # a user's engine may tie a connection to its thread
        return f"a connection could not be closed: {error}"
    return None


def _close_idle_at_exit() -> None:
    """Close unused connections: the last one to close moves the log into the file."""
    for connection in list(_open):
        if connection.is_idle:
            with suppress(sqlite3.Error):
                connection.close()


def _after_fork_in_parent() -> None:
    global _forking_thread
    with _changed:
        _forking_thread = None
        _changed.notify_all()


def _after_fork_in_child() -> None:
    global _changed, _forking_thread, _is_refused
    _changed = threading.Condition()
    _forking_thread = None
    _users.clear()
    if _obstacle is None:
        return
    _is_refused = True
    for connection in list(_open):
        _inherited.append(connection)  # or the collector would close it
        connection.__class__ = _InheritedConnection


atexit.register(_close_idle_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


MOUNTS = Path("/proc/self/mountinfo")  # Linux; elsewhere the kind is unknown: no warning
_NETWORK = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.sshfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "orangefs",
    "smb3",
    "smbfs",
    "wekafs",
}


class NetworkFileSystemWarning(UserWarning):
    """A SQLite file is on a network file system."""


def warn_of_network(path: Path) -> None:
    """Warn if a database file is on a network file system."""
    kind = filesystem_of(path)
    if kind in _NETWORK:
        warnings.warn(
            f"{path} is on a network file system ({kind}): SQLite's locks do not hold there, and "
            f"the file may be damaged; put it on a local disk, or use PostgreSQL for several "
            f"machines",
            NetworkFileSystemWarning,
            stacklevel=2,
        )


def filesystem_of(path: Path) -> str | None:
    """Return the kernel's name for the file system of a path; None if it is unknown."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place = os.path.realpath(path)
    kind, longest = None, -1
    for line in lines:
        # "36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw"
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        # If two mounts have the same point, the later one hides the earlier.
        if inside and len(point) >= longest:
            kind, longest = after.split(" ")[0], len(point)
    return kind


_descriptors: set[int] = set()


def open_own(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file for this process only.

    Args:
        path: The file.
        flags: Flags of `os.open`.
        mode: Permissions of a new file.

    Raises:
        OSError: See `os.open`.
    """
    # A child that is forked between the two lines would keep its copy open.
    with forks_held_off():
        descriptor = os.open(path, flags, mode)
        _descriptors.add(descriptor)
    return descriptor


def close_own(descriptor: int) -> None:
    """Close a descriptor of `open_own`."""
    with forks_held_off():
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _close_inherited() -> None:
    for descriptor in list(_descriptors):
        os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def existing_file(url: URL) -> Path:
    """Return the file of a resolved SQLite URL.

    Raises:
        StorageUnreachableError: The file does not exist; opening it would create it.
        URLError: A database in memory.
    """
    refuse_memory(url)
    path = sqlite_path(url).absolute()
    if not path.is_file():
        raise StorageUnreachableError(
            folder_of(url)
            or f"there is no file {path}; check the path, or create it with "
            f"`sqlbuffer db init 'sqlite:///{path}'`"
        )
    return path


def refuse_memory(url: URL) -> None:
    """Raise URLError for a database in memory."""
    if is_memory(url):
        raise URLError(
            "a database in memory ends with its process; name a file: sqlite:///replay.db"
        )
