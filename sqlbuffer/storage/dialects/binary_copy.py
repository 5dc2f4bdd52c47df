"""The binary format of PostgreSQL's COPY."""

import struct

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
