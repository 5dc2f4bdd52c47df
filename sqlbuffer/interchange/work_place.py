"""Where an output is written before it is complete: next to its place, by another name.

If a folder replaces another one, the old one gets a third name for a moment.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from sqlbuffer.errors import ExportError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class WorkPlace:
    """A file or a folder next to another one, locked while its process lives.

    Making it removes the work places of the same output whose process was killed.

    Args:
        target: Path that it is renamed to.
        make: Function that makes it: `Path.touch` or `Path.mkdir`.

    Attributes:
        path: Path of the work place.

    Raises:
        ExportError: The work place cannot be made.
    """

    def __init__(self, target: Path, make: Callable[[Path], None]) -> None:
        self._lock: int | None = None
        self.path: Path
        _remove_ended(target)
        while self._lock is None:
            self.path = target.parent / f".{target.name}.partial-{uuid4().hex[:8]}"
            with _named(target):
                make(self.path)
            # Another export to the same path may have removed it before it was locked.
            with suppress(FileNotFoundError):
                self._lock = _locked(self.path)

    def close(self) -> None:
        """Remove the file or folder, and unlock it."""
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def make_parents(target: Path) -> None:
    """Make the folders that an output is in.

    Raises:
        ExportError: They cannot be made.
    """
    with _named(target):
        target.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _named(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"{target} cannot be made: {error.strerror}; name another path"
        ) from error


def _locked(path: Path) -> int:
    """Return an open descriptor; the lock ends with its process."""
    number = os.open(path, os.O_RDONLY)
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not path.exists():
        os.close(number)
        raise FileNotFoundError(path)
    return number


def put_in_place(work: Path, target: Path) -> None:
    """Give a folder its name, and remove the folder that had this name.

    If this is interrupted, the name belongs to one of the two. If the process is killed in between,
    `recover` gives the old one its name back.
    """
    old = target.parent / f".{target.name}.old-{uuid4().hex[:8]}"
    lock = None
    try:
        if target.exists():
            lock = _locked(target)
            target.rename(old)
        work.rename(target)
    finally:
        _settle(old, target)
        if lock is not None:
            os.close(lock)


def recover(target: Path) -> None:
    """Put a folder back that a process moved away before it was killed, or remove it."""
    for path in _left_by_others(target, "old"):
        _settle(path, target)


def _settle(old: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)


def _remove_ended(target: Path) -> None:
    """Remove what exports to a path have left that were killed."""
    for path in _left_by_others(target, "partial"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _left_by_others(target: Path, kind: str) -> list[Path]:
    """Return the places of one kind whose process has ended."""
    own = re.compile(re.escape(f".{target.name}.{kind}-") + "[0-9a-f]{8}")
    with suppress(OSError):
        return [p for p in target.parent.iterdir() if own.fullmatch(p.name) and is_ended(p)]
    return []


def is_ended(path: Path) -> bool:
    """Return whether no process has a lock on it; False where locks are unknown."""
    if fcntl is None:
        return False
    try:
        number = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(number)
    return True
