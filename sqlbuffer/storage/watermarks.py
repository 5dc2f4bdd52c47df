"""Watermarks: numbers at or below which no row can appear any more."""

import time
from typing import Any

from sqlalchemy import BigInteger, Boolean
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.processes import ForkLock
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.schema.expressions import processed


class last_number(FunctionElement[int]):
    """The latest number that a buffer has given: `last_number(buffer_id)`."""

    inherit_cache = True
    type = BigInteger()


@compiles(last_number, "postgresql")
def _pg_last_number(element: last_number, compiler: Any, **kw: Any) -> str:
    (buffer_id,) = processed(element, compiler, kw)
    last = f"pg_sequence_last_value(to_regclass('sqlbuffer_seq_' || {buffer_id}))"
    # A standby sees up to 32 numbers ahead.
    newest = (
        f"(SELECT e.seq FROM experiences AS e WHERE e.buffer_id = {buffer_id} "
        "ORDER BY e.seq DESC LIMIT 1)"
    )
    on_standby = f"coalesce(greatest({last} - 32, {newest}), 0)"
    return f"CASE WHEN pg_is_in_recovery() THEN {on_standby} ELSE coalesce({last}, 0) END"


class is_standby(FunctionElement[bool]):
    """True if the server is a standby, which accepts no writes."""

    inherit_cache = True
    type = Boolean()


@compiles(is_standby, "postgresql")
def _pg_is_standby(element: is_standby, compiler: Any, **kw: Any) -> str:
    return "pg_is_in_recovery()"


@compiles(is_standby, "sqlite")
def _sqlite_is_standby(element: is_standby, compiler: Any, **kw: Any) -> str:
    return "0"


@compiles(last_number, "sqlite")
def _sqlite_last_number(element: last_number, compiler: Any, **kw: Any) -> str:
    (buffer_id,) = processed(element, compiler, kw)
    return f"(SELECT n.next_seq - 1 FROM buffers AS n WHERE n.id = {buffer_id})"


# Seconds that a row must be older than the last replayed transaction.
STANDBY_AGE_S = 2.0

# The last row, or last step of a chunk, that is old enough, found by bisection: rows are written
# approximately in the order of their numbers. The standby may have replayed no transaction since it
# was started.
_LAST_OLD = f"""
WITH RECURSIVE newest AS (
    SELECT n.seq, greatest(n.inserted_at, pg_last_xact_replay_timestamp())
        - make_interval(secs => %(age_s)s) AS old_at
    FROM (
        (SELECT seq, inserted_at FROM experiences
         WHERE buffer_id = %(id)s ORDER BY seq DESC LIMIT 1)
        UNION ALL
        (SELECT first_seq + n_steps - 1, inserted_at FROM chunks
         WHERE buffer_id = %(id)s ORDER BY first_seq DESC LIMIT 1)
    ) AS n LIMIT 1
), halves(low, high, old_at) AS (
    SELECT least(%(settled)s::bigint, seq), seq, old_at FROM newest
    UNION ALL
    SELECT CASE WHEN next.is_old THEN next.seq ELSE low END,
        CASE WHEN next.is_old THEN high ELSE (low + high + 1) / 2 - 1 END, old_at
    FROM halves CROSS JOIN LATERAL (
        SELECT x.seq, x.inserted_at <= old_at AS is_old FROM (
            (SELECT e.seq, e.inserted_at FROM experiences e
             WHERE e.buffer_id = %(id)s AND e.seq >= (low + high + 1) / 2 ORDER BY e.seq LIMIT 1)
            UNION ALL
            (SELECT c.first_seq + c.n_steps - 1, c.inserted_at FROM chunks c
             WHERE c.buffer_id = %(id)s AND c.first_seq > (low + high + 1) / 2 - {MAX_CHUNK_STEPS}
               AND c.first_seq + c.n_steps - 1 >= (low + high + 1) / 2
             ORDER BY c.first_seq LIMIT 1)
        ) AS x LIMIT 1
    ) AS next WHERE low < high
)
SELECT low, pg_snapshot_xmax(pg_current_snapshot())::text::bigint FROM halves WHERE low = high
"""
# All that was received is replayed, and no transaction runs that has written.
_QUIET = """
SELECT pg_last_wal_replay_lsn()::text,
    EXISTS (SELECT FROM pg_stat_wal_receiver)
        AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn()
        AND pg_snapshot_xmin(pg_current_snapshot()) = pg_snapshot_xmax(pg_current_snapshot()),
    greatest(
        (SELECT seq FROM experiences WHERE buffer_id = %(id)s ORDER BY seq DESC LIMIT 1),
        (SELECT first_seq + n_steps - 1 FROM chunks
         WHERE buffer_id = %(id)s ORDER BY first_seq DESC LIMIT 1))
"""
_OLDEST_RUNNING = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"


