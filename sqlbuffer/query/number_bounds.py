"""Compare integer and real columns exactly with any number."""

import math
from typing import Any

from sqlbuffer.codec.plain_json import INT64_MAX, INT64_MIN


def is_number(value: Any) -> bool:
    """Return True if a value compares as a number (bool does, as in Python)."""
    return isinstance(value, (int, float))


def integer_bound(op: str, value: float) -> tuple[str, int | bool]:
    """Return an exact comparison of an integer column for a comparison with any number.

    Args:
        op: `eq`, `gt`, `gte`, `lt` or `lte`.
        value: The number; may be fractional, infinite or NaN.

    Returns:
        An operator with an integer bound, or `("const", b)` where b holds for every integer.
    """
    if value != value:
        return "const", False
    if isinstance(value, float) and math.isinf(value):
        return "const", (op in ("lt", "lte")) == (value > 0) and op != "eq"
    if value != int(value):
        if op == "eq":
            return "const", False
        return ("gte", math.ceil(value)) if op in ("gt", "gte") else ("lte", math.floor(value))
    bound = int(value)
    if not INT64_MIN <= bound <= INT64_MAX:
        return "const", op != "eq" and (op in ("lt", "lte")) == (bound > 0)
    return op, bound


def real_bound(op: str, value: float) -> tuple[str, float]:
    """Return an exact comparison of a real column for a comparison with any number.

    Args:
        op: `eq`, `gt`, `gte`, `lt` or `lte`.
        value: The number; it may be an integer between two floats.

    Returns:
        An operator with a float bound, or `("const", 0.0)` where no number compares so.
    """
    bound = float(value)
    if bound == value:
        return op, bound
    if op == "eq" or value != value:
        return "const", 0.0
    if op in ("gt", "gte"):
        return ("gte" if bound > value else "gt"), bound
    return ("lt" if bound > value else "lte"), bound
