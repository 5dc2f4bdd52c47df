"""The forms of values in the two databases, and their conversion.

SQLite stores lists as JSON, with null also for NaN and `9e999` for infinity; times as text; and
truth values as numbers. JSON is text in both here: PostgreSQL returns its text.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from sqlbuffer.storage.chunks.numbered_chunk import values_json
from sqlbuffer.storage.schema.column_types import listed

# PostgreSQL writes the 9e999 that stands for infinity in JSON in this way.
_INFINITY = re.compile("90{999}(?![0-9])")
_LONG = 1_000


def time_text(time: datetime) -> str:
    """Return a time in the form of SQLite: UTC, in milliseconds or, if needed, microseconds."""
    utc = time.astimezone(UTC)
    precision = "microseconds" if utc.microsecond % 1_000 else "milliseconds"
    return f"{utc.replace(tzinfo=None).isoformat(timespec=precision)}Z"


def _json_text(text: str) -> str:
    return text if len(text) < _LONG else _INFINITY.sub("9e999", text)


def _reals_text(values: Sequence[Any]) -> str | None:
    if all(value is None or value - value == 0 for value in values):
        return orjson.dumps(values).decode()  # finite
    return values_json([None if value != value else value for value in values])


_TO_SQLITE: dict[str, Callable[[Any], Any]] = {
    "integers": lambda values: orjson.dumps(values).decode(),
    "reals": _reals_text,
    "flags": lambda values: orjson.dumps(values).decode(),
    "json": _json_text,
    "time": time_text,
    "flag": int,
}
_TO_POSTGRESQL: dict[str, Callable[[Any], Any]] = {
    "integers": listed,
    "reals": listed,
    "flags": listed,
    "time": datetime.fromisoformat,
    "flag": bool,
}
_CONVERSIONS = {
    ("postgresql", "sqlite"): _TO_SQLITE,
    ("sqlite", "postgresql"): _TO_POSTGRESQL,
}


def converted(values: list[Any], form: str, source: str, target: str) -> list[Any]:
    """Return values of a column in the form of another database.

    Args:
        values: The values.
        form: The form of the column.
        source: Database that they are from: sqlite or postgresql.
        target: Database that they are for.
    """
    convert = _CONVERSIONS.get((source, target), {}).get(form)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def utc_time(value: Any) -> datetime | None:
    """Return a time of either database as UTC; None for None."""
    if value is None:
        return None
    time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return time.astimezone(UTC)
