"""What the library's inserts are measured against: the bare driver writing the very same bytes.

Same schema and triggers, same pragmas, one transaction a batch, the ids held looked up and the
numbers drawn as the library does. The rows are encoded beforehand.
"""

import json
import sqlite3
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from sqlalchemy import make_url

from sqlbuffer.encoding.records import Record
from tests.support.sql import is_sqlite
from tests.support.storage_hooks import CONNECTION_PRAGMAS

_PLAIN = [name for name in Record._fields if not name.endswith("_key")]
# A weighted draw of keys without replacement (Efraimidis and Spirakis 2006), and nothing else.
_RACE = (
    "SELECT e.seq FROM experiences e "
    "LEFT JOIN priorities p ON p.buffer_id = e.buffer_id AND p.seq = e.seq "
    "WHERE e.buffer_id = {} "
    "ORDER BY -ln(1 - {}) / power(coalesce(p.priority, e.initial_priority, 1.0), {}) LIMIT {}"
)
NULL = struct.pack(">i", -1)  # in the place of a field of a binary COPY
_RANDOM_ROWS = "SELECT * FROM experiences WHERE buffer_id = {} ORDER BY random() LIMIT {}"


def sized(raw: bytes) -> bytes:
    """Return a field of a binary COPY."""
    return struct.pack(">i", len(raw)) + raw


# Column -> its form in binary COPY; JSONB is a version and the text.
_COPY_FORMS: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(_PLAIN, lambda value: sized(value.encode())),
    **dict.fromkeys(("step", "model_version"), lambda value: struct.pack(">iq", 8, value)),
    "t": lambda value: struct.pack(">ii", 4, value),
    **dict.fromkeys(
        ("execute_time", "reward_t", "adv_t", "v_t", "initial_priority"),
        lambda value: struct.pack(">id", 8, value),
    ),
    **dict.fromkeys(
        ("state", "actions", "messages", "extra"), lambda value: sized(b"\x01" + value.encode())
    ),
    **dict.fromkeys(("terminated", "truncated"), lambda value: struct.pack(">i?", 1, value)),
    "arrays": sized,
}


def _copy_form(record: Record) -> bytes:
    values = ((form, getattr(record, name)) for name, form in _COPY_FORMS.items())
    return b"".join(NULL if value is None else form(value) for form, value in values)


class BareSQLite:
    """Python's sqlite3 module."""

    def __init__(self, url: str, buffer_id: int = 1) -> None:
        self.buffer_id = buffer_id
        self.connection = sqlite3.connect(make_url(url).database or "", isolation_level=None)
        for pragma in CONNECTION_PRAGMAS:
            self.connection.execute(pragma)
        columns = ["key", "buffer_id", "seq", *_PLAIN]
        marks = ", ".join("?" * len(columns))
        self._insert = f"INSERT INTO experiences ({', '.join(columns)}) VALUES ({marks})"

    def prepared(self, records: Sequence[Record]) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the ids and, for each row, what follows its number."""
        rows = [tuple(getattr(record, name) for name in _PLAIN) for record in records]
        return [record.id for record in records], rows

    def write(self, ids: list[str], rows: list[tuple[Any, ...]]) -> None:
        execute, number = self.connection.execute, self.buffer_id
        execute("BEGIN IMMEDIATE")
        execute("SELECT low_seq FROM v_windows WHERE buffer_id = ?", (number,)).fetchone()
        held = execute(
            "SELECT id, seq FROM experiences "
            "WHERE buffer_id = ? AND id IN (SELECT value FROM json_each(?))",
            (number, json.dumps(ids)),
        ).fetchall()
        assert not held
        ((end,),) = execute(
            "UPDATE buffers SET next_seq = next_seq + ? WHERE id = ? RETURNING next_seq",
            (len(ids), number),
        ).fetchall()
        first = end - len(ids)
        parameters = [
            (number << 40 | seq, number, seq, *row) for seq, row in enumerate(rows, first)
        ]
        self.connection.executemany(self._insert, parameters)
        execute("COMMIT")

    def random_rows(self, n: int) -> list[Any]:
        return self.connection.execute(_RANDOM_ROWS.format(self.buffer_id, n)).fetchall()

    def race(self, n: int, alpha: float) -> list[Any]:
        """Return the keys of n rows drawn by priority ^ alpha, which reads all of them."""
        fraction = "(random() / 18446744073709551616.0 + 0.5)"
        statement = _RACE.format(self.buffer_id, fraction, alpha, n)
        return self.connection.execute(statement).fetchall()

    def arrays_of(self, seqs: Sequence[int]) -> list[bytes]:
        """Return the array bytes of rows by key."""
        found = self.connection.execute(
            "SELECT arrays FROM experiences "
            "WHERE buffer_id = ? AND seq IN (SELECT value FROM json_each(?))",
            (self.buffer_id, json.dumps(seqs)),
        )
        return [blob for (blob,) in found]

    def set_priorities(self, seqs: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Update rows of `priorities` and nothing else."""
        pairs = zip(priorities.tolist(), seqs.tolist(), strict=True)
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(
            f"UPDATE priorities SET priority = ? WHERE buffer_id = {self.buffer_id} AND seq = ?",
            pairs,
        )
        self.connection.execute("COMMIT")

    def open_snapshot(self) -> None:
        """Begin to read one state of the database, as an analyst's tool does."""
        self.connection.execute("BEGIN")
        self.connection.execute("SELECT seq FROM experiences LIMIT 1").fetchone()

    def close(self) -> None:
        self.connection.close()


