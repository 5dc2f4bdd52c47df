"""What a file lies on: SQLite's locks and its shared memory do not work over a network."""

import os
import re
import warnings
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")  # Linux; elsewhere nothing is known, and nothing said
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
    """A SQLite file lies on a network file system."""


def warn_of_network(path: Path) -> None:
    """Warn where a database file lies on a network file system."""
    kind = filesystem_of(path)
    if kind in _NETWORK:
        warnings.warn(
            f"{path} lies on a network file system ({kind}): SQLite's locks do not hold there, and "
            f"the file may be damaged; put it on a local disk, or use PostgreSQL for several "
            f"machines",
            NetworkFileSystemWarning,
            stacklevel=2,
        )


def filesystem_of(path: Path) -> str | None:
    """Return the kind of file system that a path lies on, as the kernel names it; None where that
    cannot be told.
    """
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
        # Of two mounts at one point the later one hides the earlier.
        if inside and len(point) >= longest:
            found, longest = after.split(" ")[0], len(point)
    return found
