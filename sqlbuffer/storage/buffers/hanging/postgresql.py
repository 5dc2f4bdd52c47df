"""Writers on PostgreSQL: each holds the lock of its buffer until its transaction ends."""

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from sqlbuffer.storage.buffers.hanging.hanging_writer import HANGING_S, HangingWriter
from sqlbuffer.storage.buffers.postgresql import WRITERS_LOCK
from sqlbuffer.storage.database.transactions import driver_of

# A role without pg_read_all_stats sees the start times of its own transactions only.
_WRITERS = f"""
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


def hanging_writers(
    connection: Connection, url: URL, buffer_id: int | None = None
) -> list[tuple[int, HangingWriter]]:
    """Return the writers of one buffer, or of all, whose transactions stay open, the oldest first.

    Each comes with its buffer. A role sees the writers of other roles if it may read all
    statistics.
    """
    parameters = {"id": buffer_id, "age_s": HANGING_S}
    found = driver_of(connection).execute(_WRITERS, parameters).fetchall()
    return [(number, HangingWriter(*row)) for number, *row in found]
