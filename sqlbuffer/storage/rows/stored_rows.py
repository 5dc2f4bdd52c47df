"""Stored rows: their columns, late and replaced values, and their order within a task."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.marks import Marks

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
        if place < len(changed):  # a row without typed fields ends before its block
            changed[place] = value
    return tuple(changed)


# Columns of `Marks`.
_REPLACED, _LATE = ("reward_t", "terminated", "truncated"), ("reward_t", "adv_t", "v_t", "fields")
# Places behind the columns of a record, in rows with typed fields.
_BLOCK, _BLOCK_PLACE = 1 + len(Record._fields), 2 + len(Record._fields)


def with_marks(rows: list[Row], marks: Marks, columns: Set[str]) -> list[Row]:
    """Return rows without deleted steps, with late and replaced values.

    `fields` gets the late fields only: the others are in the bytes of the step.

    Args:
        rows: The rows.
        marks: What became of their steps.
        columns: Columns of a `Record` that were read; the others stay as they are.
    """
    deleted = set(marks.deleted)
    changed: dict[int, dict[int, Any]] = {}
    for seq, block, *values in marks.replaced:
        changed[seq] = {
            PLACES[name]: value
            for name, value in zip(_REPLACED, values, strict=True)
            if name in columns
        } | {_BLOCK: block, _BLOCK_PLACE: 0}
    for seq, *values in marks.labels:
        changed.setdefault(seq, {}).update(_given(_LATE, values, {*columns, "fields"}))
    for seq, extra in marks.extras:
        changed.setdefault(seq, {}).update(_given(("extra",), (extra,), columns))
    return [
        with_values(row, changed[row[0]]) if row[0] in changed else row
        for row in rows
        if row[0] not in deleted
    ]


def _given(names: Sequence[str], values: Sequence[Any], columns: Set[str]) -> dict[int, Any]:
    return {
        PLACES[name]: value
        for name, value in zip(names, values, strict=True)
        if name in columns and value is not None
    }


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
