"""Writers whose transaction stays open: their steps stay invisible, and other calls may wait."""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from sqlbuffer.storage.buffers.window import WRITERS_LOCK
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.database.writer_lock import lock_holder, lock_path

# A transaction of a writer takes milliseconds. After this time something is wrong with it.
HANGING_S = 5.0


@dataclass(frozen=True)
class HangingWriter:
    """A process whose transaction has been writing to a buffer for more than 5 seconds.

    Attributes:
        pid: The process: on PostgreSQL that of the server, for `pg_terminate_backend(pid)`; on
            SQLite the writer's own, on this machine.
        age_s: Age of the transaction, in seconds.
        user: The role on PostgreSQL, the user of the machine on SQLite; None if unknown.
        application: Application name of the connection; on SQLite the name of the program.

    Example:
        >>> writer = HangingWriter(pid=4711, age_s=312.0, user="collector", application="rollouts")
        >>> str(writer)
        "process 4711 of 'collector' ('rollouts'), for 312 s"
    """

    pid: int
    age_s: float
    user: str | None
    application: str | None

    def __str__(self) -> str:
        user = "" if self.user is None else f" of {self.user!r}"
        application = f" ({self.application!r})" if self.application else ""
        return f"process {self.pid}{user}{application}, for {self.age_s:,.0f} s"


def sqlite_hanging_writers(
    connection: Connection, url: URL, buffer_id: int | None = None
) -> list[tuple[int, HangingWriter]]:
    """Return the writer of a file whose transaction stays open, with 0 as the buffer's number.

    All buffers of the file wait for it. The list is empty if the machine does not show locks.
    """
    writer = sqlite_lock_holder(url)
    return [] if writer is None or writer.age_s < HANGING_S else [(0, writer)]


def sqlite_lock_holder(url: URL) -> HangingWriter | None:
    """Return the process that holds the lock file; None if none is visible."""
    path = lock_path(url)
    holder = None if path is None else lock_holder(path)
    if holder is None:
        return None
    pid, age_s = holder
    return HangingWriter(pid, age_s, _sqlite_user_of(pid), _sqlite_name_of(pid))


def _sqlite_name_of(pid: int) -> str | None:
    # Its arguments are not read: they may contain passwords.
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def _sqlite_user_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}").owner()
    except (OSError, KeyError):
        return None


# A role without pg_read_all_stats sees the start times of its own transactions only.
_POSTGRESQL_WRITERS = f"""
SELECT l.objid::bigint, l.pid,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age_s,
    a.usename::text, nullif(a.application_name, '')
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.granted
    AND l.classid = {WRITERS_LOCK} AND l.objsubid = 2 AND (l.objid = %(id)s OR %(id)s IS NULL)
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND clock_timestamp() - a.xact_start > make_interval(secs => %(age_s)s)
ORDER BY a.xact_start
"""


def postgresql_hanging_writers(
    connection: Connection, url: URL, buffer_id: int | None = None
) -> list[tuple[int, HangingWriter]]:
    """Return the writers of one buffer, or of all, whose transactions stay open, the oldest first.

    Each comes with its buffer. A role sees the writers of other roles if it may read all
    statistics.
    """
    parameters = {"id": buffer_id, "age_s": HANGING_S}
    rows = driver_of(connection).execute(_POSTGRESQL_WRITERS, parameters).fetchall()
    return [(number, HangingWriter(*row)) for number, *row in rows]
