"""Insert rows on SQLite that are given column by column."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of

# Rows of one statement: as many as fit. A statement for each row takes twice as long if it has
# triggers. A row has fewer than 30 values, and older versions of SQLite allow 999.
_ROWS_AT_ONCE = (32, 8, 1)
# The driver copies the values that a statement binds.
_BYTES_AT_ONCE = 2**24


def insert_columns(
    connection: Connection,
    table: str,
    columns: Mapping[str, Sequence[Any]],
    n_bytes: int,
    on_conflict: str = "",
) -> None:
    """Insert rows.

    Args:
        connection: The transaction.
        table: The table.
        columns: The values of each column, one for each row.
        n_bytes: Approximate size of the values in bytes.
        on_conflict: The clause that says what happens to a row whose key exists.
    """
    # Binding a null takes as long as binding a number.
    held = {
        name: values
        for name, values in columns.items()
        if values and (values[0] is not None or values.count(None) < len(values))
    }
    rows = list(zip(*held.values(), strict=True))
    driver, names, start = driver_of(connection), tuple(held), 0
    for n in _ROWS_AT_ONCE if n_bytes <= _BYTES_AT_ONCE else (1,):
        end = start + (len(rows) - start) // n * n
        if start < end:
            joined = [tuple(chain.from_iterable(rows[i : i + n])) for i in range(start, end, n)]
            driver.executemany(_insert(table, names, n, on_conflict), joined)
        start = end


@lru_cache(maxsize=64)
def _insert(table: str, columns: tuple[str, ...], n_rows: int, on_conflict: str) -> str:
    """Return the statement that inserts some columns of n rows."""
    row = f"({', '.join('?' * len(columns))})"
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * n_rows)} "
        f"{on_conflict}"
    )
