"""Show a value in one short line, for a person."""

import datetime as dt
import json
from typing import Any

from sqlbuffer.display.jsonable import iso_time, jsonable, safe_text

BRIEF_ITEMS = 8
BRIEF_TEXT = 60
BRIEF_DEPTH = 3


def brief(value: Any, depth: int = 0) -> str:
    """Return a value in one short line: short vectors in full, larger arrays by dtype, shape and
    what their numbers are like.
    """
    if isinstance(value, str):
        return _cut(value) if depth == 0 else json.dumps(_cut(value), ensure_ascii=False)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value)
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dt.datetime):
        return iso_time(value)
    if isinstance(value, dict):
        pairs = [
            f"{_cut(safe_text(key))}: {_inner(item, depth)}" for key, item in _first(value.items())
        ]
        return "{" + ", ".join([*pairs, *_rest(value)]) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_inner(item, depth) for item in _first(value)]
        return "[" + ", ".join([*items, *_rest(value)]) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return _cut(str(jsonable(value)) if isinstance(value, int) else safe_text(value))


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


def _array(value: Any) -> str:
    from sqlbuffer.display.short_values import described_array

    return described_array(value, lambda item: brief(item, 1))
