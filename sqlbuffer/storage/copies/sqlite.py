"""Reads and writes the rows that a copy takes, on SQLite."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.copies.parts import CopiedTable, TableRows
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import insert_columns
from sqlbuffer.storage.messages import IDS
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.rows.payload_parts import small_cache
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS
from sqlbuffer.storage.schema.payload_sizes import chunk_size, row_size

CACHE_KIB = 8_192

_OF_KEY = f"key > (:id << {NUMBER_BITS}) + :low AND key <= (:id << {NUMBER_BITS}) + :high"
_SIZES = {
    "seq": f"SELECT seq, 1, {row_size('sqlite')} FROM experiences",
    "first_seq": f"SELECT first_seq, n_steps, {chunk_size('sqlite')} FROM chunk_data",
}
_EPISODE_IDS = """
SELECT e.id FROM json_each(?) j
LEFT JOIN episodes e ON e.buffer_id = ? AND e.key = json_extract(j.value, '$[0]')
    AND e.task_id = json_extract(j.value, '$[1]')
ORDER BY j.key
"""


def few_pages(connection: Connection) -> AbstractContextManager[None]:
    """Return a context that keeps few pages in memory: each is needed once."""
    return small_cache(driver_of(connection), CACHE_KIB)


def sizes(
    connection: Connection, buffer_id: int, low: int, high: int, limit: int, steps: StepLayout
) -> list[tuple[int, int, int]]:
    """Return the first rows or chunks with low < number <= high.

    Each has its number, its number of steps, and its approximate size in bytes.
    """
    statement = f"{_SIZES[steps.number]} WHERE {_OF_KEY} ORDER BY key LIMIT :limit"
    parameters = {"id": buffer_id, "low": low, "high": high, "limit": limit}
    return list(driver_of(connection).execute(statement, parameters))


def read_rows(
    connection: Connection, table: CopiedTable, buffer_id: int, low: int, high: int
) -> TableRows:
    """Return the rows of a table with low < number <= high, in order."""
    of_number = f"buffer_id = :id AND {table.number} > :low AND {table.number} <= :high"
    listed = ", ".join(f'"{name}"' for name in table.columns)
    statement = (
        f"SELECT {listed} FROM {table.name} WHERE {_OF_KEY if table.is_keyed else of_number} "
        f"ORDER BY {'key' if table.is_keyed else table.number}"
    )
    parameters = {"id": buffer_id, "low": low, "high": high}
    return TableRows.of(table, driver_of(connection).execute(statement, parameters).fetchall())


def read_episodes(
    connection: Connection, table: CopiedTable, buffer_id: int, after: int, limit: int
) -> TableRows:
    """Return the first episodes whose keys are above a number."""
    listed = ", ".join(f'"{name}"' for name in table.columns)
    statement = (
        f"SELECT {listed} FROM {table.name} WHERE buffer_id = ? AND id > ? ORDER BY id LIMIT ?"
    )
    rows = driver_of(connection).execute(statement, (buffer_id, after, limit))
    return TableRows.of(table, rows.fetchall())


def write_rows(connection: Connection, buffer_id: int, rows: TableRows) -> None:
    """Write rows of a table."""
    if not len(rows):
        return
    columns: dict[str, Sequence[Any]] = {"buffer_id": [buffer_id] * len(rows)}
    if rows.table.is_keyed:
        columns["key"] = [buffer_id << NUMBER_BITS | number for number in rows.numbers]
    columns.update(rows.values)
    if IDS in columns:
        columns[IDS] = [None if ids is None else json.dumps(ids) for ids in columns[IDS]]
    quoted = {f'"{name}"': values for name, values in columns.items()}
    large = [
        name
        for name, form in zip(rows.table.columns, rows.table.forms, strict=True)
        if form in ("bytes", "json") and name in rows.values
    ]
    n_bytes = sum(len(value) for name in large for value in rows.values[name] if value is not None)
    insert_columns(connection, rows.table.name, quoted, n_bytes)


def episode_ids(
    connection: Connection, buffer_id: int, names: Sequence[tuple[str, str]]
) -> list[int | None]:
    """Return the keys of episodes by their ids and tasks; None for an unknown episode."""
    rows = driver_of(connection).execute(_EPISODE_IDS, (json.dumps(names), buffer_id))
    return [id_ for (id_,) in rows]


def take_numbers(connection: Connection, buffer_id: int, high: int) -> None:
    """Make the buffer number its next steps above a number."""
    driver_of(connection).execute(
        "UPDATE buffers SET next_seq = max(next_seq, ? + 1) WHERE id = ?", (high, buffer_id)
    )


def before_batch(connection: Connection, buffer_id: int) -> None:
    """Make the triggers log no deleted steps: these were never in this buffer."""
    driver_of(connection).execute("UPDATE buffers SET is_deleting = 1 WHERE id = ?", (buffer_id,))


def after_batch(connection: Connection, buffer_id: int) -> None:
    """Make the triggers log deleted steps again."""
    driver_of(connection).execute("UPDATE buffers SET is_deleting = 0 WHERE id = ?", (buffer_id,))


def wait_for_writers(connection: Connection, buffer_id: int) -> None:
    """Do nothing: only one writer runs at a time."""
