"""Prepare overviews of buffers and tasks for a person to read."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlbuffer.cli.formats import note


def note_if_measured(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a note if rows and tasks were not counted."""
    tasks = columns.index("tasks")
    if any(row[tasks] is None for row in rows):
        note("rows are the size of the window, tasks are not counted; --exact counts both")


def for_people(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    """Return rows for a table: the fill as a percentage, times to the second."""
    for row in rows:
        yield [_for_people(name, value) for name, value in zip(columns, row, strict=True)]


def _for_people(column: str, value: Any) -> Any:
    from sqlbuffer.display.jsonable import iso_time

    if column == "fill" and value is not None:
        return f"{value:.0%}"
    if column.endswith("_at") and value is not None:
        # SQLite returns text. A time that Python has no date for is shown as text too.
        text = value if isinstance(value, str) else iso_time(value)
        return f"{text[:10]} {text[11:19]}" if text[10:11] == "T" else text
    return value
