"""Write rows as a table, JSON, CSV or NDJSON; all but the table row by row."""

import csv
import enum
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import typer

from sqlbuffer.cli.errors import UsageError

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
        for format_, given in ((Format.JSON, json), (Format.CSV, csv), (Format.NDJSON, ndjson))
        if given
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
    from sqlbuffer.display.jsonable import csv_field

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
    from sqlbuffer.display.jsonable import dumps

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
    from sqlbuffer.cli.terminal import console, print_rows

    out, left = console(), iter(rows)
    shown = list(itertools.islice(left, TABLE_ROWS if out.is_terminal else None))
    print_rows(out, columns, shown, exact=exact)
    if next(left, None) is not None:
        note(f"these are the first {TABLE_ROWS:,} rows; --csv, --json and --ndjson print all")


def _distinct(columns: Sequence[str]) -> list[str]:
    """Number the names that come twice, since an object keeps one value a key."""
    found: list[str] = []
    for name in columns:
        candidates: Iterator[str] = (f"{name}_{n}" for n in itertools.count(2))
        found.append(name if name not in found else next(c for c in candidates if c not in found))
    return found