class StandbyWatermark:
    """Finds a number up to which no row can appear any more, without the locks of the primary.

    A standby knows a transaction after its first write. A writer writes right after it has reserved
    its numbers, long before a row is `STANDBY_AGE_S` old. So the transactions that may still write
    below an old row are known, and have ids below the snapshot's xmax: a later transaction has
    ended since. Once no transaction below that xmax runs, they have all ended.

    While the primary is idle no row grows old. If nothing has come for `STANDBY_AGE_S`, and no
    transaction runs, all rows are settled.

    Attributes:
        settled: No row up to this number can appear any more.
    """

    def __init__(self) -> None:
        self.settled = 0
        self._pending = 0
        self._later_id: int | None = None
        self._end, self._quiet_since = "", 0.0

    def look(self, driver: "psycopg.Connection", buffer_id: int) -> int:
        """Read the server once, and return `settled`. Each statement needs its own snapshot."""
        if self._later_id is None:
            parameters = {"age_s": STANDBY_AGE_S, "id": buffer_id, "settled": self.settled}
            row = driver.execute(_LAST_OLD, parameters).fetchone()
            if row is None:  # the buffer is empty
                return self.settled
            self._pending, self._later_id = row
        ((oldest_running,),) = driver.execute(_OLDEST_RUNNING)
        if oldest_running >= self._later_id:
            self.settled, self._later_id = max(self.settled, self._pending), None
        self._look_for_quiet(driver, buffer_id)
        return self.settled

    def _look_for_quiet(self, driver: "psycopg.Connection", buffer_id: int) -> None:
        ((end, is_quiet, newest),) = driver.execute(_QUIET, {"id": buffer_id}).fetchall()
        now = time.monotonic()
        if end != self._end or not is_quiet:
            self._end, self._quiet_since = end, now
        elif now - self._quiet_since >= STANDBY_AGE_S:
            self.settled = max(self.settled, newest or 0)


_PREPARED = "-1/"  # prefix of the names of prepared transactions


class Watermark:
    """The number up to which the rows of a buffer are settled: no row below can appear any more.

    Args:
        buffer_id: The buffer.

    Attributes:
        mutex: Held by a thread that reads the server and stores the result.
        settled: No row up to this number can appear any more.
        pending: Next value of `settled`, after all `writers` have ended.
        writers: The transactions that may still write rows up to `pending`, by the server's names.
        on_standby: The watermark of a standby, if the server is one.
    """

    def __init__(self, buffer_id: int) -> None:
        self.buffer_id = buffer_id
        self.mutex = ForkLock()
        self._epoch: int | None = None
        self._forget()

    def _forget(self) -> None:
        self.settled = self.pending = 0
        self.writers: frozenset[str] = frozenset()
        self.on_standby = StandbyWatermark()

    def begin(self, epoch: int) -> None:
        """Start again in another epoch of the server.

        After a crash it may give the same numbers and names of transactions again.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._forget()

    def note(self, last_value: int, running: frozenset[str]) -> None:
        """Store a read of the sequence, and the writers that a later read found."""
        if any(not name.startswith(_PREPARED) for name in self.writers - running):
            # It may have been prepared: then it continues under another name.
            prepared = {name for name in running if name.startswith(_PREPARED)}
            self.writers = self.writers | prepared
        self.writers = self.writers & running
        if not self.writers:
            self.settled = max(self.settled, self.pending)
            self.pending, self.writers = last_value, running
        if not running:
            self.settled = last_value
