"""Prepare overviews of buffers and tasks for a person to read."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlbuffer.cli.formats import note

_ESTIMATED = ("rows", "fill")


def note_if_measured(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a note if rows or tasks were not counted."""
    exact, tasks = columns.index("exact"), columns.index("tasks")
    if not all(row[exact] for row in rows):
        note("≈ is an estimate: the numbers of the window; --exact counts rows and tasks")
    elif any(row[tasks] is None for row in rows):
        note("tasks are not counted; --exact counts them")


def buffers_for_people(
    columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> tuple[list[str], list[list[Any]]]:
    """Return the table of buffers: estimates are marked, in place of the column `exact`."""
    shown = [name for name in columns if name != "exact"]
    cells = []
    for row in rows:
        values = dict(zip(columns, row, strict=True))
        is_exact = values.pop("exact")
        readable = {name: _for_people(name, value) for name, value in values.items()}
        if not is_exact:
            readable |= {name: about(readable[name]) for name in _ESTIMATED}
        cells.append(list(readable.values()))
    return shown, cells


def about(value: Any) -> str | None:
    """Return the text of an estimate."""
    from sqlbuffer.cli.terminal import shown

    return None if value is None else f"≈ {shown(value)}"


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
