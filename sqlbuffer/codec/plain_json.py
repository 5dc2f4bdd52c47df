"""Plain values: those that JSON keeps unchanged in PostgreSQL's JSONB and in SQLite."""

import math
from functools import lru_cache
from itertools import repeat
from typing import Any

import orjson

from sqlbuffer.codec.scalar_tags import HOSTILE_KEY, WHOLE_FLOAT_LIMIT

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
