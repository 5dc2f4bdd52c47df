"""The binary format of PostgreSQL's COPY."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
NULL = b"\xff\xff\xff\xff"


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
    """Encode a whole number of 64 bits."""
    return struct.pack(">iq", 8, value)


def integer_field(value: int) -> bytes:
    """Encode a whole number of 32 bits."""
    return struct.pack(">ii", 4, value)


def double_field(value: float) -> bytes:
    """Encode a number of 64 bits."""
    return struct.pack(">id", 8, value)


def bool_field(value: bool) -> bytes:
    """Encode a truth value."""
    return struct.pack(">i?", 1, value)


def uuid_field(value: str) -> bytes:
    """Encode a UUID given as text."""
    return struct.pack(">i", 16) + bytes.fromhex(value.replace("-", ""))


class ArrayField:
    """Encodes arrays of one dimension.

    Args:
        oid: The server's number of the type of elements.
        dtype: Their form in an array of the server: big-endian.
    """

    def __init__(self, oid: int, dtype: str) -> None:
        self._oid, self._dtype = oid, np.dtype(dtype)
        self._item = np.dtype([("n", ">i4"), ("value", self._dtype)])

    def __call__(self, values: NDArray[Any] | Sequence[Any]) -> bytes:
        """Encode the values; None is null."""
        if not len(values):
            return struct.pack(">iiiI", 12, 0, 0, self._oid)
        if isinstance(values, np.ndarray):
            items: Any = np.empty(len(values), self._item)
            items["n"], items["value"] = self._dtype.itemsize, values
            body: bytes = items.tobytes()
            has_nulls = 0
        else:
            size = struct.pack(">i", self._dtype.itemsize)
            body = b"".join(
                NULL if value is None else size + np.array(value, self._dtype).tobytes()
                for value in values
            )
            has_nulls = 1
        head = struct.pack(">iiIii", 1, has_nulls, self._oid, len(values), 1)
        return struct.pack(">i", len(head) + len(body)) + head + body


bigint_array_field = ArrayField(20, ">i8")
double_array_field = ArrayField(701, ">f8")
bool_array_field = ArrayField(16, "?")
