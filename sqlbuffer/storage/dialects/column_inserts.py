"""Insert rows on SQLite that are given column by column."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy import Connection

# Measured: a statement for each row takes a third longer. A row has fewer than 30 values, and older
# versions of SQLite allow 999.
_ROWS_AT_ONCE = 32
# The driver copies the values that a statement binds.
_BYTES_AT_ONCE = 2**24


def insert_columns(
    connection: Connection, table: str, columns: Mapping[str, Sequence[Any]], n_bytes: int
) -> None:
    """Insert rows.

    Args:
        connection: The transaction.
        table: The table.
        columns: The values of each column, one for each row.
        n_bytes: Approximate size of the values in bytes.
    """
    # Binding a null takes as long as binding a number.
    held = {name: values for name, values in columns.items() if values.count(None) < len(values)}
    rows = list(zip(*held.values(), strict=True))
    n_whole = len(rows) // _ROWS_AT_ONCE * _ROWS_AT_ONCE if n_bytes <= _BYTES_AT_ONCE else 0
    if n_whole:
        starts = range(0, n_whole, _ROWS_AT_ONCE)
        joined = [tuple(chain.from_iterable(rows[i : i + _ROWS_AT_ONCE])) for i in starts]
        connection.exec_driver_sql(_insert(table, tuple(held), _ROWS_AT_ONCE), joined)
    if n_whole < len(rows):
        connection.exec_driver_sql(_insert(table, tuple(held), 1), rows[n_whole:])


@lru_cache(maxsize=64)
def _insert(table: str, columns: tuple[str, ...], n_rows: int) -> str:
    """Return the statement that inserts some columns of n rows."""
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * n_rows)}"
