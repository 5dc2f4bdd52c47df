"""The window of a buffer, its settled rows, and an exact count of the rows in it."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Engine,
    Integer,
    Select,
    Text,
    bindparam,
    column,
    func,
    literal,
    null,
    select,
    table,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.processes import ForkLock
from sqlbuffer.storage.buffers.tables import experiences, row_blocks
from sqlbuffer.storage.database.engine import begin_epoch, server_epoch
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.transactions import driver_of, is_joined
from sqlbuffer.storage.database.vacuum import cleaner_for
from sqlbuffer.storage.database.wal import move_log
from sqlbuffer.storage.dialects import at_once, by_database
from sqlbuffer.storage.schema.expressions import SeqList, numbers_in
from sqlbuffer.storage.watermarks import Watermark

BLOCK = 4096


windows = table(
    "v_windows",
    column("buffer_id"),
    column("buffer", Text()),
    column("max_capacity"),
    column("max_episodes"),
    column("evict_unit", Text()),
    column("deletions"),
    column("live_rows"),
    column("clock"),
    column("session_id"),
    column("has_labels", Boolean()),
    column("has_quarantine"),
    column("has_deleted"),
    column("low_seq"),
    column("high_seq"),
    column("n_added"),
)


_chunks = table("chunks", column("buffer_id"), column("first_seq"), column("episode_id"))


class BufferWindow(NamedTuple):
    """The rows of a buffer: those with low < seq <= high; `n_added` fields have been added."""

    max_capacity: int | None
    max_episodes: int | None
    evict_by: str
    deletions: int
    live_rows: int
    low: int
    high: int
    has_labels: bool
    n_added: int


class SampledWindow(NamedTuple):
    """The rows that may be sampled, low < seq <= high, and the state that limits depend on.

    Attributes:
        low: Lower end.
        high: The newest row.
        clock: The buffer's clock.
        deletions: Counter that grows with every delete inside the window.
        live_rows: Rows held, if whole tasks or episodes are evicted.
        session: Number of the current session.
        has_labels: Rows may have been annotated.
        has_quarantine: Rows may be in quarantine.
        has_deleted: Steps of chunks may have been deleted.
        n_added: Number of typed fields that have been added to the buffer.
        newest_single: First number of the newest chunk without an episode; None if there is none,
            or that was not asked for.
    """

    low: int
    high: int
    clock: int | None
    deletions: int
    live_rows: int
    session: int | None
    has_labels: bool
    has_quarantine: bool
    has_deleted: bool
    n_added: int
    newest_single: int | None

    @property
    def span(self) -> int:
        """Largest possible number of rows."""
        return max(self.high - self.low, 0)


# With the columns of `BufferWindow`. Made once: to make it takes longer than to run it.
SELECT_WINDOW = select(
    *(
        windows.c[name]
        for name in (
            "max_capacity", "max_episodes", "evict_unit", "deletions", "live_rows", "low_seq",
            "high_seq", "has_labels", "n_added",
        )
    )
).where(windows.c.buffer_id == bindparam("of_buffer", type_=Integer()))  # fmt: skip


def select_sampled_window(
    buffer_id: int, evict_by: str, steps: Any, *, finds_single: bool = False
) -> Select[Any]:
    """Select the window of a buffer with the columns of `SampledWindow`.

    If whole tasks or episodes are evicted, the window begins at the oldest row, without a gap.

    Args:
        buffer_id: The buffer.
        evict_by: Unit of eviction.
        steps: The table of its steps.
        finds_single: Read `newest_single` of steps in chunks.
    """
    single: ColumnElement[Any] = null()
    if finds_single and steps is not experiences:
        of_buffer = _chunks.c.buffer_id == buffer_id, _chunks.c.episode_id.is_(None)
        single = select(func.max(_chunks.c.first_seq)).where(*of_buffer).scalar_subquery()
    low: ColumnElement[int] = windows.c.low_seq
    if evict_by != "row":
        # Only the rows show where the oldest row is.
        step = steps.c
        oldest = select(func.min(step.seq) - 1).where(step.buffer_id == buffer_id, step.seq > low)
        low = func.coalesce(oldest.scalar_subquery(), low)
    others = (
        windows.c[name]
        for name in (
            "high_seq", "clock", "deletions", "live_rows", "session_id", "has_labels",
            "has_quarantine", "has_deleted", "n_added",
        )
    )  # fmt: skip
    is_window = windows.c.buffer_id == buffer_id
    return select(low, *others, single.label("newest_single")).where(is_window)


# Needed after rows that plain SQL has written; the library's own writes fill one block after the
# other.
BLOCKS_AT_ONCE = 16
_NEXT_BLOCK = (
    f"SELECT max(w.low_seq / {BLOCK} + 1, coalesce("
    "(SELECT max(k.block) + 1 FROM row_blocks k WHERE k.buffer_id = w.buffer_id), 0)), "
    f"w.low_seq / {BLOCK} FROM v_windows w WHERE w.buffer_id = :id AND w.evict_unit = 'row'"
)
# A buffer has rows or chunks. A chunk may begin in the block before.
_COUNT = f"""
INSERT INTO row_blocks (buffer_id, block, n_rows)
SELECT :id, j.value, (
    SELECT count(*) FROM experiences e
    WHERE e.buffer_id = :id AND e.seq >= j.value * {BLOCK} AND e.seq < (j.value + 1) * {BLOCK}
) + (
    SELECT coalesce(sum(min(c.first_seq + c.n_steps, (j.value + 1) * {BLOCK})
                        - max(c.first_seq, j.value * {BLOCK})), 0) FROM chunks c
    WHERE c.buffer_id = :id AND c.first_seq > j.value * {BLOCK} - {MAX_CHUNK_STEPS}
    AND c.first_seq < (j.value + 1) * {BLOCK} AND c.first_seq + c.n_steps > j.value * {BLOCK}
) - (
    SELECT count(*) FROM deleted_steps d
    WHERE d.buffer_id = :id AND d.seq >= j.value * {BLOCK} AND d.seq < (j.value + 1) * {BLOCK}
)
FROM json_each(:blocks) j
"""


def _sqlite_settled_seq(engine: Engine, watermark: Watermark, wait_s: float = 0.0) -> int | None:
    """Return None: only one writer runs at a time, so every existing row is settled."""
    return None


# A chunk leaves fewer dead rows than its steps as rows would.
_STEPS_PER_ROW = 3


def rows_of_steps(n_steps: int) -> int:
    """Return how many rows steps of chunks count as, until the next look at dead rows is due."""
    return -(-n_steps // _STEPS_PER_ROW)


# About what a transaction writes to the log in any case, and in indexes and narrow tables for a row
# together with the row that leaves. Rows and chunks take about twice their size.
_BYTES_OF_WRITE, _BYTES_OF_ROW = 2**16, 2**10


def _sqlite_clean_after_write(
    engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: Watermark | None = None
) -> None:
    """Move the log from time to time; the file reuses the pages of evicted rows."""
    move_log(engine, _BYTES_OF_WRITE + _BYTES_OF_ROW * n_rows + 2 * n_bytes)


def count_full_blocks(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    """Count the rows of the blocks that an insert of these numbers has filled."""
    if not seqs or seqs[0] // BLOCK >= (seqs[-1] + 1) // BLOCK:
        return
    driver = driver_of(connection)
    next_blocks = driver.execute(_NEXT_BLOCK, {"id": buffer_id}).fetchone()
    if next_blocks is None:
        return
    next_block, cut_block = next_blocks
    blocks = range(next_block, min((seqs[-1] + 1) // BLOCK, next_block + BLOCKS_AT_ONCE))
    driver.execute(_COUNT, {"id": buffer_id, "blocks": json.dumps([*blocks])})
    driver.execute(
        "DELETE FROM row_blocks WHERE buffer_id = ? AND block <= ?", (buffer_id, cut_block)
    )


# A transaction that reserves numbers of a buffer holds (this, buffer id) as a shared advisory lock
# until it ends. `sqlbuffer_reserve_v1` takes it: the number is written there too.
WRITERS_LOCK = 1_397_836_866
# Two statements in one message, so that a number reserved after the first one is not seen. The lock
# is taken for this message alone, in 0.03 ms. A standby knows no locks of its primary.
_LOOK = (
    "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM sqlbuffer_seq_{0}; "
    "SELECT CASE WHEN NOT pg_is_in_recovery() "
    f"THEN pg_try_advisory_xact_lock({WRITERS_LOCK}, {{0}}) END"
)
# Readers hold the lock in another mode, only for the moment of the read. With 5,000 locks of others
# it takes 7 ms.
_WRITERS = (
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' "
    f"AND granted AND classid = {WRITERS_LOCK} AND objid = {{}} AND objsubid = 2 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
SETTLING_PAUSE_S = 0.001


def _postgresql_settled_seq(
    engine: Engine, watermark: Watermark, wait_s: float = 0.0
) -> int | None:
    """Return a seq up to which no row can appear any more.

    A writer locks the buffer before it reserves numbers, until its transaction ends; see
    `WRITERS_LOCK`. So the numbers up to `last_value` belong to transactions that have ended, or
    that hold the lock when it is read afterwards. Reading in the other order would miss a writer
    that starts between the two reads. A caller that reads rows by the result opens its snapshot
    afterwards.
    """
    deadline = time.monotonic() + wait_s
    known = watermark
    with known.mutex, at_once(engine) as connection:
        last_value, is_free = _last_number(connection, known.buffer_id)
        known.begin(server_epoch(engine))
        if is_free is None:
            return known.on_standby.look(driver_of(connection), known.buffer_id)
        if last_value < max(known.settled, known.pending):
            # No connection reported this crash; perhaps there is a pooler in between.
            begin_epoch(engine)
            known.begin(server_epoch(engine))
        if is_free:
            known.note(last_value, frozenset())
        while known.settled < last_value:
            writers = driver_of(connection).execute(_WRITERS.format(known.buffer_id))
            known.note(last_value, frozenset(name for (name,) in writers))
            if known.settled >= last_value or time.monotonic() >= deadline:
                break
            time.sleep(SETTLING_PAUSE_S)
        return known.settled


def _last_number(connection: Connection, buffer_id: int) -> tuple[int, bool | None]:
    """Return the last number of a buffer, and True if no writer held its lock after that.

    The second value is None on a standby.
    """
    # Several statements in one message need a cursor with the text protocol.
    cursor = psycopg.Cursor(driver_of(connection)).execute(_LOOK.format(buffer_id))
    ((last_value,),) = cursor.fetchall()
    cursor.nextset()
    ((is_free,),) = cursor.fetchall()
    return last_value, is_free


def _postgresql_clean_after_write(
    engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: Watermark | None = None
) -> None:
    """Clean up after eviction, and count full blocks of rows, from time to time."""
    cleaner = cleaner_for(engine)
    if inserted_into is not None:
        count = partial(_count_full_blocks, engine, inserted_into)
        cleaner.inserted(inserted_into.buffer_id, count)
    cleaner.wrote(engine, n_rows, n_bytes)


def _count_full_blocks(
    engine: Engine, watermark: Watermark, connection: Connection, buffer_id: int
) -> None:
    """Count the rows of the blocks that can get no more rows, a few blocks in a transaction."""
    try:
        end = _postgresql_settled_seq(engine, watermark)
    except psycopg.errors.UndefinedTable:  # the buffer was dropped
        return
    # Apply the changes that concurrent writers have left: only one writer at a time changes groups.
    connection.exec_driver_sql("SELECT sqlbuffer_fold_groups_v1(%s::integer)", (buffer_id,))
    statement = "SELECT sqlbuffer_count_rows_v1(%s::integer, %s::bigint)"
    while connection.exec_driver_sql(statement, (buffer_id, end)).scalar_one():
        pass
    sweep = "SELECT sqlbuffer_sweep_messages_v1(%s::integer)"
    while connection.exec_driver_sql(sweep, (buffer_id,)).scalar_one():
        pass


settled_seq = by_database(sqlite=_sqlite_settled_seq, postgresql=_postgresql_settled_seq)


_clean = by_database(sqlite=_sqlite_clean_after_write, postgresql=_postgresql_clean_after_write)


def clean_after_write(
    engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: Watermark | None = None
) -> None:
    """Clean after a write, unless it is part of a transaction that goes on.

    Args:
        engine: The engine.
        n_rows: Number of rows that were written.
        n_bytes: Their size in bytes.
        inserted_into: Watermark of the buffer, if the rows are new.
    """
    if not is_joined():
        _clean(engine, n_rows, n_bytes, inserted_into)


# Arguments: a buffer, a first number and an end.
CountRows = Callable[[int, Any, Any], Any]


class LiveCount:
    """Remembers how many rows each block of 4,096 numbers holds, once no writer can add to it.

    The table `row_blocks` holds the counts of most blocks, for all processes. Only the block that
    the window's lower end cuts and the newest rows are counted each time. After a delete inside the
    window, or a crash of the server, this process counts its remembered blocks again.

    Args:
        n_rows: Function that returns the expression for the number of rows from one number up to
            another, exclusive.
    """

    def __init__(self, n_rows: CountRows | None = None) -> None:
        self._n_rows = _n_rows if n_rows is None else n_rows
        self._mutex = ForkLock()
        self._state: tuple[int, ...] = ()
        self._blocks: dict[int, int] = {}

    def count(
        self,
        connection: Connection,
        buffer_id: int,
        low: int,
        high: int,
        settled: int,
        state: tuple[int, ...],
    ) -> int:
        """Return the number of rows with low < seq <= high.

        Args:
            connection: Where to count.
            buffer_id: The buffer.
            low: Lower end of the window.
            high: Upper end of the window.
            settled: Number up to which no row can appear any more.
            state: State of the buffer, read before the rows are counted. While it is the same,
                blocks lose rows only at the window's lower end.
        """
        first_whole = low // BLOCK + 1
        end_whole = max(first_whole, (settled + 1) // BLOCK)
        with self._mutex:
            if state != self._state:
                self._state, self._blocks = state, {}
            known = {
                block: n for block, n in self._blocks.items() if first_whole <= block < end_whole
            }
        counted = self._count_unknown(
            connection, buffer_id, low, high, first_whole, end_whole, known
        )
        with self._mutex:
            if state == self._state:
                whole = range(first_whole, end_whole)
                self._blocks = {
                    **known,
                    **{block: counted.get(block, 0) for block in whole if block not in known},
                }
        return sum(known.values()) + sum(counted.values())

    def _count_unknown(
        self,
        connection: Connection,
        buffer_id: int,
        low: int,
        high: int,
        first_whole: int,
        end_whole: int,
        known: dict[int, int],
    ) -> dict[int, int]:
        """Count the cut block at the lower end, and all blocks from the first unknown one on.

        A block is unknown if neither this process nor the table has its count. Counts from the
        table are added to `known`.
        """
        end = max(end_whole, (high + 1) // BLOCK)
        start = _first_unknown(known, first_whole, end)
        if start < end:
            # Blocks above `end_whole` too: the process that counted them knew that they were
            # complete.
            known.update(connection.execute(_select_counted(buffer_id, start, end)).all())
            start = _first_unknown(known, start, end)
        for block in [block for block in known if block >= start]:
            del known[block]
        cut = select(
            literal(first_whole - 1), self._n_rows(buffer_id, low + 1, first_whole * BLOCK)
        )
        newest = self._counted(buffer_id, range(start, high // BLOCK + 1))
        return dict(connection.execute(union_all(cut, newest)).all())

    def _counted(self, buffer_id: int, blocks: range) -> Select[int, int]:
        """Select (block, rows) of blocks, range by range: grouping takes three times as long."""
        numbers = bindparam(None, list(blocks), SeqList(), unique=True)
        block = numbers_in(numbers).table_valued(column("value", BigInteger)).c.value
        return select(block, self._n_rows(buffer_id, block * BLOCK, (block + 1) * BLOCK))


def _first_unknown(known: dict[int, int], start: int, end: int) -> int:
    return next((block for block in range(start, end) if block not in known), end)


def _select_counted(buffer_id: int, start: int, end: int) -> Select[int, int]:
    """Select (block, rows) of the counted blocks from `start` up to `end`, exclusive."""
    block = row_blocks.c
    return select(block.block, block.n_rows).where(
        block.buffer_id == buffer_id, block.block >= start, block.block < end
    )


def _n_rows(buffer_id: int, start: Any, end: Any) -> Any:
    """Return the number of rows with start <= seq < end."""
    row = experiences.c
    inside = (row.buffer_id == buffer_id, row.seq >= start, row.seq < end)
    return select(func.count()).select_from(experiences).where(*inside).scalar_subquery()
