"""The bare driver beside chunks: it writes the very same bytes to the same tables.

It reads chunks that the library has stored, and writes them again under other numbers and ids: same
schema and triggers, one transaction a batch, and what has left the window is deleted.
"""

import struct
from collections.abc import Sequence
from typing import Any

from psycopg import Cursor

from sqlbuffer.steps import uuid7s
from tests.benchmarks.driver import NULL, Bare, BarePostgreSQL, BareSQLite, sized

# What differs from one copy to the next, and what the database fills in.
_OWN = ("key", "buffer_id", "first_seq", "id", "inserted_at", "xid")
_BUSY_MS = 60_000
_FIRST = "SELECT max(first_seq + n_steps) - {0} FROM chunks WHERE buffer_id = {0}"
Rows = list[tuple[Any, ...]]


class SQLiteChunks:
    """Chunks that are written again by Python's sqlite3 module."""

    def __init__(self, driver: BareSQLite) -> None:
        self._driver, connection = driver, driver.connection
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        self._buffer_id = driver.buffer_id
        ((self._capacity,),) = connection.execute(
            "SELECT coalesce(max_capacity, 1 << 39) FROM buffers WHERE id = ?", (self._buffer_id,)
        )
        self._narrow, self._insert_narrow = self._columns("chunks", "id")
        self._data, self._insert_data = self._columns("chunk_data")

    def newest(self, n: int) -> tuple[list[int], Rows, Rows]:
        """Return how many steps each chunk of the newest n has, and what the two tables have."""
        execute = self._driver.connection.execute
        ((first,),) = execute(_FIRST.format("?"), (n, self._buffer_id))
        narrow, data = (
            execute(
                f"SELECT {', '.join(columns)} FROM {table} "
                "WHERE buffer_id = ? AND first_seq >= ? ORDER BY first_seq",
                (self._buffer_id, first),
            ).fetchall()
            for table, columns in (("chunks", self._narrow), ("chunk_data", self._data))
        )
        return [row[self._narrow.index("n_steps")] for row in narrow], narrow, data

    def write(self, n_steps: list[int], narrow: Rows, data: Rows, ids: Sequence[str]) -> None:
        execute, number = self._driver.connection.execute, self._buffer_id
        execute("BEGIN IMMEDIATE")
        ((end,),) = execute(
            "UPDATE buffers SET next_seq = next_seq + ? WHERE id = ? RETURNING next_seq",
            (sum(n_steps), number),
        ).fetchall()
        firsts = _firsts(end - sum(n_steps), n_steps)
        keys = [(number << 40 | first, number, first) for first in firsts]
        self._driver.connection.executemany(
            self._insert_narrow,
            [(*key, id_, *row) for key, id_, row in zip(keys, ids, narrow, strict=True)],
        )
        self._driver.connection.executemany(
            self._insert_data, [(*key, *row) for key, row in zip(keys, data, strict=True)]
        )
        low = max(end - 1 - self._capacity, 0)
        execute(
            "DELETE FROM chunks WHERE key > ? AND key <= ? AND first_seq + n_steps - 1 <= ?",
            (number << 40, number << 40 | low, low),
        )
        execute("COMMIT")

    def close(self) -> None:
        self._driver.close()

    def _columns(self, table: str, *own: str) -> tuple[list[str], str]:
        """Return the columns that are copied, and the statement that inserts a row."""
        found = self._driver.connection.execute(f"PRAGMA table_info({table})")
        copied = [name for _, name, *_ in found if name not in _OWN]
        columns = ["key", "buffer_id", "first_seq", *own, *copied]
        marks = ", ".join("?" * len(columns))
        return copied, f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


class PostgreSQLChunks:
    """Chunks that are written again by psycopg and binary COPY."""

    def __init__(self, driver: BarePostgreSQL) -> None:
        self._connection, self._buffer_id = driver.connection, driver.buffer_id
        self._narrow = self._columns("chunks")
        self._data = self._columns("chunk_data")

    def newest(self, n: int) -> tuple[list[int], list[bytes], list[bytes]]:
        """Return how many steps each chunk of the newest n has, and what the two tables have."""
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(_FIRST.format("%s"), (n, self._buffer_id))
            ((first,),) = cursor.fetchall()

            def columns_of(table: str, columns: list[str]) -> Cursor[Any]:
                return cursor.execute(
                    f"SELECT {', '.join(columns)} FROM {table} "
                    "WHERE buffer_id = %s AND first_seq >= %s ORDER BY first_seq",
                    (self._buffer_id, first),
                )

            narrow = _fields(columns_of("chunks", self._narrow))
            data = _fields(columns_of("chunk_data", self._data))
            return [n for (n,) in columns_of("chunks", ["n_steps"])], narrow, data

    def write(
        self, n_steps: list[int], narrow: list[bytes], data: list[bytes], ids: Sequence[str]
    ) -> None:
        with self._connection.transaction(), self._connection.cursor(binary=True) as cursor:
            cursor.execute(
                "SELECT first_seq FROM sqlbuffer_reserve_steps_v1(%s::integer, %s::bigint)",
                (self._buffer_id, sum(n_steps)),
            )
            ((first_seq,),) = cursor.fetchall()
            keys = [struct.pack(">iq", 8, first) for first in _firsts(first_seq, n_steps)]
            own_ids = [sized(bytes.fromhex(id_.replace("-", ""))) for id_ in ids]
            self._copy(cursor, "chunk_data", self._data, keys, data)
            self._copy(
                cursor,
                "chunks",
                ["id", *self._narrow],
                [key + id_ for key, id_ in zip(keys, own_ids, strict=True)],
                narrow,
            )

    def close(self) -> None:
        self._connection.close()

    def _copy(
        self,
        cursor: Cursor[Any],
        table: str,
        columns: list[str],
        keys: list[bytes],
        rows: list[bytes],
    ) -> None:
        head = struct.pack(">hii", len(columns) + 2, 4, self._buffer_id)
        parts = [b"PGCOPY\n\xff\r\n\0" + bytes(8)]
        for key, row in zip(keys, rows, strict=True):
            parts += (head, key, row)
        parts.append(b"\xff\xff")
        names = ", ".join(["buffer_id", "first_seq", *columns])
        with cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(b"".join(parts))

    def _columns(self, table: str) -> list[str]:
        found = self._connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum",
            (table,),
        )
        return [name for (name,) in found if name not in _OWN]


BareChunks = SQLiteChunks | PostgreSQLChunks


def bare_chunks(driver: Bare) -> BareChunks:
    """Return what writes chunks over a connection of the bare driver."""
    if isinstance(driver, BareSQLite):
        return SQLiteChunks(driver)
    return PostgreSQLChunks(driver)


def again(stored: tuple[list[int], Any, Any]) -> tuple[Any, ...]:
    """Return the arguments of `write` for chunks that `newest` returned."""
    return (*stored, uuid7s(len(stored[0])))


def _fields(cursor: Cursor[Any]) -> list[bytes]:
    """Return the fields of each row that was found, in the form of a binary COPY."""
    result = cursor.pgresult
    assert result is not None
    return [
        b"".join(
            NULL if (value := result.get_value(i, j)) is None else sized(value)
            for j in range(result.nfields)
        )
        for i in range(result.ntuples)
    ]


def _firsts(first_seq: int, n_steps: list[int]) -> list[int]:
    found = []
    for n in n_steps:
        found.append(first_seq)
        first_seq += n
    return found
