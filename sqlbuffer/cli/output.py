"""Rows and values on standard output, as tables, JSON, CSV and NDJSON."""

import csv
import enum
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import typer

from sqlbuffer.cli.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sqlbuffer import DataRow

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

    terminal = Honest(highlight=False)
    return terminal if terminal.is_terminal else Honest(highlight=False, width=UNLIMITED_WIDTH)


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
    rich_table = Table(title=None if title is None else Text(title), title_justify="left")
    for index, name in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in rows)
        # The first column identifies the rows: the others are shortened first.
        width = min(max(map(len, [name, *(row[0] for row in cells)])), FIRST_WIDTH)
        rich_table.add_column(
            Text(name),
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=None if index else width,
        )
    for row in cells:
        rich_table.add_row(*map(Text, row))
    return rich_table


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
    from sqlbuffer.display import dumps, iso_time

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


# A person reads no more rows of a table, and measuring its columns needs all of them in memory.
TABLE_ROWS = 1_000


class Format(enum.Enum):
    """The form in which rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    NDJSON = "ndjson"


class _Writable(Protocol):
    def write(self, text: str, /) -> Any: ...


def chosen(*, json: bool, csv: bool, ndjson: bool) -> Format:
    """Return the format that the options name; by default a table.

    Raises:
        UsageError: Two of them.
    """
    named = [
        format_
        for format_, is_asked in ((Format.JSON, json), (Format.CSV, csv), (Format.NDJSON, ndjson))
        if is_asked
    ]
    if len(named) > 1:
        options = " and ".join(f"--{format_.value}" for format_ in named)
        raise UsageError(f"{options} exclude each other; give one of them")
    return named[0] if named else Format.TABLE


def write(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    format_: Format,
    *,
    exact: bool = False,
) -> None:
    """Print rows on standard output.

    Args:
        columns: Names of the columns.
        rows: The rows; read one by one unless they become a table.
        format_: How.
        exact: Write the numbers of a table in full.
    """
    if format_ is Format.TABLE:
        write_table(columns, rows, exact=exact)
    elif format_ is Format.CSV:
        write_csv(columns, rows, sys.stdout)
    else:
        write_json(columns, rows, sys.stdout, one_a_line=format_ is Format.NDJSON)


def note(text: str) -> None:
    """Print on stderr a text that is not part of the output."""
    typer.echo(text, err=True)


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: _Writable) -> None:
    """Write a header and the rows. None is empty, values inside values are JSON."""
    from sqlbuffer.display import csv_field

    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([csv_field(value) for value in row] for row in rows)


def write_json(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    out: _Writable,
    *,
    one_a_line: bool = False,
) -> None:
    """Write an object a row: as one array, or one a line."""
    from sqlbuffer.display import dumps

    encoding = str(getattr(out, "encoding", None) or "utf-8").lower()
    ascii_only = not encoding.startswith("utf")
    keys = _distinct(columns)
    objects = (dumps(dict(zip(keys, row, strict=True)), ascii_only=ascii_only) for row in rows)
    if one_a_line:
        for line in objects:
            out.write(f"{line}\n")
        return
    before = "[\n"
    for line in objects:
        out.write(f"{before}{line}")
        before = ",\n"
    out.write("[]\n" if before == "[\n" else "\n]\n")


def write_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, exact: bool = False
) -> None:
    """Print a table: on a terminal its first rows, with a word about the rest; elsewhere all."""

    out, left = console(), iter(rows)
    shown = list(itertools.islice(left, TABLE_ROWS if out.is_terminal else None))
    print_rows(out, columns, shown, exact=exact)
    if next(left, None) is not None:
        note(f"these are the first {TABLE_ROWS:,} rows; --csv, --json and --ndjson print all")


def _distinct(columns: Sequence[str]) -> list[str]:
    """Number the names that come twice, since an object keeps one value a key."""
    names: list[str] = []
    for name in columns:
        candidates: Iterator[str] = (f"{name}_{n}" for n in itertools.count(2))
        names.append(name if name not in names else next(c for c in candidates if c not in names))
    return names


_META = (
    "task_id",
    "task_name",
    "agent_id",
    "pre_agent",
    "episode_id",
    "group_id",
    "parent_id",
    "step",
    "execute_time",
    "model_version",
    "session_id",
)
_DATA = (
    "reward_t",
    "adv_t",
    "v_t",
    "terminated",
    "truncated",
    "state",
    "actions",
    "messages",
    "extra",
)
# The arguments of `ReplayBuffer.add`, behind the number.
COLUMNS = ("seq", "id", *_META, *_DATA)
_BRIEF_COLUMNS = ("seq", "task_id", "agent_id", "step", "reward", "end")
_BRIEF_PAYLOADS = ("state", "actions")


def in_full(
    rows: Iterable["DataRow"], fields: Iterable[str]
) -> tuple[Sequence[str], Iterator[list[Any]]]:
    """Return the columns of rows and their values.

    Args:
        rows: The rows.
        fields: The typed fields that the buffer declares; each is a column.
    """
    names = tuple(fields)
    return (*COLUMNS, *names), (_full(row, names) for row in rows)


def _full(row: "DataRow", names: Sequence[str]) -> list[Any]:
    meta = [getattr(row.exp_meta, name) for name in _META]
    data = [getattr(row.exp_data, name) for name in _DATA]
    return [row.seq, row.id, *meta, *data, *map(row.fields.get, names)]


def in_brief(
    rows: Sequence["DataRow"], fields: Iterable[str]
) -> tuple[Sequence[str], list[list[Any]]]:
    """Return the columns of rows and their values, arrays and payloads on a short line.

    Args:
        rows: The rows.
        fields: The typed fields that the buffer declares. If there are some, payloads that no row
            has are left out.
    """
    names = tuple(fields)
    payloads = [
        name
        for name in _BRIEF_PAYLOADS
        if not names or any(getattr(row.exp_data, name) is not None for row in rows)
    ]
    return (*_BRIEF_COLUMNS, *names, *payloads), [_brief(row, names, payloads) for row in rows]


def _brief(row: "DataRow", names: Sequence[str], payloads: Sequence[str]) -> list[Any]:
    meta, data = row.exp_meta, row.exp_data
    values = [*map(row.fields.get, names), *(getattr(data, name) for name in payloads)]
    keys = [row.seq, meta.task_id, meta.agent_id, meta.step, data.reward_t, ending(row)]
    return [*keys, *map(_cell, values)]


def _cell(value: Any) -> Any:
    """Return a value on a short line, with scalars of numpy as those of Python."""
    from sqlbuffer.display import brief

    if value is None:
        return None
    if getattr(value, "shape", None) == ():
        value = value.item()
        return value if isinstance(value, (bool, int, float)) else brief(value)
    return brief(value)


def ending(row: "DataRow") -> str:
    """Return how the episode ended with this step; nothing where it went on."""
    flags = ("terminated", "truncated")
    return ", ".join(flag for flag in flags if getattr(row.exp_data, flag))


def total_reward(rows: Sequence["DataRow"]) -> float | None:
    """Return the sum of the rewards; None where no row has one."""
    rewards = [row.exp_data.reward_t for row in rows if row.exp_data.reward_t is not None]
    return sum(rewards) if rewards else None


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

    return None if value is None else f"≈ {shown(value)}"


def for_people(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    """Return rows for a table: the fill as a percentage, times to the second."""
    for row in rows:
        yield [_for_people(name, value) for name, value in zip(columns, row, strict=True)]


def _for_people(column: str, value: Any) -> Any:
    from sqlbuffer.display import iso_time

    if column == "fill" and value is not None:
        return f"{value:.0%}"
    if column.endswith("_at") and value is not None:
        # SQLite returns text. A time that Python has no date for is shown as text too.
        text = value if isinstance(value, str) else iso_time(value)
        return f"{text[:10]} {text[11:19]}" if text[10:11] == "T" else text
    return value
