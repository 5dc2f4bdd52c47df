"""Arrays for PostgreSQL as text and in the binary format of COPY."""

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate, chain, repeat
from types import NoneType
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

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
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# The fields of a column: one for each row, or one for all rows.
Fields = list[bytes] | bytes


def text_field(value: str) -> bytes:
    """Encode a text."""
    raw = value.encode()
    return struct.pack(">i", len(raw)) + raw


def jsonb_field(value: str) -> bytes:
    """Encode JSON as JSONB: a version, then the text."""
    raw = value.encode()
    return struct.pack(">ib", len(raw) + 1, 1) + raw


def bytes_field(value: bytes) -> bytes:
    """Encode bytes."""
    return struct.pack(">i", len(value)) + value


def bigint_field(value: int) -> bytes:
    """Encode a 64-bit whole number."""
    return struct.pack(">iq", 8, value)


def integer_field(value: int) -> bytes:
    """Encode a 32-bit whole number."""
    return struct.pack(">ii", 4, value)


def double_field(value: float) -> bytes:
    """Encode a 64-bit floating-point number."""
    return struct.pack(">id", 8, value)


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
    return b"".join(chain.from_iterable(zip(*parts)))  # noqa: B905, `repeat` has no end


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


bigint_array_fields = ArrayFields(20, ">i8")
double_array_fields = ArrayFields(701, ">f8")
bool_array_fields = ArrayFields(16, "?")
