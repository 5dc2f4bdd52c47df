"""Reads and writes the rows that a copy takes, on PostgreSQL."""

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from sqlalchemy import Connection

from sqlbuffer.storage.buffers.window import WRITERS_LOCK
from sqlbuffer.storage.copies.parts import CopiedTable, TableRows
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import (
    HEADER,
    TRAILER,
    ArrayFields,
    Fields,
    bigint_array_fields,
    bigint_field,
    bool_array_fields,
    bool_field,
    bytes_field,
    double_array_fields,
    double_field,
    fields_of,
    id_array,
    integer_arrays,
    integer_field,
    jsonb_field,
    rows_of,
    text_field,
    time_field,
    uuid_fields,
)
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.schema.payload_sizes import chunk_size, row_size

_SIZES = {
    "seq": f"SELECT seq, 1, {row_size('postgresql')} FROM experiences",
    "first_seq": f"SELECT first_seq, n_steps, {chunk_size('postgresql')} FROM chunk_data",
}
_EPISODE_IDS = """
SELECT e.id FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS g(key, task_id, place)
LEFT JOIN episodes e ON e.buffer_id = %s AND e.key = g.key AND e.task_id = g.task_id
ORDER BY g.place
"""
_TAKE_NUMBERS = """
SELECT sqlbuffer_reserve_v1(%(id)s::integer, %(high)s - coalesce(last, 0))
FROM pg_sequence_last_value(to_regclass('sqlbuffer_seq_' || %(id)s::integer)) AS s(last)
WHERE coalesce(last, 0) < %(high)s
"""


def few_pages(connection: Connection) -> AbstractContextManager[None]:
    """Do nothing: the server holds the pages."""
    return nullcontext()


def sizes(
    connection: Connection, buffer_id: int, low: int, high: int, limit: int, steps: StepLayout
) -> list[tuple[int, int, int]]:
    """Return the first rows or chunks with low < number <= high.

    Each has its number, its number of steps, and its approximate size in bytes.
    """
    number = steps.number
    statement = (
        f"{_SIZES[number]} WHERE buffer_id = %s AND {number} > %s AND {number} <= %s "
        f"ORDER BY {number} LIMIT %s"
    )
    return list(driver_of(connection).execute(statement, (buffer_id, low, high, limit)))


def read_rows(
    connection: Connection, table: CopiedTable, buffer_id: int, low: int, high: int
) -> TableRows:
    """Return the rows of a table with low < number <= high, in order."""
    statement = (
        f"SELECT {_selected_columns(table)} FROM {table.name} "
        f"WHERE buffer_id = %s AND {table.number} > %s AND {table.number} <= %s "
        f"ORDER BY {table.number}"
    )
    return _rows(connection, table, statement, (buffer_id, low, high))


def read_episodes(
    connection: Connection, table: CopiedTable, buffer_id: int, after: int, limit: int
) -> TableRows:
    """Return the first episodes whose keys are above a number."""
    statement = (
        f"SELECT {_selected_columns(table)} FROM {table.name} WHERE buffer_id = %s AND id > %s "
        "ORDER BY id LIMIT %s"
    )
    return _rows(connection, table, statement, (buffer_id, after, limit))


def _rows(
    connection: Connection, table: CopiedTable, statement: str, parameters: tuple[int, ...]
) -> TableRows:
    # In binary form, bytes are not converted; as text they would be twice as long.
    with driver_of(connection).cursor(binary=True) as cursor:
        return TableRows.of(table, cursor.execute(statement, parameters).fetchall())


def _selected_columns(table: CopiedTable) -> str:
    return ", ".join(
        f'"{name}"::text' if form in ("json", "uuid") else f'"{name}"'
        for name, form in zip(table.columns, table.forms, strict=True)
    )


def write_rows(connection: Connection, buffer_id: int, rows: TableRows) -> None:
    """Write rows of a table."""
    if not len(rows):
        return
    forms = dict(zip(rows.table.columns, rows.table.forms, strict=True))
    columns = [_ENCODE[forms[name]](values) for name, values in rows.values.items()]
    head = struct.pack(">hii", len(columns) + 1, 4, buffer_id)
    listed = ", ".join(f'"{name}"' for name in rows.values)
    statement = f"COPY {rows.table.name} (buffer_id, {listed}) FROM STDIN (FORMAT BINARY)"
    body = rows_of(len(rows), head, columns)
    with driver_of(connection).cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(b"".join([HEADER, body, TRAILER]))


def _encoder_of_values(encode: Callable[[Any], bytes]) -> Callable[[list[Any]], Fields]:
    return lambda values: fields_of(values, encode)


def _encoder_of_lists(encode: ArrayFields, dtype: str) -> Callable[[list[Any]], Fields]:
    def encoded(values: list[Any]) -> Fields:
        # Without nulls inside, an array is packed as a whole.
        arrays = [
            np.array(value, dtype) if value and None not in value else value for value in values
        ]
        return encode(arrays)

    return encoded


_ENCODE: dict[str, Callable[[list[Any]], Fields]] = {
    "text": _encoder_of_values(text_field),
    "json": _encoder_of_values(jsonb_field),
    "uuid": uuid_fields,
    "time": _encoder_of_values(time_field),
    "flag": _encoder_of_values(bool_field),
    "bigint": _encoder_of_values(bigint_field),
    "integer": _encoder_of_values(integer_field),
    "real": _encoder_of_values(double_field),
    "bytes": _encoder_of_values(bytes_field),
    "integers": _encoder_of_lists(bigint_array_fields, "i8"),
    "reals": _encoder_of_lists(double_array_fields, "f8"),
    "ids": integer_arrays,
    "flags": _encoder_of_lists(bool_array_fields, "?"),
}


def episode_ids(
    connection: Connection, buffer_id: int, names: Sequence[tuple[str, str]]
) -> list[int | None]:
    """Return the keys of episodes by their ids and tasks; None for an unknown episode."""
    keys, tasks = [key for key, _ in names], [task for _, task in names]
    parameters = (id_array(keys), id_array(tasks), buffer_id)
    return [id_ for (id_,) in driver_of(connection).execute(_EPISODE_IDS, parameters)]


def take_numbers(connection: Connection, buffer_id: int, high: int) -> None:
    """Make the buffer number its next steps above a number."""
    driver_of(connection).execute(_TAKE_NUMBERS, {"id": buffer_id, "high": high})


def before_batch(connection: Connection, buffer_id: int) -> None:
    """Do nothing: no trigger logs steps that are noted as deleted."""


def after_batch(connection: Connection, buffer_id: int) -> None:
    """Do nothing; see `before_batch`."""


def wait_for_writers(connection: Connection, buffer_id: int) -> None:
    """Wait until the transactions that may write steps have ended; later ones wait for this one."""
    driver_of(connection).execute("SELECT pg_advisory_xact_lock(%s, %s)", (WRITERS_LOCK, buffer_id))
