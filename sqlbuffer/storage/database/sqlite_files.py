"""Files of SQLite databases: their file systems, and descriptors that a forked child closes.

A lock on a file lasts as long as any process has the descriptor open, also a child of its holder.
"""

import os
import re
import warnings
from pathlib import Path

from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageUnreachableError, URLError
from sqlbuffer.storage.database.sqlite_connections import forks_held_off
from sqlbuffer.storage.database.urls import folder_of, is_memory, sqlite_path

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
    found, longest = None, -1
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
            found, longest = after.split(" ")[0], len(point)
    return found


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
