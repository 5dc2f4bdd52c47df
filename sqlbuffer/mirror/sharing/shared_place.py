"""Where processes find a mirror that they share, and which of them follows the buffer."""

import hashlib
import json
import os
import platform
import select
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.mirror.sharing.segment import is_segment
from sqlbuffer.storage.database.own_descriptors import close_own, open_own
from sqlbuffer.storage.database.urls import is_memory, shown_url
from sqlbuffer.storage.store import BufferStore

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SHARED_MEMORY = Path("/dev/shm")
# Plain stores of numpy arrive in order at other processors.
ORDERED_MACHINES = ("x86_64", "AMD64")


class SharedPlace:
    """The files of a shared mirror: the segment, two locks and a pipe.

    Args:
        path: The segment.
        is_kept: Whether the segment stays when no process has it open.

    Attributes:
        path: The segment.
        next_path: The one that will replace it.
    """

    def __init__(self, path: Path, *, is_kept: bool) -> None:
        self.path, self.next_path = path, path.with_name(f"{path.name}.next")
        self.is_kept = is_kept
        self._users = _used(_beside(path, "users"))
        # No process removes the lock while the mirror has a user.
        self._lock = _open(_beside(path, "lock"))
        self._pipe: int | None = None
        self._pid, self._is_closed = os.getpid(), False

    def try_to_follow(self) -> bool:
        """Become the process that follows the buffer, unless another one does."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        pipe = _beside(self.path, "wake")
        with suppress(FileExistsError):
            os.mkfifo(pipe, 0o600)
        # For both directions: it does not end with the last writer.
        self._pipe = open_own(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.next_path.unlink(missing_ok=True)
        return True

    def stop_following(self) -> None:
        """Let another process follow the buffer."""
        self.next_path.unlink(missing_ok=True)
        if self._pipe is not None:
            close_own(self._pipe)
            self._pipe = None
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def wait(self, timeout_s: float) -> None:
        """Wait until another process calls `wake`, at most for a time in seconds."""
        # The pipe is closed with the mirror.
        with suppress(OSError, ValueError):
            if self._pipe is not None and select.select([self._pipe], [], [], timeout_s)[0]:
                os.read(self._pipe, 4096)

    def wake(self) -> None:
        """Make the process that follows look now."""
        with suppress(OSError):  # it has ended, or its pipe is full
            pipe = os.open(_beside(self.path, "wake"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(pipe, b"\0")
            finally:
                os.close(pipe)

    def close(self) -> None:
        """Leave; the last one removes the files, but for a segment that is kept."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        with suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(self.path, is_kept=self.is_kept)
        for descriptor in (self._lock, self._users, self._pipe):
            if descriptor is not None:
                close_own(descriptor)


def place_of(store: BufferStore, path: str | os.PathLike[str] | None, about: Any) -> SharedPlace:
    """Return the place of a buffer's shared mirror.

    Args:
        store: The buffer.
        path: The file that the user gave; None: shared memory.
        about: Other data that distinguishes it, as JSON.

    Raises:
        BufferConfigError: This machine or database cannot share one.
    """
    if is_memory(store.url):
        raise BufferConfigError(
            "a buffer in memory has one process; use shared=True with a database in a file"
        )
    if fcntl is None or platform.machine() not in ORDERED_MACHINES or not _has_fallocate():
        raise BufferConfigError(
            f"shared=True needs Linux on x86-64, and this is {platform.system()} on "
            f"{platform.machine()}; open a mirror in each process without it"
        )
    if path is not None:
        own = Path(path).absolute()
        _check_own(own)
        return SharedPlace(own, is_kept=True)
    if not SHARED_MEMORY.is_dir():
        raise BufferConfigError(f"this machine has no {SHARED_MEMORY}; give path= for the file")
    sweep()
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]
    return SharedPlace(SHARED_MEMORY / f"{_prefix()}{key}", is_kept=False)


def _check_own(path: Path) -> None:
    """Raise BufferConfigError unless a mirror can be kept in a file."""
    if not path.parent.is_dir():
        raise BufferConfigError(f"path= of the mirror: there is no folder {path.parent}; create it")
    if path.is_symlink() or not path.exists():
        return
    # It would be overwritten.
    if not path.is_file() or not is_segment(path):
        raise BufferConfigError(
            f"path= of the mirror: {path} holds something else; name a new file, or remove it"
        )


def sweep() -> None:
    """Remove segments in shared memory that processes left behind."""
    for path in SHARED_MEMORY.glob(f"{_prefix()}*.users"):
        with suppress(OSError):
            users = _open(path)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path.with_suffix(""), is_kept=False)
            finally:
                close_own(users)


def _prefix() -> str:
    return f"sqlbuffer-{os.geteuid()}-"


def _remove(path: Path, *, is_kept: bool) -> None:
    """Remove the files of a mirror that has no user: the caller holds the lock of the users."""
    names = [f"{path.name}.{name}" for name in ("next", "lock", "wake", "users")]
    for name in names if is_kept else [path.name, *names]:
        path.with_name(name).unlink(missing_ok=True)


def _used(path: Path) -> int:
    """Return the file that users of a mirror lock, locked, once it is not being removed."""
    while True:
        descriptor = _open(path)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        close_own(descriptor)


def _beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}")


def _open(path: Path) -> int:
    return open_own(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _has_fallocate() -> bool:
    return hasattr(os, "posix_fallocate")


def identity_of(store: BufferStore, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what distinguishes a mirror of a buffer from those of others, as JSON."""
    info = store.info
    return {
        "url": shown_url(store.url),
        "buffer": info.name,
        "buffer_id": info.id,
        "fields": {name: repr(spec) for name, spec in info.config.fields.specs.items()},
        **more,
    }