class BarePostgreSQL:
    """psycopg and binary COPY."""

    def __init__(self, url: str, buffer_id: int = 1) -> None:
        self.buffer_id = buffer_id
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self.connection = psycopg.connect(plain, autocommit=True)
        columns = ["buffer_id", "seq", *_COPY_FORMS]
        self._copy = f"COPY experiences ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
        # Before each number: how many columns, the buffer, and the size of the number.
        self._head = struct.pack(">hiii", len(columns), 4, buffer_id, 8)

    def prepared(self, records: Sequence[Record]) -> tuple[list[str], list[bytes]]:
        """Return the ids and, for each row, the bytes that follow its number."""
        return [record.id for record in records], list(map(_copy_form, records))

    def write(self, ids: list[str], rows: list[bytes]) -> None:
        with self.connection.transaction(), self.connection.cursor(binary=True) as cursor:
            cursor.execute(
                "SELECT held, first_seq FROM sqlbuffer_reserve_seqs_v1(%s::integer, %s::text[])",
                (self.buffer_id, ids),
            )
            ((held, first_seq),) = cursor.fetchall()
            assert not held
            parts = [b"PGCOPY\n\xff\r\n\0" + bytes(8)]
            for seq, row in enumerate(rows, first_seq):
                parts += (self._head, seq.to_bytes(8, "big"), row)
            parts.append(b"\xff\xff")
            with cursor.copy(self._copy) as copy:
                copy.write(b"".join(parts))

    def random_rows(self, n: int) -> list[Any]:
        return self.connection.execute(_RANDOM_ROWS.format(self.buffer_id, n)).fetchall()

    def race(self, n: int, alpha: float) -> list[Any]:
        """Return the keys of n rows drawn by priority ^ alpha, which reads all of them."""
        statement = _RACE.format(self.buffer_id, "random()", alpha, n)
        return self.connection.execute(statement).fetchall()

    def arrays_of(self, seqs: Sequence[int]) -> list[bytes]:
        """Return the array bytes of rows by key."""
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(
                "SELECT arrays FROM experiences WHERE buffer_id = %s AND seq = ANY (%s)",
                (self.buffer_id, seqs),
            )
            return [blob for (blob,) in cursor]

    def set_priorities(self, seqs: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Update rows of `priorities` and nothing else."""
        self.connection.execute(
            "UPDATE priorities p SET priority = g.priority "
            "FROM unnest(%s::bigint[], %s::double precision[]) AS g(seq, priority) "
            "WHERE p.buffer_id = %s AND p.seq = g.seq",
            (seqs.tolist(), priorities.tolist(), self.buffer_id),
        )

    def open_snapshot(self) -> None:
        """Begin to read one state of the database, as an analyst's tool does."""
        self.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        self.connection.execute("SELECT seq FROM experiences LIMIT 1").fetchone()

    def close(self) -> None:
        self.connection.close()


Bare = BareSQLite | BarePostgreSQL


def bare(url: str) -> Bare:
    """Return a connection of the bare driver."""
    return BareSQLite(url) if is_sqlite(url) else BarePostgreSQL(url)
