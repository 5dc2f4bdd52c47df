"""Clean up after eviction, and after learners, on PostgreSQL.

A row that is evicted, or updated while an old snapshot holds it, stays in the table as a dead row
until a VACUUM. The server's own VACUUM runs once a minute: until then a fast writer fills the table
with nine times its live size. So every process that writes, learners too, also checks for dead
rows. One process at a time cleans, in a thread that ends when the work is done.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, text

from sqlbuffer.errors import SQLBufferError
from sqlbuffer.processes import ForkLock, at_process_end
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import AT_ONCE, driver_of, reading
from sqlbuffer.storage.schema.metadata import vacuumed_tables

# Counts the rows of those blocks of a buffer that can get no more rows.
Count = Callable[[Connection, int], None]

logger = logging.getLogger("sqlbuffer")

# A check costs a millisecond. It runs after this many rows, this many bytes of parts or chunks, or
# this many seconds after the last check.
ROWS_BETWEEN_LOOKS = 5_000
BYTES_BETWEEN_LOOKS = 16 * 2**20
SECONDS_BETWEEN_LOOKS = 5.0
# Clean when a fifth of the rows is dead, and the dead rows are more than this number or take more
# than this space. A few hundred chunks, each a row of up to 256 KiB, may be all that a buffer has.
MAX_DEAD_PER_LIVE = 0.2
MIN_DEAD_ROWS = 10_000
MIN_DEAD_BYTES = 2 * 2**20
# Analyze when a table has a tenth more pages of 8 KiB than the last time, and at least this many:
# then the plans that functions keep are made again, for a table of this size. The server's own
# ANALYZE comes a minute later. Until then the planner may take a wrong index of a small `chunks`,
# and read all chunks of a buffer for each step of a batch. A full buffer whose rows are replaced
# does not grow. The server counts new rows a second late, but pages at once.
MAX_NEW_PER_KNOWN = 0.1
MIN_NEW_PAGES = 4
# While an old snapshot holds the dead rows, a VACUUM reads the table for nothing. Most snapshots
# are short, also the server's own. After ten seconds of a fast writer the table would have grown to
# many times its contents.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 600.0
# After this time a process that died in a VACUUM is replaced. One that takes longer continues
# undisturbed: the next one skips tables that are being cleaned.
LEASE_S = 120.0
# Seconds that an ending process waits for its cleaning: cut short, it would keep the lease.
END_S = 5.0
TASK, ANALYZE_TASK = "vacuum", "analyze"
# One process at a time deletes the ids of old writes (`applied_writes`), and old entries of the
# change log.
FORGET_TASK, SECONDS_BETWEEN_FORGETTING = "forget writes", 30.0
# Not the generator that a program may have seeded.
chance = random.SystemRandom().random

# Tables whose rows die often, with those that capabilities add when they are imported.
_TABLES = [
    "experiences", "episodes", "tasks", "priority_blocks", "row_blocks", "samples", "flow",
    "leases", "applied_writes",
]  # fmt: skip
_STATE = text(
    """
