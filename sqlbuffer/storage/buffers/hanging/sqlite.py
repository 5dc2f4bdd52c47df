"""Writers of a SQLite file: one at a time holds the lock file next to it."""

import os
import time
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from sqlbuffer.storage.buffers.hanging.hanging_writer import HANGING_S, HangingWriter
from sqlbuffer.storage.database.writer_lock import lock_path


def hanging_writers(
    connection: Connection, url: URL, buffer_id: int | None = None
) -> list[tuple[int, HangingWriter]]:
    """Return the writer of a file whose transaction stays open, with 0 as the buffer's number.

    All buffers of the file wait for it. The list is empty if the machine does not show locks.
    """
    writer = lock_holder(url)
    return [] if writer is None or writer.age_s < HANGING_S else [(0, writer)]


def lock_holder(url: URL) -> HangingWriter | None:
    """Return the process that holds the lock file; None if there is none, or if it is not visible.

    Linux lists the locks of processes; each writer notes its start time in the lock file.
    """
    path = lock_path(url)
    if path is None:
        return None
    try:
        status = os.stat(path)
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in locks:
        match line.split():
            case [_, "FLOCK", _, "WRITE", pid, where, _, _] if where == place:
                age_s = max(0.0, time.time() - status.st_mtime)
                return HangingWriter(int(pid), age_s, _user_of(int(pid)), _name_of(int(pid)))
    return None


def _name_of(pid: int) -> str | None:
    # Its arguments are not read: they may contain passwords.
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def _user_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}").owner()
    except (OSError, KeyError):
        return None
