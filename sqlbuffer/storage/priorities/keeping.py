"""Set the priorities of rows, and summarize them by block."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection, Integer, bindparam, insert, select

from sqlbuffer.errors import StorageBusyError, StorageFullError, StorageReadOnlyError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer, retry_on_disconnect
from sqlbuffer.storage.buffers.window import clean_after_write
from sqlbuffer.storage.buffers.writes import commits_of
from sqlbuffer.storage.database.errors import NO_BUFFER, translated
from sqlbuffer.storage.database.transactions import driver_of, is_joined, joined_connection
from sqlbuffer.storage.dialects import by_database, writing
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.priorities.blocks import (
    SUMMARIZE_TIMEOUT_S,
    Blocks,
    Changes,
    Kept,
    Upkeep,
    priority_blocks,
    summary,
)
from sqlbuffer.storage.priorities.draws import (
    Priorities,
    sqlite_initial_priority,
    sqlite_is_in_chunk,
    sqlite_steps_between,
)
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema.expressions import SeqList, is_number_of
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

_NUMPY = orjson.OPT_SERIALIZE_NUMPY
# Rows that one statement sets; a statement of more takes long to parse.
_SET_AT_ONCE = 1_024
_OF_ROW = f"(?1 << {NUMBER_BITS}) + v.column1"
# All rows in one step of the driver, which other threads do not wait for. A row of `priorities`
# belongs to a row that the buffer holds; others are looked up. A condition that joins the rows
# would double the time.
_SQLITE_SET = (
    "INSERT INTO priorities (buffer_id, seq, priority) SELECT ?1, v.column1, v.column2 "
    "FROM (VALUES {}) AS v WHERE {} "
    "ON CONFLICT (buffer_id, seq) DO UPDATE SET priority = excluded.priority"
)
_IS_HELD = (
    "v.column1 > (SELECT low_seq FROM v_windows WHERE buffer_id = ?1) "
    "AND (EXISTS (SELECT 1 FROM priorities p WHERE p.buffer_id = ?1 AND p.seq = v.column1) "
    f"OR EXISTS (SELECT 1 FROM experiences e WHERE e.key = {_OF_ROW} AND e.seq = v.column1) "
    f"OR {sqlite_is_in_chunk('?1', 'v.column1')})"
)
_IS_GIVEN = "v.column1 IS NOT NULL"
_SQLITE_HELD = (
    "SELECT j.value, coalesce(p.priority, (SELECT coalesce(e.initial_priority, 1.0) "
    f"FROM experiences e WHERE e.key = (:id << {NUMBER_BITS}) + j.value AND e.seq = j.value), "
    f"{sqlite_initial_priority(':id', 'j.value')}) FROM json_each(:seqs) j "
    "LEFT JOIN priorities p ON p.buffer_id = :id AND p.seq = j.value "
    "WHERE j.value > (SELECT low_seq FROM v_windows WHERE buffer_id = :id)"
)
_SQLITE_STEPS_OF_BLOCK = sqlite_steps_between("(SELECT 1)", ":id", ":first", ":last")
_SQLITE_OF_BLOCK = (
    "SELECT coalesce(p.priority, e.initial_priority, 1.0) FROM experiences e "
    "LEFT JOIN priorities p ON p.buffer_id = e.buffer_id AND p.seq = e.seq "
    f"WHERE e.key >= (:id << {NUMBER_BITS}) + :first AND e.key <= (:id << {NUMBER_BITS}) + :last "
    f"UNION ALL SELECT priority FROM ({_SQLITE_STEPS_OF_BLOCK})"
)
_SQLITE_BLOCKS = (
    "SELECT k.block, k.weight_sum, k.max_priority, coalesce(k.min_priority, 9e999), "
    "k.max_is_upper_bound, k.min_is_lower_bound FROM json_each(:blocks) j "
    "CROSS JOIN priority_blocks k ON k.buffer_id = :id AND k.block = j.value"
)
_SQLITE_CHANGE = (
    "UPDATE priority_blocks SET weight_sum = ?, max_priority = ?, min_priority = ?, "
    "max_is_upper_bound = ?, min_is_lower_bound = ? WHERE block = ? AND buffer_id = ?"
)
_SQLITE_FORGET = "DELETE FROM priority_blocks WHERE buffer_id = ? AND block = ?"
_SQLITE_RAISE = (
    "UPDATE buffers SET max_priority = :largest WHERE id = :id "
    "AND (max_priority IS NULL OR max_priority < :largest)"
)
_SQLITE_LOG = (
    "INSERT INTO change_log (buffer_id, kind, seqs, origin) "
    "SELECT id, 'priorities', :seqs, :origin FROM buffers WHERE id = :id AND has_followers"
)
_SQLITE_SUMMARIZE = (
    "INSERT INTO priority_blocks (buffer_id, block, n_rows, weight_sum, max_priority, "
    "min_priority) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, block) DO UPDATE "
    "SET n_rows = excluded.n_rows, weight_sum = excluded.weight_sum, "
    "max_priority = excluded.max_priority, min_priority = excluded.min_priority, "
    "max_is_upper_bound = 0, min_is_lower_bound = 0"
)


def _sqlite_update_priorities(
    connection: Connection, of: Blocks, seqs: Integers, new: Reals, origin: str | None = None
) -> int:
    """Set the priorities of the rows that the buffer holds, and log them; return how many."""
    driver, listed = driver_of(connection), orjson.dumps(seqs, option=_NUMPY).decode()
    summaries = _sqlite_summaries(driver, of, seqs)
    if summaries:
        rows, old = _sqlite_held(driver, of, listed)
        new = new[np.searchsorted(seqs, rows)]
        n_set = _sqlite_set(driver, of, rows, new, _IS_GIVEN)
    else:
        n_set = _sqlite_set(driver, of, seqs, new, _IS_HELD)
    if not n_set:
        _sqlite_check_there(connection, of.buffer_id)
        return 0
    if summaries:
        _sqlite_change_blocks(driver, of, summaries, of.changes(rows, old, new))
    elif n_set < len(seqs):
        rows, _ = _sqlite_held(driver, of, listed)
        new = new[np.searchsorted(seqs, rows)]
    driver.execute(_SQLITE_RAISE, {"id": of.buffer_id, "largest": float(new.max())})
    driver.execute(_SQLITE_LOG, {"id": of.buffer_id, "seqs": listed, "origin": origin})
    return n_set


def _sqlite_set(
    driver: sqlite3.Connection, of: Blocks, seqs: Integers, new: Reals, condition: str
) -> int:
    """Set the priorities of rows that meet a condition; return how many."""
    n_set = 0
    for start in range(0, len(seqs), _SET_AT_ONCE):
        part = seqs[start : start + _SET_AT_ONCE].tolist()
        # Few statements: the driver keeps them parsed. No row has the number null.
        n = 1 << (len(part) - 1).bit_length()
        values: list[Any] = [of.buffer_id] + [None] * (2 * n)
        values[1 : 2 * len(part) : 2] = part
        values[2 : 2 * len(part) + 1 : 2] = new[start : start + _SET_AT_ONCE].tolist()
        n_set += driver.execute(_sqlite_set_statement(n, condition), values).rowcount
    return n_set


@cache
def _sqlite_set_statement(n: int, condition: str) -> str:
    """Return the statement that sets the priorities of n rows."""
    values = ", ".join(f"(?{i}, ?{i + 1})" for i in range(2, 2 * n + 2, 2))
    return _SQLITE_SET.format(values, condition)


def _sqlite_held(driver: sqlite3.Connection, of: Blocks, listed: str) -> tuple[Integers, Reals]:
    """Return those rows of a list that the buffer holds, and their priorities."""
    rows = driver.execute(_SQLITE_HELD, {"id": of.buffer_id, "seqs": listed})
    stored = [row for row in rows if row[1] is not None]
    seqs, priorities = zip(*stored, strict=True) if stored else ((), ())
    return np.array(seqs, np.int64), np.array(priorities, np.float64)


def _sqlite_check_there(connection: Connection, buffer_id: int) -> None:
    rows = connection.exec_driver_sql("SELECT 1 FROM buffers WHERE id = ?", (buffer_id,))
    if rows.first() is None:
        raise sqlite3.IntegrityError(f"{NO_BUFFER} with buffer_id {buffer_id}")


def _sqlite_summaries(
    driver: sqlite3.Connection, of: Blocks, seqs: Integers
) -> list[tuple[Any, ...]]:
    """Return what is stored of the blocks of rows, in the order of the blocks."""
    blocks = seqs // of.size
    is_first = np.ones(len(blocks), bool)
    np.not_equal(blocks[1:], blocks[:-1], out=is_first[1:])
    listed = orjson.dumps(blocks[is_first], option=_NUMPY).decode()
    return driver.execute(_SQLITE_BLOCKS, {"id": of.buffer_id, "blocks": listed}).fetchall()


def _sqlite_change_blocks(
    driver: sqlite3.Connection,
    of_buffer: Blocks,
    summaries: Sequence[tuple[Any, ...]],
    changes: Changes,
) -> None:
    changed = set(changes.block.tolist())
    stored = [row for row in summaries if row[0] in changed]
    if not stored:
        return
    kept = of_buffer.changed(Kept.of(stored), changes)
    columns = [column.tolist() for column in (*kept[1:], kept.block)]
    columns[2] = [None if least == np.inf else least for least in columns[2]]
    rows = [(*row, of_buffer.buffer_id) for row in zip(*columns, strict=True)]
    driver.executemany(_SQLITE_CHANGE, rows)
    for block in kept.block[of_buffer.are_lost(kept)].tolist():
        driver.execute(_SQLITE_FORGET, (of_buffer.buffer_id, block))


def _sqlite_summarize(
    connection: Connection, of: Blocks, blocks: Sequence[int], settled: int
) -> int:
    """Add up the blocks in the window that can get no more rows; return how many were added up.

    Rows of priorities that have left the window are deleted.
    """
    state = connection.exec_driver_sql(
        "SELECT w.low_seq, b.clean_seq FROM v_windows w JOIN buffers b ON b.id = w.buffer_id "
        "WHERE b.id = ?",
        (of.buffer_id,),
    ).one_or_none()
    if state is None:
        return 0
    low, clean_seq = state
    hold_low = held_low(connection, of.buffer_id)
    _sqlite_clean(connection, of, low if hold_low is None else min(low, hold_low), clean_seq)
    size = of.size
    summaries = [
        summary(block, _sqlite_priorities(connection, of, block), of.alpha)
        for block in blocks
        if max(block * size, 1) > low and (block + 1) * size <= settled + 1
    ]
    if summaries:
        connection.exec_driver_sql(_SQLITE_SUMMARIZE, [(of.buffer_id, *row) for row in summaries])
    return len(summaries)


def _sqlite_clean(connection: Connection, of: Blocks, low: int, clean_seq: int) -> None:
    size = of.size
    cleaned = min(low + 1, clean_seq + of.n_cleaned) // size * size - 1
    if cleaned <= clean_seq:
        return
    for table, key, first, last in (
        ("priorities", "seq", clean_seq, cleaned),
        ("priority_blocks", "block", clean_seq // size, cleaned // size),
    ):
        connection.exec_driver_sql(
            f"DELETE FROM {table} WHERE buffer_id = ? AND {key} >= ? AND {key} <= ?",
            (of.buffer_id, first, last),
        )
    connection.exec_driver_sql(
        "UPDATE buffers SET clean_seq = ? WHERE id = ?", (cleaned, of.buffer_id)
    )


def _sqlite_priorities(connection: Connection, of: Blocks, block: int) -> NDArray[np.float64]:
    """Return the priorities of the rows of a block."""
    first, last = block * of.size, (block + 1) * of.size - 1
    values = {"id": of.buffer_id, "first": first, "last": last}
    rows = connection.exec_driver_sql(_SQLITE_OF_BLOCK, values).scalars()
    return np.fromiter(rows, np.float64)


_POSTGRESQL_UPDATE = (
    "SELECT sqlbuffer_update_priorities_v1(%s::integer, %s::bigint[], %s::double precision[], "
    "%s::uuid)"
)
_POSTGRESQL_SUMMARIZE = (
    "SELECT sqlbuffer_summarize_v1(%s::integer, %s::bigint[], %s::bigint, %s::bigint)"
)


def _postgresql_update_priorities(
    connection: Connection, of: Blocks, seqs: Integers, new: Reals, origin: str | None = None
) -> int:
    values = (of.buffer_id, _array_text(seqs), _array_text(new), origin)
    ((n_updated,),) = driver_of(connection).execute(_POSTGRESQL_UPDATE, values)
    return int(n_updated)


def _array_text(values: NDArray[Any]) -> str:
    """Return numbers as the text of an array: other threads wait while Python makes it."""
    return f"{{{orjson.dumps(values, option=_NUMPY).decode()[1:-1]}}}"


def _postgresql_summarize(
    connection: Connection, of: Blocks, blocks: Sequence[int], settled: int
) -> int:
    driver = driver_of(connection)
    driver.execute(f"SET LOCAL lock_timeout = '{SUMMARIZE_TIMEOUT_S}s'")
    values = (of.buffer_id, list(blocks), settled, of.n_cleaned)
    ((n_summarized,),) = driver.execute(_POSTGRESQL_SUMMARIZE, values)
    return int(n_summarized)


update_priorities = by_database(
    sqlite=_sqlite_update_priorities, postgresql=_postgresql_update_priorities
)
summarize = by_database(sqlite=_sqlite_summarize, postgresql=_postgresql_summarize)


# Number of updates of priorities after which rows below the window are cleaned.
UPDATES_A_CLEANING = 64


class PriorityKeeping:
    """Sets the priorities of rows, and adds them up.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer = buffer
        self.upkeep = Upkeep()
        self._updates, self._is_due = count(1), False

    def of(self, candidates: Candidates) -> Priorities:
        """Return the priorities of the candidates."""
        return Priorities(candidates, self.buffer.info, self.buffer.options.alpha, self.upkeep)

    def update_priorities(
        self, seqs: Integers, priorities: Reals, origin: str | None = None
    ) -> int:
        """Set the priorities of rows; return how many exist.

        Args:
            seqs: The rows, each once, in ascending order.
            priorities: Their priorities.
            origin: Origin of the entry in the change log, for a follower that knows these
                priorities already; None for this opener.
        """
        if not len(seqs):
            return 0
        n_updated = self._update_priorities(seqs, priorities, origin or self.buffer.origin)
        if origin is None:
            commits_of(self.buffer.url, self.buffer.info.id).n += 1
        self.note_updates(n_updated)
        return n_updated

    def note_updates(self, n_updated: int) -> None:
        """Count updated priorities, and clean up after them from time to time."""
        clean_after_write(self.buffer.engine, n_updated)
        if next(self._updates) % UPDATES_A_CLEANING == 0:
            self._is_due = True  # draws without blocks leave rows behind as well
        if not is_joined():
            self._clean()

    def _clean(self) -> None:
        if self._is_due:
            self._is_due = False
            self.summarize(())

    def clean(self) -> None:
        """Do what a transaction left to be done afterwards: add up the blocks that its draws had to
        read row by row, and delete priorities of rows that have left.
        """
        self._clean()
        self.upkeep.run(self.summarize)

    @retry_on_disconnect
    def _update_priorities(self, seqs: Integers, priorities: Reals, origin: str) -> int:
        joined, engine = joined_connection(self.buffer.engine), self.buffer.engine
        # No write that must take effect once: the same priorities may be set again.
        begun = (
            writing(engine, self.buffer.options.durability)
            if joined is None
            else nullcontext(joined)
        )
        with translated(self.buffer.url), begun as connection:
            return update_priorities(connection, self.blocks, seqs, priorities, origin)

    def summarize(self, blocks: Sequence[int]) -> int:
        """Add up blocks of priorities, and delete rows of priorities below the window.

        Draws then need not read the rows of these blocks. Return how many were added up. Blocks
        that may still get rows are left out, and those that the window cuts: block * size, and 1
        for the first, must be above its lower end. Nothing happens if the role cannot write, or
        would wait for long.

        Args:
            blocks: Their numbers; may be empty.
        """
        n_summarized = 0
        if not self.buffer.info.config.priorities.enabled:
            return n_summarized
        try:
            settled = self.buffer.settled()
            for portion in self.blocks.portions(blocks):
                n_summarized += self._summarize(portion, settled)
        except (StorageReadOnlyError, StorageBusyError, StorageFullError):
            pass  # draws work without them
        return n_summarized

    def summarize_due(self, source: CandidateSource) -> None:
        """Add up blocks of priorities if draws would have to read many of them row by row.

        Called before a draw by priority.
        """
        if is_joined():
            return
        if not self.upkeep.is_known and self.buffer.info.config.priorities.enabled:
            self._note_missing_summaries(source)
        self.upkeep.run(self.summarize)

    @retry_on_disconnect
    def _note_missing_summaries(self, source: CandidateSource) -> None:
        with source.candidates(EVERYTHING) as candidates:
            candidates.priorities.note_missing_summaries()

    @property
    def alpha(self) -> float:
        """The exponent of draws by priority."""
        return (
            self.buffer.info.config.priorities.alpha
            if self.buffer.options.alpha is None
            else self.buffer.options.alpha
        )

    @retry_on_disconnect
    def _summarize(self, blocks: Sequence[int], settled: int) -> int:
        with (
            translated(self.buffer.url),
            # Sums that are lost in a crash of the server are computed again.
            writing(self.buffer.engine, "relaxed") as connection,
        ):
            return summarize(connection, self.blocks, blocks, settled)

    @property
    def blocks(self) -> Blocks:
        """The parameters of the blocks."""
        info = self.buffer.info
        return Blocks(info.id, info.block_size, info.config.priorities.alpha)


