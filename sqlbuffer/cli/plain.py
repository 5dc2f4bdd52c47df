"""Values as other programs take them, and as a person takes them in."""

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import orjson

BRIEF_ITEMS = 8
BRIEF_TEXT = 60
BRIEF_DEPTH = 3
LONGEST_INT_BITS = 10_000
LARGEST_EXPONENT = 308  # of a float
# orjson leaves these to `plain`, for one form of each.
_FAST = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def plain(value: Any) -> Any:
    """Return a value as JSON has it.

    NaN and infinities become null, bytes base64 text, times ISO 8601 text (UTC where the zone is
    known), arrays, tuples and sets lists, and keys of dicts text. What JSON has no form for becomes
    Python's text of it.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, Decimal)):
        return _plain_number(value)
    if isinstance(value, dict):
        return {_text(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value, key=repr)]
    return _plain_other(value)


def _plain_number(value: int | float | Decimal) -> int | float | str | None:
    if isinstance(value, int):
        # Python refuses to write out longer ones.
        return int(value) if value.bit_length() < LONGEST_INT_BITS else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if not value.is_finite():
        return None
    if value.adjusted() > LARGEST_EXPONENT:
        return str(value)
    return int(value) if value == value.to_integral_value() else float(value)


def _plain_other(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dt.datetime):
        return iso_time(value)
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if hasattr(value, "tolist"):  # a numpy array or scalar
        listed = value.tolist()
        return _text(value) if listed is value else plain(listed)
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of too many digits inside
        return f"<{type(value).__name__}>"


def iso_time(time: dt.datetime) -> str:
    """Return a time as ISO 8601 has it, in UTC where its zone is known."""
    if time.tzinfo is None:
        return time.isoformat()
    try:
        return time.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:  # within a day of the first or last that Python has
        return time.isoformat()


def dumps(value: Any, *, ascii_only: bool = False) -> str:
    """Return the JSON text of a value, on one line."""
    if not ascii_only:
        try:
            return orjson.dumps(value, plain, _FAST).decode()
        except TypeError:  # keys that are no text, integers beyond 64 bits, lone surrogates
            pass
    separators = (",", ":")
    return json.dumps(plain(value), ensure_ascii=ascii_only, allow_nan=False, separators=separators)


def csv_field(value: Any) -> Any:
    """Return a value as a field of CSV: None is empty, values inside values are JSON."""
    if value is None or type(value) in (str, int):
        return value
    if isinstance(value, float):
        return repr(value)  # nan and inf have a form here
    if isinstance(value, bool):
        return str(value).lower()
    made = plain(value)
    return dumps(made) if isinstance(made, (list, dict)) else made


def brief(value: Any, depth: int = 0) -> str:
    """Return a value in one short line: arrays by dtype, shape and their first numbers."""
    if isinstance(value, str):
        return _cut(value) if depth == 0 else json.dumps(_cut(value), ensure_ascii=False)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _brief_array(value)
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dt.datetime):
        return iso_time(value)
    if isinstance(value, dict):
        pairs = [
            f"{_cut(_text(key))}: {_inner(item, depth)}" for key, item in _first(value.items())
        ]
        return "{" + ", ".join([*pairs, *_rest(value)]) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_inner(item, depth) for item in _first(value)]
        return "[" + ", ".join([*items, *_rest(value)]) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return _cut(str(plain(value)) if isinstance(value, int) else _text(value))


def _inner(value: Any, depth: int) -> str:
    return "..." if depth >= BRIEF_DEPTH else brief(value, depth + 1)


def _first(items: Any) -> list[Any]:
    return [item for _, item in zip(range(BRIEF_ITEMS), items, strict=False)]


def _rest(items: Any) -> list[str]:
    more = len(items) - BRIEF_ITEMS
    return [f"... {more} more"] if more > 0 else []


def _cut(text: str) -> str:
    line = " ".join(text.splitlines())
    return line if len(line) <= BRIEF_TEXT else f"{line[:BRIEF_TEXT]}... ({len(text):,} characters)"


def _brief_array(array: Any) -> str:
    import numpy as np

    flat = np.ravel(array)
    items = [brief(item.item() if hasattr(item, "item") else item, 1) for item in _first(flat)]
    dots = ["..."] if flat.size > BRIEF_ITEMS else []
    return f"{array.dtype}{tuple(array.shape)} [{' '.join([*items, *dots])}]"
