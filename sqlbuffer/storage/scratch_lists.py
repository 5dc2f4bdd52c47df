"""Lists of an export that may be larger than memory."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from sqlbuffer.errors import ExportError

ScratchKey = tuple[str | int | None, ...]
# What stays in memory.
_CACHE_KB = 4_096


class ScratchLists:
    """Lists of tuples by key, in the order in which the keys came.

    Up to 4 MB are in memory, the rest is in a file that the operating system removes when this is
    closed or the process ends. SQLite puts it in the folder `SQLITE_TMPDIR`, `TMPDIR` or
    `/var/tmp`.

    Args:
        n_values: Length of each tuple. Values are texts, bytes, integers, floats except NaN, None.

    Raises:
        ExportError: The disk of the file is full; each call may raise it.

    Example:
        >>> with ScratchLists(1) as lists:
        ...     lists.append(("b",), ["x"])
        ...     lists.append(("a",), ["y"])
        ...     lists.append(("b",), ["z"])
        ...     list(lists), lists.last(("b",)), lists.pop(("b",)), ("b",) in lists
        ([('b',), ('a',)], ('z',), [('x',), ('z',)], False)
    """

    def __init__(self, n_values: int) -> None:
        # An empty name makes a private file, which has no name once it is open.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._run(f"PRAGMA cache_size = -{_CACHE_KB}")
        self._run("PRAGMA journal_mode = OFF")
        values = "".join(f", v{i}" for i in range(n_values))
        self._run(f"CREATE TABLE items (key BLOB NOT NULL{values})")
        self._run("CREATE INDEX items_by_key ON items (key)")
        self._run("BEGIN")
        self._insert = f"INSERT INTO items VALUES (?{', ?' * n_values})"

    def __enter__(self) -> "ScratchLists":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all of it."""
        self._db.close()

    def append(self, key: ScratchKey, values: Sequence[Any]) -> None:
        """Add a tuple to the list of a key."""
        self._run(self._insert, orjson.dumps(key), *values)

    def last(self, key: ScratchKey) -> tuple[Any, ...] | None:
        """Return the last tuple of a key; None if the key is unknown."""
        text = "SELECT * FROM items WHERE key = ? ORDER BY rowid DESC LIMIT 1"
        row = self._run(text, orjson.dumps(key)).fetchone()
        return None if row is None else row[1:]

    def __contains__(self, key: ScratchKey) -> bool:
        """Return whether a key is known."""
        return self.last(key) is not None

    def pop(self, key: ScratchKey) -> list[tuple[Any, ...]]:
        """Remove a key and return its list, which is empty if the key is unknown."""
        text = orjson.dumps(key)
        rows = self._run("SELECT * FROM items WHERE key = ? ORDER BY rowid", text).fetchall()
        if rows:
            self._run("DELETE FROM items WHERE key = ?", text)
        return [row[1:] for row in rows]

    def __iter__(self) -> Iterator[ScratchKey]:
        """Yield the keys, in the order of their first tuples. They may be removed as they come."""
        for (key,) in self._run("SELECT key FROM items GROUP BY key ORDER BY min(rowid)"):
            yield tuple(orjson.loads(key))

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise ExportError(
                f"the temporary file of the export cannot be written ({error}); free space, or "
                f"name another folder with TMPDIR, and export again"
            ) from error
