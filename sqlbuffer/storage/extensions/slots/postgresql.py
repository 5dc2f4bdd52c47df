"""Reads and changes the rows that slots show on PostgreSQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.rows.pieces import Columns

# Each run is looked up alone, by the index of episodes, whatever the server knows of the tables.
_SLOT_ROWS = (
    "SELECT r.n::integer - 1, e.t, e.seq, e.arrays "
    "FROM unnest(%s::integer[], %s::integer[], %s::integer[]) "
    "WITH ORDINALITY AS r(slot, first, last, n) "
    "JOIN slots s ON s.buffer_id = %s AND s.slot = r.slot CROSS JOIN LATERAL ("
    "SELECT x.t, x.seq, x.arrays FROM experiences x WHERE x.buffer_id = %s "
    "AND x.episode_id = s.episode_id AND x.t BETWEEN r.first AND r.last OFFSET 0) AS e"
)
_SLOT_RUNS = (
    "SELECT (SELECT string_agg(x.arrays, ''::bytea ORDER BY x.t) FROM experiences x "
    "WHERE x.buffer_id = %s AND x.episode_id = s.episode_id AND x.t BETWEEN r.first AND r.last) "
    "FROM unnest(%s::integer[], %s::integer[], %s::integer[]) "
    "WITH ORDINALITY AS r(slot, first, last, n) "
    "JOIN slots s ON s.buffer_id = %s AND s.slot = r.slot ORDER BY r.n"
)
_REPLACE = (
    "SELECT sqlbuffer_replace_v1(%s::integer, %b::bigint[], %b::bytea[], %b::text[], "
    "%b::double precision[], %b::boolean[], %b::boolean[], %s)"
)


def slot_rows(
    connection: Connection, buffer_id: int, runs: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int, int, Any]]:
    """Return (index of its run, t, seq, arrays) of each row in runs of (slot, first t, last t)."""
    slots, first, last = (list(column) for column in zip(*runs, strict=True))
    values = (slots, first, last, buffer_id, buffer_id)
    return list(driver_of(connection).execute(_SLOT_ROWS, values).fetchall())


def slot_runs(
    connection: Connection, buffer_id: int, runs: Sequence[tuple[int, int, int]]
) -> list[Any] | None:
    """Return the arrays of the rows of each run, joined in the order of t; see `slot_rows`.

    For a thousand rows this takes half the time of `slot_rows`.
    """
    slots, first, last = (list(column) for column in zip(*runs, strict=True))
    values = (buffer_id, slots, first, last, buffer_id)
    return [joined for (joined,) in driver_of(connection).execute(_SLOT_RUNS, values)]


def replace(
    connection: Connection, buffer_id: int, seqs: Sequence[int], columns: Columns, names: str
) -> int:
    """Change what rows hold, and note that; return how many of the rows there are."""
    values = (buffer_id, list(seqs), *(list(column) for column in columns), names)
    ((n_changed,),) = driver_of(connection).execute(_REPLACE, values)
    return int(n_changed)