SELECT s.relname, s.n_dead_tup, s.n_live_tup, s.n_tup_del + s.n_tup_upd AS died,
    extract(epoch FROM greatest(s.last_vacuum, s.last_autovacuum))::double precision AS cleaned_at,
    pg_has_role(c.relowner, 'USAGE') OR CASE
        -- Before PostgreSQL 17 there is no such right, and asking for it is an error.
        WHEN current_setting('server_version_num')::integer >= 170000
        THEN has_table_privilege(c.oid, 'MAINTAIN') ELSE false END AS may_clean,
    pg_table_size(s.relid) AS size_bytes,
    -- Null where the table has been dropped since.
    coalesce(pg_relation_size(s.relid), 0) / current_setting('block_size')::integer AS n_pages,
    c.relpages
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.relid = ANY (SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) AS t(name))
"""
)


@dataclass
class Table:
    """Statistics of the server about a table.

    They are the dead and live rows, the rows that ever died, and the time of the last cleaning.
    Further: the right to clean, the size with large values, and the pages without them: now, and at
    the last VACUUM or ANALYZE.
    """

    name: str
    dead: int
    live: int
    died: int
    cleaned_at: float | None
    may_clean: bool
    size_bytes: int
    n_pages: int
    known_pages: int

    @property
    def has_grown(self) -> bool:
        """True if the table needs an ANALYZE."""
        new = self.n_pages - self.known_pages
        return new >= MIN_NEW_PAGES and new > MAX_NEW_PER_KNOWN * self.known_pages

    @property
    def is_dirty(self) -> bool:
        """True if the table needs a VACUUM."""
        if self.dead <= MAX_DEAD_PER_LIVE * self.live:
            return False
        dead_bytes = self.size_bytes * self.dead / (self.dead + self.live)
        return self.dead > MIN_DEAD_ROWS or dead_bytes > MIN_DEAD_BYTES


class Cleaner:
    """Cleans up the dead rows of one database, for one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._mutex = ForkLock()
        # The first check comes at a random time, as if this process had begun long ago: many
        # processes that each write little check, taken together, as often as one that writes all of
        # it.
        begun = chance()
        self._rows = int(begun * ROWS_BETWEEN_LOOKS)
        self._bytes = int(begun * BYTES_BETWEEN_LOOKS)
        self._looked_at = time.monotonic() - begun * SECONDS_BETWEEN_LOOKS
        self._counts: dict[int, Count] = {}
        self._pause_s = FIRST_PAUSE_S
        self._swept_at = 0.0
        self._may_not_said = self._failed = False
        self.thread: threading.Thread | None = None

    def inserted(self, buffer_id: int, count: Count) -> None:
        """Count full blocks of a buffer at the next check for dead rows."""
        with self._mutex:
            self._counts[buffer_id] = count

    def wrote(self, engine: Engine, n_rows: int, n_bytes: int = 0) -> None:
        """Count rows and bytes of parts that were written; check for dead rows if it is time."""
        with self._mutex:
            self._rows += n_rows
            self._bytes += n_bytes
            now = time.monotonic()
            due = (
                self._rows >= ROWS_BETWEEN_LOOKS
                or self._bytes >= BYTES_BETWEEN_LOOKS
                or now - self._looked_at >= SECONDS_BETWEEN_LOOKS
            )
            if not due or (self.thread is not None and self.thread.is_alive()):
                return
            self._rows, self._bytes, self._looked_at = 0, 0, now
            counts, self._counts = self._counts, {}
            self.thread = threading.Thread(
                target=self._run, args=(engine, counts), name="sqlbuffer-vacuum", daemon=True
            )
        # At the end of the process, or at a limit on threads, a later check cleans. The write is
        # done.
        with suppress(RuntimeError):
            self.thread.start()
            at_process_end(_finish)

    def _run(self, engine: Engine, counts: dict[int, Count]) -> None:
        try:
            with translated(engine.url), reading(engine, AT_ONCE) as connection:
                driver = driver_of(connection)
                if not driver.autocommit:  # an engine of the user's
                    connection.execution_options(isolation_level="AUTOCOMMIT")
                self._clean(connection)
                for buffer_id, count in counts.items():
                    count(connection, buffer_id)
        except SQLBufferError as error:
            # The writers continue; the next writer checks again.
            level = logging.DEBUG if self._failed else logging.WARNING
            self._failed = True
            logger.log(level, "could not clean up after evicted rows: %s", error)

    def _clean(self, connection: Connection) -> None:
        tables = _tables(connection)
        dirty = [table for table in tables if table.is_dirty]
        if not all(table.may_clean for table in dirty) and not self._may_not_said:
            self._may_not_said = True
            logger.warning(
                "this role may not VACUUM %s: evicted rows wait for the server's autovacuum and "
                "the table grows meanwhile; let its owner write, or on PostgreSQL 17 and later "
                "GRANT MAINTAIN (see `sqlbuffer db roles`)",
                ", ".join(table.name for table in dirty),
            )
        dirty = [table for table in dirty if table.may_clean]
        if dirty and _lease(connection, LEASE_S):
            self._vacuum(connection, dirty)
            tables = _tables(connection)
        self._analyze(connection, [t for t in tables if t.has_grown and t.may_clean])
        self._sweep(connection, tables)
        if _lease(connection, SECONDS_BETWEEN_FORGETTING, FORGET_TASK):
            connection.exec_driver_sql("SELECT sqlbuffer_forget_writes_v1()")
            connection.exec_driver_sql("SELECT sqlbuffer_trim_changes_v1()")

    def _analyze(self, connection: Connection, grown: list[Table]) -> None:
        """Update the planner's statistics of tables with many new rows."""
        if grown and _lease(connection, LEASE_S, ANALYZE_TASK):
            for table in grown:
                connection.exec_driver_sql(f"ANALYZE (SKIP_LOCKED) {table.name}")
            _lease(connection, 0.0, ANALYZE_TASK, renew=True)

    def _vacuum(self, connection: Connection, dirty: list[Table]) -> None:
        """Clean the tables; pause for a while if that had no effect."""
        for table in dirty:
            # Without TRUNCATE, which would lock writers out. Tables with another VACUUM under way
            # are skipped.
            connection.exec_driver_sql(f"VACUUM (TRUNCATE OFF, SKIP_LOCKED) {table.name}")
        before = sum(table.dead for table in dirty)
        names = {table.name for table in dirty}
        cleaned = [table for table in _tables(connection) if table.name in names]
        # Without those that died during the cleaning.
        held = sum(table.dead - table.died for table in cleaned) + sum(t.died for t in dirty)
        logger.debug("cleaned %s: %d dead rows, %d are held", ", ".join(names), before, held)
        if held > before / 2:
            _lease(connection, self._pause_s, renew=True)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            _lease(connection, 0.0, renew=True)
            self._pause_s = FIRST_PAUSE_S

    def _sweep(self, connection: Connection, tables: list[Table]) -> None:
        """Remove rows that the trigger's narrow search missed, once the index is clean."""
        cleaned_at = max((table.cleaned_at or 0.0 for table in tables), default=0.0)
        if cleaned_at <= self._swept_at:
            return
        self._swept_at = cleaned_at
        while connection.exec_driver_sql("SELECT sqlbuffer_sweep_v1()").scalar_one():
            pass


