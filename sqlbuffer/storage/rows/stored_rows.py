"""The columns of a stored row, and the order of the rows of a task."""

from collections.abc import Mapping
from typing import Any

from sqlbuffer.encoding.records import Record

# Positions in `statements.ROW_COLUMNS`: seq, then the columns of a record.
TASK_ID, EPISODE_KEY, STEP, EXECUTE_TIME = (
    1 + Record._fields.index(name) for name in ("task_id", "episode_key", "step", "execute_time")
)

# A stored row: seq, then the fields of a record.
Row = tuple[Any, ...]


# Place of each column of a record in a row.
PLACES = {name: 1 + i for i, name in enumerate(Record._fields)}


def with_values(row: Row, values: Mapping[int, Any]) -> Row:
    """Return a row with other values at some places."""
    changed = list(row)
    for place, value in values.items():
        changed[place] = value
    return tuple(changed)


def task_order(row: Row) -> tuple[Any, ...]:
    """Order by episode, step and time, then by insert; missing values come first."""
    seq, episode, step, time = row[0], row[EPISODE_KEY], row[STEP], row[EXECUTE_TIME]
    return (
        episode is not None,
        episode or "",
        step,
        float("-inf") if time is None else time,
        seq,
    )
