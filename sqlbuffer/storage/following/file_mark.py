"""Check for changes of the file of a SQLite database, without a statement.

`PRAGMA data_version` reports the same, but on a connection that is kept open, and a fork would wait
for it.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

# Some file systems store the time of a change in steps of two seconds.
COARSEST_NS = 2_500_000_000


class FileMark(NamedTuple):
    """Data of the file system about a database file and its log.

    Attributes:
        parts: Number, size and time of the last change of each.
        is_old: The last change is old enough that a later one must have another time.
    """

    parts: tuple[tuple[int, int, int], ...]
    is_old: bool


def file_mark(path: Path) -> FileMark | None:
    """Return the mark of a database file; None if it cannot be read."""
    now, parts = time.time_ns(), []
    for own in (path, path.with_name(path.name + "-wal")):
        try:
            found = os.stat(own)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        parts.append((found.st_ino, found.st_size, found.st_mtime_ns))
    newest = max((time_ns for _, _, time_ns in parts), default=now)
    return FileMark(tuple(parts), newest + COARSEST_NS < now)


def is_unchanged(before: FileMark | None, now: FileMark | None) -> bool:
    """Return True if nothing can have been committed since an earlier mark was taken."""
    return before is not None and now is not None and before.is_old and before.parts == now.parts
