"""Reads and changes the rows that slots show on SQLite."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.rows.pieces import Columns
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

# In this order: each run is looked up by its slot, and its steps by the index of episodes.
_SLOT_ROWS = (
    "SELECT r.key, e.t, e.seq, e.arrays FROM json_each(:runs) r "
    "CROSS JOIN slots s ON s.buffer_id = :id AND s.slot = json_extract(r.value, '$[0]') "
    "CROSS JOIN experiences e ON e.buffer_id = :id AND e.episode_id = s.episode_id "
    "AND e.t BETWEEN json_extract(r.value, '$[1]') AND json_extract(r.value, '$[2]')"
)
# Ordered inside: an aggregate takes its rows in that order.
_SLOT_RUNS = (
    "SELECT (SELECT CAST(group_concat(o.arrays, '') AS BLOB) FROM ("
    "SELECT e.arrays FROM experiences e WHERE e.buffer_id = :id AND e.episode_id = s.episode_id "
    "AND e.t BETWEEN json_extract(r.value, '$[1]') AND json_extract(r.value, '$[2]') "
    "ORDER BY e.t) o) FROM json_each(:runs) r "
    "CROSS JOIN slots s ON s.buffer_id = :id AND s.slot = json_extract(r.value, '$[0]') "
    "ORDER BY r.key"
)
# The documentation of group_concat speaks of text. It takes any bytes, unless the file is in
# UTF-16.
_JOINS_BYTES = (
    "SELECT hex(CAST(group_concat(x, '') AS BLOB)) = '00FF8000C3' "
    "FROM (SELECT x'00FF8000' AS x UNION ALL SELECT x'C3')"
)
_REPLACE = (
    "UPDATE experiences SET arrays = ?, fields = ?, reward_t = ?, terminated = ?, truncated = ? "
    f"WHERE key = ? << {NUMBER_BITS} | ?"
)
_NOTE_CHANGES = (
    "INSERT INTO payload_changes (buffer_id, seq, fields, n_changes) "
    "SELECT :id, e.seq, :fields, 1 FROM json_each(:seqs) j "
    f"CROSS JOIN experiences e ON e.key = :id << {NUMBER_BITS} | j.value WHERE true "
    "ON CONFLICT (buffer_id, seq) DO UPDATE SET fields = excluded.fields, "
    "n_changes = n_changes + 1, changed_at = excluded.changed_at"
)


def slot_rows(
    connection: Connection, buffer_id: int, runs: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int, int, Any]]:
    """Return (index of its run, t, seq, arrays) of each row in runs of (slot, first t, last t)."""
    given = {"id": buffer_id, "runs": json.dumps(runs)}
    return list(driver_of(connection).execute(_SLOT_ROWS, given).fetchall())


def slot_runs(
    connection: Connection, buffer_id: int, runs: Sequence[tuple[int, int, int]]
) -> list[Any] | None:
    """Return the arrays of the rows of each run, joined in the order of t; see `slot_rows`.

    None: the file is in UTF-16, and SQLite cannot join bytes there. For a thousand rows this takes
    half the time of `slot_rows`.
    """
    driver = driver_of(connection)
    if "joins_bytes" not in connection.info:
        ((connection.info["joins_bytes"],),) = driver.execute(_JOINS_BYTES)
    if not connection.info["joins_bytes"]:
        return None
    given = {"id": buffer_id, "runs": json.dumps(runs)}
    return [joined for (joined,) in driver.execute(_SLOT_RUNS, given)]


def replace(
    connection: Connection, buffer_id: int, seqs: Sequence[int], columns: Columns, names: str
) -> int:
    """Change what rows hold, and note that; return how many of the rows there are."""
    driver = driver_of(connection)
    driver.execute(
        "UPDATE buffers SET has_changes = 1 WHERE id = ? AND NOT has_changes", (buffer_id,)
    )
    driver.executemany(_REPLACE, zip(*columns, [buffer_id] * len(seqs), seqs, strict=True))
    given = {"id": buffer_id, "fields": names, "seqs": json.dumps(list(seqs))}
    return int(driver.execute(_NOTE_CHANGES, given).rowcount)
