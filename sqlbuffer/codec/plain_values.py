"""Plain values as JSON keeps them, tags of the others, and arrays as bytes."""

import datetime as dt
import decimal
import math
import os
import re
import struct
import uuid
from collections.abc import Iterator
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
import orjson

# JSONB prints whole floats from here on as integers.
WHOLE_FLOAT_LIMIT = 1e16


HOSTILE_KEY = re.compile('[\x00-\x1f"\\\\\ud800-\udfff]')


_KEY_ESCAPE = re.compile('[\x00-\x1f"\\\\%\ud800-\udfff]')


_KEY_UNESCAPE = re.compile("%([0-9a-f]{4})")


def tag_text(text: str) -> Any:
    """Return the text itself, or tagged where JSONB cannot hold it."""
    return text if is_storable_text(text) else {"$str": hex_text(text)}


def is_storable_text(text: str) -> bool:
    """Return True if a text column of either database can hold the text."""
    if text.isascii():
        return "\0" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def hex_text(text: str) -> str:
    """Return fixed-width groups of hex digits: ordered as the characters are, searchable for
    substrings.
    """
    points = text.encode("utf-32-be", "surrogatepass")
    groups = bytearray(len(points) // 4 * 3)
    for byte in range(3):  # the first of four is always zero
        groups[byte::3] = points[byte + 1 :: 4]
    return groups.hex(";", 3) + ";" if groups else ""


def unhex_text(groups: str) -> str:
    """Return the text that `hex_text` wrote."""
    raw = bytes.fromhex(groups.replace(";", ""))
    points = bytearray(len(raw) // 3 * 4)
    for byte in range(3):
        points[byte + 1 :: 4] = raw[byte::3]
    return points.decode("utf-32-be", "surrogatepass")


def tag_float(number: float) -> Any:
    """Return the number itself, or tagged where JSON or JSONB would change it."""
    if number != number:
        return {"$float": _nan_text(number)}
    if math.isinf(number):
        return {"$float": "inf" if number > 0 else "-inf"}
    if number == 0.0:
        return number if math.copysign(1.0, number) > 0 else {"$float": "-0.0"}
    if abs(number) >= WHOLE_FLOAT_LIMIT:
        return {"$float": str(int(number))}
    return number


def untag_float(text: str) -> float:
    """Return the float that `tag_float` wrote."""
    if text.startswith("nan:"):
        return float(struct.unpack(">d", bytes.fromhex(text[4:]))[0])
    return float(text)


def escape_key(key: str) -> str:
    """Return the key under which a user's key is stored: safe inside a JSON path, never a tag."""
    if HOSTILE_KEY.search(key):
        return "$%" + _KEY_ESCAPE.sub(lambda match: f"%{ord(match[0]):04x}", key)
    return "$" + key if key.startswith("$") else key


def unescape_key(key: str) -> str:
    """Return the user's key of a stored one."""
    if key.startswith("$%"):
        return _KEY_UNESCAPE.sub(lambda match: chr(int(match[1], 16)), key[2:])
    return key[1:] if key.startswith("$") else key


def tag_standard_type(value: Any) -> dict[str, Any] | None:
    """Return the tagged form of a value of the standard library; None for other values."""
    if isinstance(value, dt.datetime):
        text = value.isoformat()
        return {"$datetime": text} if _is_read_back(value, text) else None
    if isinstance(value, dt.date):
        return {"$date": value.isoformat()}
    if isinstance(value, dt.time):
        return {"$time": value.isoformat()}
    if isinstance(value, dt.timedelta):
        parts = [value.days, value.seconds, value.microseconds]
        # Those of pandas may have nanoseconds.
        return {"$timedelta": parts} if dt.timedelta(*parts) == value else None
    if isinstance(value, decimal.Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, uuid.UUID):
        return {"$uuid": str(value)}
    if isinstance(value, complex):
        return {"$complex": [tag_float(value.real), tag_float(value.imag)]}
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return tag_text(path) if isinstance(path, str) else None
    return None


def _is_read_back(value: dt.datetime, text: str) -> bool:
    """Return True if a time equals that of its text: Python reads an offset of less than a second
    as none, and those of pandas may have nanoseconds, or be missing.
    """
    try:
        read = dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    is_same: bool = read.replace(tzinfo=None) == value.replace(tzinfo=None)
    return is_same and read.utcoffset() == value.utcoffset()


def _nan_text(number: float) -> str:
    raw = struct.pack(">d", number)
    return "nan" if raw == struct.pack(">d", math.nan) else "nan:" + raw.hex()


# Arrays from this size on are aligned, copied piece by piece, and views of what was read.
LARGE_BYTES = 2**16


ALIGNMENT = 64


_CHUNK_BYTES = 2**20


# Most arrays have one of these; to write a dtype down and read it again takes longer than the rest.
PLAIN_DTYPES: dict[Any, str] = {
    np.dtype(code): np.dtype(code).str
    for code in ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d", "F", "D")
}


def byte_chunks(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order.

    A contiguous array is one chunk. Others come in pieces, which saves a copy of the whole array.
    """
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8).data
        return
    for (piece,) in item_pieces(array):
        yield piece.view(np.uint8).data


def item_pieces(*arrays: np.ndarray[Any, Any]) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
    """Yield the items of arrays of one dtype and shape, in C order, some at a time."""
    flags: Any = [["readonly", "contig"]] * len(arrays)
    size = max(1, _CHUNK_BYTES // arrays[0].itemsize)
    iterator: Any = np.nditer(
        list(arrays), ["external_loop", "buffered"], flags, order="C", buffersize=size
    )
    for pieces in iterator:
        yield pieces if isinstance(pieces, tuple) else (pieces,)


def dtype_spec(dtype: np.dtype[Any]) -> Any:
    """Return a dtype as JSON; `dtype_from_spec` reads it."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [dtype_spec(base), list(shape)]
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    titles = [field[2] if len(field) == 3 else None for field in fields]
    return {
        **({"titles": [title and tag_text(title) for title in titles]} if any(titles) else {}),
        "names": [tag_text(name) for name in dtype.names],
        "formats": [dtype_spec(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
    }


MAX_DEPTH = 100  # levels of JSON; orjson writes up to 254


INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


TEXT_LIKE = {str, bool, type(None)}


_PASSTHROUGH = (
    orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)


_FLOATS = {float}


_LONG_KEY = 256  # not worth remembering: the tagger decides


# Sorted, so that equal values have equal text: SQLite compares containers as text.
DUMP_OPTIONS = _PASSTHROUGH | orjson.OPT_SORT_KEYS


def dumps(tree: Any) -> str:
    """Return the canonical JSON text of a tagged tree (keys sorted)."""
    return orjson.dumps(tree, option=DUMP_OPTIONS).decode()


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return True if orjson writes the value as JSON that both databases keep.

    The caller checks the text for U+0000.
    """
    kind = type(value)
    if kind in TEXT_LIKE:
        return True
    if kind is float:
        return is_plain_float(value)
    if kind is int:
        return bool(INT64_MIN <= value <= INT64_MAX)
    if depth == MAX_DEPTH:
        return False
    if kind is dict:
        return all(map(is_plain_key, value)) and all(
            map(is_plain, value.values(), repeat(depth + 1))
        )
    if kind is list:
        kinds = set(map(type, value))
        if kinds == _FLOATS:
            return _are_plain_floats(value)
        return kinds <= TEXT_LIKE or all(map(is_plain, value, repeat(depth + 1)))
    return False


@lru_cache(maxsize=4096)  # rows have the same few keys again and again
def _is_plain_text_key(key: str) -> bool:
    return key[:1] != "$" and HOSTILE_KEY.search(key) is None


def is_plain_key(key: Any) -> bool:
    """Return True if a key of a dict is stored without an escape."""
    return type(key) is str and len(key) < _LONG_KEY and _is_plain_text_key(key)


def _are_plain_floats(numbers: list[float]) -> bool:
    """Return True if `is_plain_float` holds for all; usually without a call for each number."""
    return (
        all(map(math.isfinite, numbers))
        and min(numbers) > -WHOLE_FLOAT_LIMIT
        and max(numbers) < WHOLE_FLOAT_LIMIT
        and (0.0 not in numbers or all(map(is_plain_float, numbers)))
    )


def is_plain_float(number: float) -> bool:
    """Return True if both databases keep the number: finite, not -0.0, below 1e16."""
    return -WHOLE_FLOAT_LIMIT < number < WHOLE_FLOAT_LIMIT and (
        number != 0.0 or math.copysign(1.0, number) > 0
    )
