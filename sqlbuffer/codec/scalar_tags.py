"""Tags of texts, floats and values of the standard library, and escaped keys of dicts."""

import datetime as dt
import decimal
import math
import os
import re
import struct
import uuid
from typing import Any

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
