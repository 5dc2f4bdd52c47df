"""Update priorities on SQLite."""

import json
import sqlite3
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.storage.database.errors import NO_BUFFER
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.priorities.blocks import Blocks, Changes, Kept, summary
from sqlbuffer.storage.priorities.candidates import sqlite_initial_priority, sqlite_steps_between
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

# A row of `priorities` belongs to a row that the buffer holds. If the row is gone, its priority is
# null here and the caller drops it: a condition here would double the time.
_HELD = (
    "SELECT j.value, p.rowid, coalesce(p.priority, (SELECT coalesce(e.initial_priority, 1.0) "
    f"FROM experiences e WHERE e.key = (:id << {NUMBER_BITS}) + j.value AND e.seq = j.value), "
    f"{sqlite_initial_priority(':id', 'j.value')}) FROM json_each(:seqs) j "
    "LEFT JOIN priorities p ON p.buffer_id = :id AND p.seq = j.value "
    "WHERE j.value > (SELECT low_seq FROM v_windows WHERE buffer_id = :id)"
)
_STEPS_OF_BLOCK = sqlite_steps_between("(SELECT 1)", ":id", ":first", ":last")
_OF_BLOCK = (
    "SELECT coalesce(p.priority, e.initial_priority, 1.0) FROM experiences e "
    "LEFT JOIN priorities p ON p.buffer_id = e.buffer_id AND p.seq = e.seq "
    f"WHERE e.key >= (:id << {NUMBER_BITS}) + :first AND e.key <= (:id << {NUMBER_BITS}) + :last "
    f"UNION ALL SELECT priority FROM ({_STEPS_OF_BLOCK})"
)
_UPDATE = "UPDATE priorities SET priority = ? WHERE rowid = ?"
_ADD = "INSERT INTO priorities (buffer_id, seq, priority) VALUES (?, ?, ?)"
_BLOCKS = (
    "SELECT k.block, k.weight_sum, k.max_priority, coalesce(k.min_priority, 9e999), "
    "k.max_is_upper_bound, k.min_is_lower_bound FROM json_each(:blocks) j "
    "CROSS JOIN priority_blocks k ON k.buffer_id = :id AND k.block = j.value"
)
_CHANGE = (
    "UPDATE priority_blocks SET weight_sum = ?, max_priority = ?, min_priority = ?, "
    "max_is_upper_bound = ?, min_is_lower_bound = ? WHERE block = ? AND buffer_id = ?"
)
_FORGET = "DELETE FROM priority_blocks WHERE buffer_id = ? AND block = ?"
_RAISE = (
    "UPDATE buffers SET max_priority = :largest WHERE id = :id "
    "AND (max_priority IS NULL OR max_priority < :largest)"
)
_LOG = (
    "INSERT INTO change_log (buffer_id, kind, seqs, origin) "
    "SELECT id, 'priorities', :seqs, :origin FROM buffers WHERE id = :id AND has_followers"
)
_SUMMARIZE = (
    "INSERT INTO priority_blocks (buffer_id, block, n_rows, weight_sum, max_priority, "
    "min_priority) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, block) DO UPDATE "
    "SET n_rows = excluded.n_rows, weight_sum = excluded.weight_sum, "
    "max_priority = excluded.max_priority, min_priority = excluded.min_priority, "
    "max_is_upper_bound = 0, min_is_lower_bound = 0"
)


def update_priorities(
    connection: Connection,
    of: Blocks,
    seqs: Sequence[int],
    priorities: Sequence[float],
    origin: str | None = None,
) -> int:
    """Set the priorities of the rows that the buffer holds, and log them; return how many."""
    driver = driver_of(connection)
    listed = json.dumps(list(seqs))
    asked = driver.execute(_HELD, {"id": of.buffer_id, "seqs": listed})
    found = [row for row in asked if row[2] is not None]
    if not found:
        _check_there(connection, of.buffer_id)
        return 0
    given = dict(zip(seqs, priorities, strict=True))
    held, places, old = zip(*found, strict=True)
    new = [given[seq] for seq in held]
    rows = list(zip(held, places, new, strict=True))
    driver.executemany(_UPDATE, [(p, place) for _, place, p in rows if place is not None])
    driver.executemany(_ADD, [(of.buffer_id, seq, p) for seq, place, p in rows if place is None])
    _change_blocks(driver, of, of.changes(np.array(held), np.array(old), np.array(new)))
    driver.execute(_RAISE, {"id": of.buffer_id, "largest": max(new)})
    driver.execute(_LOG, {"id": of.buffer_id, "seqs": listed, "origin": origin})
    return len(rows)


def _check_there(connection: Connection, buffer_id: int) -> None:
    found = connection.exec_driver_sql("SELECT 1 FROM buffers WHERE id = ?", (buffer_id,))
    if found.first() is None:
        raise sqlite3.IntegrityError(f"{NO_BUFFER} with buffer_id {buffer_id}")


def _change_blocks(driver: sqlite3.Connection, of: Blocks, changes: Changes) -> None:
    listed = json.dumps(changes.block.tolist())
    found = driver.execute(_BLOCKS, {"id": of.buffer_id, "blocks": listed}).fetchall()
    if not found:
        return
    kept = of.changed(Kept.of(found), changes)
    columns = [column.tolist() for column in (*kept[1:], kept.block)]
    columns[2] = [None if least == np.inf else least for least in columns[2]]
    rows = [(*row, of.buffer_id) for row in zip(*columns, strict=True)]
    driver.executemany(_CHANGE, rows)
    for block in kept.block[of.are_lost(kept)].tolist():
        driver.execute(_FORGET, (of.buffer_id, block))


def summarize(connection: Connection, of: Blocks, blocks: Sequence[int], settled: int) -> int:
    """Add up the blocks in the window that can get no more rows; return how many were added up.

    Rows of priorities that have left the window are deleted.
    """
    found = connection.exec_driver_sql(
        "SELECT w.low_seq, b.clean_seq FROM v_windows w JOIN buffers b ON b.id = w.buffer_id "
        "WHERE b.id = ?",
        (of.buffer_id,),
    ).one_or_none()
    if found is None:
        return 0
    low, clean_seq = found
    held = held_low(connection, of.buffer_id)
    _clean(connection, of, low if held is None else min(low, held), clean_seq)
    size = of.size
    summaries = [
        summary(block, _priorities(connection, of, block), of.alpha)
        for block in blocks
        if max(block * size, 1) > low and (block + 1) * size <= settled + 1
    ]
    if summaries:
        connection.exec_driver_sql(_SUMMARIZE, [(of.buffer_id, *found) for found in summaries])
    return len(summaries)


def _clean(connection: Connection, of: Blocks, low: int, clean_seq: int) -> None:
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


def _priorities(connection: Connection, of: Blocks, block: int) -> NDArray[np.float64]:
    """Return the priorities of the rows of a block."""
    first, last = block * of.size, (block + 1) * of.size - 1
    values = {"id": of.buffer_id, "first": first, "last": last}
    found = connection.exec_driver_sql(_OF_BLOCK, values).scalars()
    return np.fromiter(found, np.float64)
