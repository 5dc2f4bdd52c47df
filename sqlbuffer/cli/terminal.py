"""Print tables and values on standard output: a terminal limits their width, a file does not."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# For a file or a pipe: no cell is cut.
UNLIMITED_WIDTH = 10_000
# A column that is squeezed below this cannot be read.
READABLE_WIDTH = 8
LONG_WIDTH = 24
FIRST_WIDTH = 20
_BORDER_WIDTH = 3
# C0, DEL and C1 but for tab and newline: a text must not command the terminal.
_ESCAPES = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"
}


def shown_url(url: str | None) -> str:
    """Return a URL in full, without its password."""
    from sqlbuffer.storage.database.engine import resolve_url
    from sqlbuffer.storage.database.urls import shown_url as without_password

    return without_password(resolve_url(url))


def console() -> "Console":
    """Return the console of standard output."""
    from rich.console import Console

    class Honest(Console):
        def on_broken_pipe(self) -> None:
            """Leave the end of the process, and its exit code, to `ErrorsAsLines`."""
            raise BrokenPipeError

    found = Honest(highlight=False)
    return found if found.is_terminal else Honest(highlight=False, width=UNLIMITED_WIDTH)


def print_rows(
    out: "Console", columns: Sequence[str], rows: Sequence[Sequence[Any]], *, exact: bool = False
) -> None:
    """Print a table, or a block a row where its columns would be too narrow to read.

    Args:
        out: Where to.
        columns: Names of the columns.
        rows: The rows.
        exact: Numbers in full, as they are copied, and not as they are read.
    """
    written = shown_exactly if exact else shown
    cells = [[written(value) for value in row] for row in rows]
    natural = [
        max(map(len, [name, *(row[index] for row in cells)])) for index, name in enumerate(columns)
    ]
    needed = 1 + sum(
        min(width, _squeezed(width, is_first=not index)) + _BORDER_WIDTH
        for index, width in enumerate(natural)
    )
    if not out.is_terminal:
        sys.stdout.writelines(_lines(columns, rows, cells))
    elif cells and needed > out.width:
        _print_blocks(out, columns, cells)
    else:
        out.print(_table_of(columns, rows, cells))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None
) -> "Table":
    """Return a table; numbers stand at the right."""
    listed = [list(row) for row in rows]
    return _table_of(columns, listed, [[shown(value) for value in row] for row in listed], title)


def _table_of(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    cells: Sequence[Sequence[str]],
    title: str | None = None,
) -> "Table":
    from rich.table import Table
    from rich.text import Text

    # Text, since a task's name, or a column's, may hold what rich takes for markup.
    made = Table(title=None if title is None else Text(title), title_justify="left")
    for index, name in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in rows)
        # The first column identifies the rows: the others are shortened first.
        width = min(max(map(len, [name, *(row[0] for row in cells)])), FIRST_WIDTH)
        made.add_column(
            Text(name),
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=None if index else width,
        )
    for row in cells:
        made.add_row(*map(Text, row))
    return made


def shown(value: Any) -> str:
    """Return a value as a cell: thousands separated, reals to four digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (float, Decimal)):
        number = float(value)
        whole = math.isfinite(number) and abs(number) >= 1000
        return f"{number:,.0f}" if whole else f"{number:.4g}"
    return _shown_other(value).translate(_ESCAPES)


def shown_exactly(value: Any) -> str:
    """Return a value as a cell, numbers in full."""
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return str(value)
    return shown(value)


def _shown_other(value: Any) -> str:
    from sqlbuffer.display.jsonable import dumps, iso_time

    if isinstance(value, datetime):
        return iso_time(value)
    if isinstance(value, (dict, list)):
        return dumps(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value):,} bytes"
    return str(value)


def _lines(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], cells: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Yield the lines of the same table, uncut; rich takes a minute for 100,000 rows."""
    from rich.cells import cell_len

    split = [[cell.split("\n") for cell in row] for row in [columns, *cells]]
    widths = [max(cell_len(line) for row in split for line in row[i]) for i in range(len(columns))]
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    unicode = str(sys.stdout.encoding or "utf-8").lower().startswith("utf")
    top, head, bottom, bar = ("┌─┬┐", "├─┼┤", "└─┴┘", "│") if unicode else ("+-++",) * 3 + ("|",)

    def rule(left: str, line: str, cross: str, right: str) -> str:
        return left + cross.join(line * (width + 2) for width in widths) + right + "\n"

    yield rule(*top)
    for number, row in enumerate(split):
        for index in range(max(map(len, row))):
            parts = []
            for lines, width, right in zip(row, widths, numeric, strict=True):
                text = lines[index] if index < len(lines) else ""
                space = " " * (width - cell_len(text))
                parts.append(f" {space}{text} " if right else f" {text}{space} ")
            yield f"{bar}{bar.join(parts)}{bar}\n"
        if not number:
            yield rule(*head)
    yield rule(*bottom)


def _squeezed(width: int, *, is_first: bool) -> int:
    """Return the width that a column may be squeezed to before it cannot be read."""
    if is_first:
        return FIRST_WIDTH
    return READABLE_WIDTH if width <= LONG_WIDTH else LONG_WIDTH


def _is_number(value: Any) -> bool:
    is_estimate = isinstance(value, str) and value.startswith("≈ ")
    return value is None or is_estimate or isinstance(value, (int, float, Decimal))


def _print_blocks(out: "Console", columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.text import Text

    width = max(map(len, columns))
    for number, row in enumerate(cells, 1):
        out.print(Text(f"-- {number} --", style="dim"))
        for name, cell in zip(columns, row, strict=True):
            indented = cell.replace("\n", "\n" + " " * (width + 2))
            out.print(Text.assemble((name.rjust(width), "dim"), "  ", indented))
