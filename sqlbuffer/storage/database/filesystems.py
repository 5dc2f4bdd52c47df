"""File system of a database file: SQLite's locks and shared memory do not work over a network."""

import os
import re
import warnings
from pathlib import Path

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
