"""The table of figures: whole on the terminal and in docs/contributing/benchmarks.json, and short
in the page next to that file.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import Ratio, ratio_of

BEGIN, END = "<!-- begin figures -->", "<!-- end figures -->"
HEADER = ("Measurement", "Database", "Measured", "Target", "Met", "Absolute")


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        what: What was measured.
        database: Where.
        absolute: The figures behind the ratio.
        ratio: The ratio; None where only absolute figures are reported.
        target: What the ratio is held against; None: it is only reported.
        at_most: The ratio should be at most the target, not at least.
    """

    what: str
    database: str
    absolute: str
    ratio: Ratio | None = None
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.ratio is None or self.target is None:
            return None
        return self.ratio.value <= self.target if self.at_most else self.ratio.value >= self.target

    def cells(self, *, judged: bool = True) -> tuple[str, ...]:
        """Return the columns of the table.

        Args:
            judged: Say whether the target is met.
        """
        return (
            self.what,
            self.database,
            "" if self.ratio is None else shown_ratio(self.ratio),
            "reported" if self.target is None else self._shown_target(),
            {True: "yes", False: "**no**", None: ""}[self.met if judged else None],
            self.absolute,
        )

    def _shown_target(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.target:g}"


def shown_ratio(ratio: Ratio) -> str:
    if ratio.low == ratio.high:
        return _short(ratio.value)
    return f"{_short(ratio.value)} ({_short(ratio.low)} to {_short(ratio.high)})"


def _short(value: float) -> str:
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def shown_time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs" if seconds >= 0.00001 else f"{seconds * 1e6:.1f} µs"
    if seconds < 0.001:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"


def shown_times(seconds: Sequence[float]) -> str:
    """Show the median, and the quartiles where there are several."""
    found = ratio_of(seconds)
    if found.low == found.high:
        return shown_time(found.value)
    return f"{shown_time(found.value)} ({shown_time(found.low)} to {shown_time(found.high)})"


def shown_rate(rows_per_s: float) -> str:
    return f"{round(rows_per_s, -2):,.0f} rows/s"


def shown_size(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"


def table(figures: Sequence[Figure], *, judged: bool = True) -> str:
    """Return the figures as a Markdown table, aligned for reading as it is."""
    return aligned([HEADER, *(figure.cells(judged=judged) for figure in figures)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first line is its head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *body = (_line(cells, widths) for cells in lines)
    return "\n".join([head, _line(["-" * width for width in widths], widths), *body])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"


def write_between_markers(path: Path, text: str, first: str = BEGIN, last: str = END) -> None:
    """Put the tables of a text into the JSON next to a document, and their short form between two
    markers of it.
    """
    ((name, section),) = sections(f"{first}\n\n{text}\n\n{last}").items()
    replace_between_markers(path, short(section), first, last)
    file = path.with_suffix(".json")
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    written = json.dumps({**found, name: section}, indent=1, ensure_ascii=False)
    file.write_text(f"{written}\n", encoding="utf-8")


def replace_between_markers(path: Path, text: str, first: str, last: str) -> None:
    """Replace the text between the two markers of a document."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise ValueError(f"{path} lacks the lines {first} and {last}")
    path.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}", encoding="utf-8")


def sections(text: str) -> dict[str, dict[str, Any]]:
    """Return the facts and the tables between the markers of a document.

    Returns:
        By the name in the marker: `facts`, the lines of the list, and `tables`, each a list of
        rows, which are dicts of cells by the head of their column.
    """
    marked = re.compile(r"<!-- begin (.+?) -->\n(.*?)<!-- end \1 -->", re.DOTALL)
    return {
        name: {"facts": re.findall(r"^- (.+)$", body, re.MULTILINE), "tables": _tables(body)}
        for name, body in marked.findall(text)
    }


def _tables(text: str) -> list[list[dict[str, str]]]:
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *lines = (
            [cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()
        )
        found.append([dict(zip(head, line, strict=True)) for line in lines])
    return found


# Quartiles, and settings behind the name of a database.
_SPREAD = re.compile(r" \((?:≥ )?[\d.,]+[^()]* to [^()]*\)")


def short(section: dict[str, Any]) -> str:
    """Return a section as the page shows it: a line for each measurement with a target, and without
    quartiles.

    Figures that miss their target are bold.
    """
    facts = "\n".join(f"- {fact}" for fact in section["facts"])
    tables = [text for table in section["tables"] for text in _short_tables(table)]
    return "\n\n".join([facts, *tables])


def _short_tables(rows: list[dict[str, str]]) -> list[str]:
    if not rows:
        return []
    if tuple(rows[0]) != HEADER:
        there = [row for row in rows if "not installed" not in row.values()]
        return [
            _compact([list(rows[0]), *([_plain(cell) for cell in row.values()] for row in there)])
        ]
    rows = [row for row in rows if row["Target"] != "reported"]
    databases = list(dict.fromkeys(_database(row) for row in rows))
    of_files = [name for name in databases if name in ("SQLite", "PostgreSQL")]
    groups = [of_files, *([name] for name in databases if name not in of_files)]
    return [_by_database(rows, names) for names in groups if names]


def _by_database(rows: list[dict[str, str]], databases: list[str]) -> str:
    lines: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        if _database(row) in databases:
            lines.setdefault(row["Measurement"], {})[_database(row)] = row
    table = [["Measurement", "Target", *databases]]
    for what, of in lines.items():
        targets = dict.fromkeys(row["Target"] for row in of.values())
        cells = [_figure(of[name]) if name in of else "" for name in databases]
        table.append([what, " or ".join(targets), *cells])
    return _compact(table)


def _database(row: dict[str, str]) -> str:
    return row["Database"].partition(",")[0]


def _figure(row: dict[str, str]) -> str:
    value = _plain(row["Measured"])
    return f"**{value}**" if row["Met"] == "**no**" else value


def _plain(cell: str) -> str:
    return _SPREAD.sub("", cell)


def _compact(lines: list[list[str]]) -> str:
    head, *body = ("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([head, "| " + " | ".join(["---"] * len(lines[0])) + " |", *body])
