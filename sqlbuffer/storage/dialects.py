"""What differs between the databases: the choice of an operation, and transactions that write.

Also the forms in which PostgreSQL takes arrays and rows of COPY, and SQLite rows by column. An
operation of one capability is in the module of that capability instead, or next to it in `sqlite`
and `postgresql`.
"""

import re
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, chain, islice, repeat
from pathlib import Path
from types import NoneType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine

from sqlbuffer.display import shown_size
from sqlbuffer.errors import StorageBusyError, StorageFullError
from sqlbuffer.storage.database.engine import BUSY_TIMEOUT_S
from sqlbuffer.storage.database.errors import translate
from sqlbuffer.storage.database.sqlite import opened_file
from sqlbuffer.storage.database.transactions import (
    AT_ONCE,
    BEGIN,
    Begin,
    check_not_working,
    driver_of,
    file_writer,
    invalidated_when_lost,
    is_working,
    reading,
)
from sqlbuffer.storage.database.urls import sqlite_path
from sqlbuffer.storage.database.wal import READERS_WAIT_S, spare_writer, wal_path
from sqlbuffer.storage.database.writer_lock import lock_path, writer_lock

D = TypeVar("D", Connection, Engine)
P = ParamSpec("P")
T = TypeVar("T")


def by_database(
    *,
    sqlite: Callable[Concatenate[D, P], T],
    postgresql: Callable[Concatenate[D, P], T],
) -> Callable[Concatenate[D, P], T]:
    """Return an operation that runs the version for the database of its first argument.

    Args:
        sqlite: The operation on SQLite. Its first argument is a connection or an engine.
        postgresql: The operation on PostgreSQL, with the same arguments.
    """
    operations = {"sqlite": sqlite, "postgresql": postgresql}

    def operation(database: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return operations[database.dialect.name](database, *args, **kwargs)

    return operation


# Extra space for a deletion on a full disk: blocks of the file system, a few pages.
_SQLITE_SPARE_BYTES = 2**18


@contextmanager
def _sqlite_writing(
    engine: Engine,
    durability: str | None = None,
    query: str | None = None,
    wait_s: float | None = None,
) -> Iterator[Connection]:
    """Begin a transaction that writes; no other transaction writes at the same time.

    It is committed at the end of the block, and rolled back on an exception.
    """
    check_not_working(engine)
    path = lock_path(engine.url)
    begin = Begin(writes=True, durability=durability, query=query)
    with (
        writer_lock(path, BUSY_TIMEOUT_S if wait_s is None else wait_s),
        file_writer(engine, begin) as connection,
    ):
        if path is not None:
            spare_writer(connection, path)
        yield connection


@contextmanager
def _sqlite_claiming(engine: Engine, durability: str | None, query: str) -> Iterator[Connection]:
    """Begin a transaction that claims rows of a queue; see `Begin.query`."""
    with _sqlite_writing(engine, durability, query) as connection:
        yield connection


@contextmanager
def _sqlite_hurried(engine: Engine, wait_s: float = 0.0) -> Iterator[Connection]:
    """Begin a transaction for writes that can be left out.

    It waits `wait_s` for other writers.
    """
    path = lock_path(engine.url)
    options = {BEGIN: Begin(writes=True)}
    with (
        writer_lock(path, wait_s),
        engine.connect().execution_options(**options) as connection,
    ):
        driver = driver_of(connection)
        driver.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
        try:
            with connection.begin():
                if path is not None:
                    spare_writer(connection, path)
                yield connection
        finally:
            driver.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")


@contextmanager
def _sqlite_at_once(engine: Engine) -> Iterator[Connection]:
    """Return a connection on which each statement is a transaction of its own.

    The statements only read, and few rows; see `transactions.AT_ONCE`.
    """
    with engine.connect() as connection:
        yield connection


def _sqlite_reuse_log(engine: Engine) -> bool:
    """Move the log into the file, so that the next writes use its space; return True if that helps.

    On a full disk the log cannot grow, and it is moved only after some MB: a write may not fit
    behind those before it, though the file has free pages.
    """
    path, lock = sqlite_path(engine.url), lock_path(engine.url)
    if lock is None or not wal_path(path).exists():
        return False
    try:
        return not _sqlite_restart_log(engine)
    except sqlite3.Error as error:
        if not isinstance(translate(error, engine.url), StorageFullError):
            raise
        return False  # the file has to grow


def _sqlite_restart_log(engine: Engine) -> bool:
    """Move the log into the file, and have the next writer begin it again; return True if a reader
    prevents that.
    """
    path, lock = sqlite_path(engine.url), lock_path(engine.url)
    with (
        writer_lock(lock, BUSY_TIMEOUT_S),
        opened_file(path, isolation_level=None, timeout=READERS_WAIT_S) as file,
    ):
        ((is_busy, _, _),) = file.execute("PRAGMA wal_checkpoint(RESTART)")
    return bool(is_busy)


def _sqlite_make_room(engine: Engine) -> str:
    """Move the log into the file if the disk is almost full; return advice if that is not enough.

    The deletion can then use the space of the log. Call this before the deletion: a deletion that
    fails makes the log longer, and uses up the freed space.
    """
    path, lock = sqlite_path(engine.url), lock_path(engine.url)
    if lock is None:
        return "free memory and delete again"
    n_bytes = path.stat().st_size
    advice = f"delete fewer rows at a time, or free {shown_size(n_bytes)} on the disk of {path}"
    log = wal_path(path)
    if not log.exists() or shutil.disk_usage(path.parent).free > n_bytes + log.stat().st_size:
        return advice
    try:
        is_busy = _sqlite_restart_log(engine)
    except sqlite3.Error as error:
        if not isinstance(translate(error, engine.url), StorageFullError):
            raise
        missing = shown_size(_sqlite_needed_bytes(path) - n_bytes + _SQLITE_SPARE_BYTES)
        return (
            f"deleting rows needs {missing} more: remove or move other files on the disk "
            f"of {path}, then delete again"
        )
    if is_busy:
        return (
            "an open read transaction keeps the log from being used again: end it "
            "(`sqlbuffer doctor` names its process), then delete again"
        )
    return advice


def _sqlite_needed_bytes(path: Path) -> int:
    """Return the size of a file with its log."""
    query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    with opened_file(path, isolation_level=None) as file:
        ((n_bytes,),) = file.execute(query)
    return int(n_bytes)


# Without statistics the planner expects only a few rows of a queue, and would sort all of them.
_POSTGRESQL_IN_ORDER = "; ".join(
    f"SET LOCAL enable_{way} = off" for way in ("bitmapscan", "seqscan", "sort")
)


@contextmanager
def _postgresql_writing(
    engine: Engine,
    durability: str | None = None,
    query: str | None = None,
    wait_s: float | None = None,
) -> Iterator[Connection]:
    """Begin a transaction that writes; see `Begin`.

    It is committed at the end of the block, and rolled back on an exception.
    """
    check_not_working(engine)
    options = {BEGIN: Begin(writes=True, durability=durability, query=query, wait_s=wait_s)}
    with (
        engine.connect().execution_options(**options) as connection,
        connection.begin(),
        invalidated_when_lost(connection),
    ):
        yield connection


@contextmanager
def _postgresql_claiming(
    engine: Engine, durability: str | None, query: str
) -> Iterator[Connection]:
    with _postgresql_writing(engine, durability, f"{_POSTGRESQL_IN_ORDER}; {query}") as connection:
        yield connection


@contextmanager
def _postgresql_hurried(engine: Engine, wait_s: float = 0.0) -> Iterator[Connection]:
    """Begin a transaction for writes that can be left out.

    It waits `wait_s` for other writers, at least 20 ms, and does not wait for the disk.
    """
    with _postgresql_writing(engine, "relaxed", wait_s=wait_s) as connection:
        yield connection


@contextmanager
def _postgresql_at_once(engine: Engine) -> Iterator[Connection]:
    with reading(engine, AT_ONCE) as connection:
        if not driver_of(connection).autocommit:  # an engine of the user's
            connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


def _postgresql_reuse_log(engine: Engine) -> bool:
    """Return False: the log of a server is not on the way of a write."""
    return False


def _postgresql_make_room(engine: Engine) -> str:
    """Return advice for a disk without room for a deletion; the library can do nothing here."""
    return (
        "a deletion writes to the disk of the server as well: free a few megabytes "
        "there (a dropped table frees its space immediately), then delete again"
    )


writing = by_database(sqlite=_sqlite_writing, postgresql=_postgresql_writing)
claiming = by_database(sqlite=_sqlite_claiming, postgresql=_postgresql_claiming)
_hurried = by_database(sqlite=_sqlite_hurried, postgresql=_postgresql_hurried)
at_once = by_database(sqlite=_sqlite_at_once, postgresql=_postgresql_at_once)
reuse_log = by_database(sqlite=_sqlite_reuse_log, postgresql=_postgresql_reuse_log)
make_room = by_database(sqlite=_sqlite_make_room, postgresql=_postgresql_make_room)


def hurried(engine: Engine, wait_s: float = 0.0) -> AbstractContextManager[Connection]:
    """Begin a transaction for writes that can be left out.

    It waits `wait_s` for other writers, and not for a transaction of this thread.

    Raises:
        StorageBusyError: Another writer is active.
    """
    if is_working(engine):
        raise StorageBusyError("a transaction of this thread is open")
    return _hurried(engine, wait_s)


_PLAIN_IDS = re.compile("[0-9A-Za-z_/-]+(,[0-9A-Za-z_/-]+)*")


def number_array(numbers: Iterable[int]) -> str:
    """Return whole numbers as the text of an array."""
    return f"{{{','.join(map(str, numbers))}}}"


def number_list(numbers: Sequence[int]) -> str:
    """Return whole numbers as a JSON list, for SQLite."""
    return orjson.dumps(list(numbers)).decode()


# A run is one integer, first << 9 | n: that takes a third of the time of a list of two.
_RUN_BITS = 9
# SQL for the first number and the number of numbers of a run: r is `json_each` of a `run_list`.
FIRST_OF_RUN, N_OF_RUN = f"(r.value >> {_RUN_BITS})", f"(r.value & {2**_RUN_BITS - 1})"


def run_list(runs: Iterable[tuple[int, int]]) -> str:
    """Return runs of numbers, (first, n) with n below 512, as a JSON list, for SQLite."""
    return number_list([first << _RUN_BITS | n for first, n in runs])


def real_array(reals: Sequence[float | None]) -> str:
    """Return numbers as the text of an array."""
    return f"{{{','.join('NULL' if real is None else repr(real) for real in reals)}}}"


def id_array(ids: Sequence[str]) -> str | list[str]:
    """Return ids as the text of an array if none of them needs quotes, otherwise as a list.

    Ids of the library never need quotes. In a list psycopg checks each id in 4 us.
    """
    joined = ",".join(ids)
    if not _PLAIN_IDS.fullmatch(joined) or joined.count(",") >= len(ids):
        return list(ids)
    return list(ids) if "null" in joined.lower() else f"{{{joined}}}"


HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
NULL = b"\xff\xff\xff\xff"
# `struct.pack` would look the form up each time.
_SIZE, _INTEGER, _BIGINT, _DOUBLE = (
    struct.Struct(form).pack for form in (">i", ">ii", ">iq", ">id")
)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# The fields of a column: one for each row, or one for all rows.
Fields = list[bytes] | bytes


def text_field(value: str) -> bytes:
    """Encode a text."""
    raw = value.encode()
    return _SIZE(len(raw)) + raw


def jsonb_field(value: str) -> bytes:
    """Encode JSON as JSONB: a version, then the text."""
    raw = value.encode()
    return struct.pack(">ib", len(raw) + 1, 1) + raw


def bytes_field(value: bytes) -> bytes:
    """Encode bytes."""
    return _SIZE(len(value)) + value


def bigint_field(value: int) -> bytes:
    """Encode a 64-bit whole number."""
    return _BIGINT(8, value)


def integer_field(value: int) -> bytes:
    """Encode a 32-bit whole number."""
    return _INTEGER(4, value)


def double_field(value: float) -> bytes:
    """Encode a 64-bit floating-point number."""
    return _DOUBLE(8, value)


def bool_field(value: bool) -> bytes:
    """Encode a truth value."""
    return struct.pack(">i?", 1, value)


def time_field(time: datetime) -> bytes:
    """Encode a time."""
    since = time - _EPOCH
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return struct.pack(">iq", 8, microseconds)


def fields_of(values: Sequence[Any], encode: Callable[[Any], bytes]) -> Fields:
    """Encode a column with at least one value; None is null.

    Most columns hold the same value in every row of a batch, which is encoded once.
    """
    first = values[0]
    if values.count(first) == len(values):
        return NULL if first is None else encode(first)
    return [NULL if value is None else encode(value) for value in values]


def uuid_field(value: str) -> bytes:
    """Encode a UUID given as text."""
    return _SIZE(16) + bytes.fromhex(value.replace("-", ""))


def uuid_fields(values: Sequence[str]) -> Fields:
    """Encode a column of UUIDs given as text."""
    raw, size = bytes.fromhex("".join(values).replace("-", "")), struct.pack(">i", 16)
    return [size + raw[i : i + 16] for i in range(0, len(raw), 16)]


def rows_of(n: int, head: bytes, columns: Iterable[Fields]) -> bytes:
    """Return the body of a COPY of n rows.

    Args:
        n: Number of rows.
        head: First bytes of each row.
        columns: The columns, encoded.
    """
    return b"".join(chain.from_iterable(_parts_of_rows(n, head, columns)))


def composite_array(oid: int, n: int, columns: Sequence[tuple[int, Fields]]) -> bytes:
    """Return an array of n values of a composite type, without its size.

    Args:
        oid: The server's number of the type.
        n: Number of values, at least one.
        columns: The columns, encoded, each with the number of its type.
    """
    head = struct.pack(">i", len(columns))
    fields: list[Fields] = []
    for type_oid, column in columns:
        fields += (struct.pack(">I", type_oid), column)
    rows = list(map(b"".join, _parts_of_rows(n, head, fields)))
    return struct.pack(">iiIii", 1, 0, oid, n, 1) + b"".join(map(bytes_field, rows))


def _parts_of_rows(n: int, head: bytes, columns: Iterable[Fields]) -> Iterator[tuple[bytes, ...]]:
    same, parts = head, list[Iterable[bytes]]()
    for fields in columns:
        if isinstance(fields, bytes):
            same += fields
            continue
        if same:
            parts.append(repeat(same))
            same = b""
        parts.append(fields)
    parts.append([same] * n)
    return zip(*parts)  # noqa: B905, `repeat` has no end


class Oid(IntEnum):
    """The server's numbers of types."""

    BOOLEAN = 16
    BYTES = 17
    BIGINT = 20
    INTEGER = 23
    TEXT = 25
    DOUBLE = 701
    BOOLEANS = 1000
    BIGINTS = 1016
    DOUBLES = 1022
    TIME = 1184
    UUID = 2950
    JSONB = 3802


class ArrayFields:
    """Encodes columns of one-dimensional arrays.

    Args:
        oid: The server's number of the element type.
        dtype: Dtype of the elements in an array of the server: big-endian.
    """

    def __init__(self, oid: int, dtype: str) -> None:
        self._oid, self._dtype = oid, np.dtype(dtype)
        self._item = np.dtype([("n", ">i4"), ("value", self._dtype)])
        self._empty = struct.pack(">iiiI", 12, 0, 0, oid)

    def __call__(self, column: Sequence[NDArray[Any] | Sequence[Any] | None]) -> Fields:
        """Encode an array for each row; None is null, also in a list."""
        kinds = set(map(type, column))
        if kinds == {NoneType}:
            return NULL
        if kinds != {np.ndarray}:
            return [
                NULL if values is None else self._field(values) if len(values) else self._empty
                for values in column
            ]
        # There may be an array of one value for each of a thousand rows.
        lengths = list(map(len, column))  # type: ignore[arg-type]
        heads = {n: self._head(n) for n in set(lengths)}
        body, size = self._body(np.concatenate(column)), self._item.itemsize  # type: ignore[arg-type]
        ends = accumulate(lengths)
        return [
            heads[n] + body[(end - n) * size : end * size]
            for n, end in zip(lengths, ends, strict=True)
        ]

    def _field(self, values: NDArray[Any] | Sequence[Any]) -> bytes:
        if isinstance(values, np.ndarray):
            return self._head(len(values)) + self._body(values)
        size = struct.pack(">i", self._dtype.itemsize)
        body = b"".join(
            NULL if value is None else size + np.array(value, self._dtype).tobytes()
            for value in values
        )
        return self._head(len(values), len(body)) + body

    def _head(self, n: int, n_bytes: int | None = None) -> bytes:
        """Return the header of n values; it has their size in bytes if some may be null."""
        has_nulls, size = n_bytes is not None, n_bytes or n * self._item.itemsize
        return struct.pack(">iiiIii", 20 + size, 1, has_nulls, self._oid, n, 1)

    def _body(self, values: NDArray[Any]) -> bytes:
        items: Any = np.empty(len(values), self._item)
        items["n"], items["value"] = self._dtype.itemsize, values
        body: bytes = items.tobytes()
        return body


_integer_array_fields = ArrayFields(23, ">i4")
bigint_array_fields = ArrayFields(20, ">i8")
double_array_fields = ArrayFields(701, ">f8")
bool_array_fields = ArrayFields(16, "?")


def integer_arrays(column: Sequence[Sequence[int] | None]) -> Fields:
    """Encode lists of 32-bit integers."""
    arrays = [None if values is None else np.array(values, np.int32) for values in column]
    return _integer_array_fields(arrays)


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
    if not held:
        return
    driver, n_left = driver_of(connection), len(next(iter(held.values())))
    rows = zip(*held.values(), strict=True)
    for n in _ROWS_AT_ONCE if n_bytes <= _BYTES_AT_ONCE else (1,):
        n_statements, n_left = divmod(n_left, n)
        if n_statements:
            # Nobody keeps the tuple of a row: `zip` uses it again for the next one.
            values = [tuple(chain.from_iterable(islice(rows, n))) for _ in range(n_statements)]
            driver.executemany(_insert(table, tuple(held), n, on_conflict), values)


@lru_cache(maxsize=64)
def _insert(table: str, columns: tuple[str, ...], n_rows: int, on_conflict: str) -> str:
    """Return the statement that inserts some columns of n rows."""
    row = f"({', '.join('?' * len(columns))})"
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * n_rows)} "
        f"{on_conflict}"
    )