_cleaners: "WeakKeyDictionary[Engine, Cleaner]" = WeakKeyDictionary()


def cleaner_for(engine: Engine) -> Cleaner:
    """Return this process's cleaner of the engine's database."""
    cleaner = _cleaners.get(engine)
    if cleaner is None or cleaner.pid != os.getpid():
        cleaner = _cleaners[engine] = Cleaner()
    return cleaner


def _finish() -> None:
    """Wait until this process has finished cleaning."""
    deadline = time.monotonic() + END_S
    for cleaner in list(_cleaners.values()):
        if (thread := cleaner.thread) is not None and thread.is_alive():
            thread.join(max(0.0, deadline - time.monotonic()))


def _tables(connection: Connection) -> list[Table]:
    names = [*_TABLES, *vacuumed_tables()]
    return [Table(*row) for row in connection.execute(_STATE, {"names": names})]


def _lease(
    connection: Connection, lease_s: float, task: str = TASK, *, renew: bool = False
) -> bool:
    """Take a task, or renew it as its holder, and set how long it stays taken."""
    statement = text("SELECT sqlbuffer_lease_v1(:task, :holder, :lease_s, :renew)")
    values = {"task": task, "holder": _holder(), "lease_s": lease_s, "renew": renew}
    return bool(connection.execute(statement, values).scalar_one())


def _holder() -> str:
    return f"{os.uname().nodename} {os.getpid()}"