Sums = list[dict[str, Any]]

_SUMS = select(priority_blocks).where(
    priority_blocks.c.buffer_id == bindparam("buffer", type_=Integer()),
    is_number_of(priority_blocks.c.block, bindparam("blocks", type_=SeqList())),
)


def weightless_sums(
    connection: Connection, info: BufferInfo, seqs: Sequence[int], origin: str
) -> Sums:
    """Subtract the weights of rows that are about to be deleted from the sums of their blocks.

    Return these sums: the deletion discards them, and `add_sums` stores them again. Otherwise each
    draw would read as many blocks as rows were deleted.
    """
    if not info.config.priorities.enabled or info.has_chunks or not seqs:
        return []
    size = info.block_size
    blocks = Blocks(info.id, size, info.config.priorities.alpha)
    numbers = np.unique(np.asarray(seqs, np.int64))
    update_priorities(connection, blocks, numbers, np.zeros(len(numbers)), origin)
    leaving = Counter(seq // size for seq in seqs)
    sums = connection.execute(_SUMS, {"buffer": info.id, "blocks": sorted(leaving)}).mappings()
    return [{**row, "n_rows": row["n_rows"] - leaving[row["block"]]} for row in sums]


def add_sums(connection: Connection, sums: Sums, n_removed: int, n_given: int) -> None:
    """Store the sums of `weightless_sums` again, after the rows were deleted.

    Args:
        connection: The transaction.
        sums: The sums.
        n_removed: Number of rows that were deleted.
        n_given: Number of rows that were subtracted; if some did not exist, no sum is stored.
    """
    if sums and n_removed == n_given:
        connection.execute(insert(priority_blocks), sums)
