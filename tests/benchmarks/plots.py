"""Draw the plots and write the table of docs/performance.md from the JSON of the benchmarks:
`make plots`.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any

from tests.benchmarks.__main__ import DOCUMENT
from tests.benchmarks.report import aligned, replace_between_markers
from tests.support.markdown import ROOT

FOLDER = ROOT / "docs" / "images"
WIDTH = 700
# Colours that differ in lightness too, for both backgrounds.
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.note { font-size: 12px; fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.even { stroke: #59636e; stroke-width: 1.5 }
line.a, line.b { stroke-width: 1.5 }
.a { fill: #0969da; stroke: #0969da } .b { fill: #bc4c00; stroke: #bc4c00 }
.c { fill: #1a7f37; stroke: #1a7f37 } .d { fill: #8250df; stroke: #8250df }
path { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .note { fill: #9198a1 } .grid { stroke: #3d444d } .even { stroke: #9198a1 }
.a { fill: #4493f8; stroke: #4493f8 } .b { fill: #f0883e; stroke: #f0883e }
.c { fill: #3fb950; stroke: #3fb950 } .d { fill: #ab7df8; stroke: #ab7df8 }
}
"""
Points = Sequence[tuple[float, float]]
Row = dict[str, str]


@dataclass
class Drawing:
    """An SVG that follows the reader's light or dark colours.

    Attributes:
        title: Says what it shows; read out as well.
        height: In pixels.
        parts: The elements so far.
    """

    title: str
    height: int
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        shown = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.parts.append(f'<text class="{kind}" {shown}>{escape(words)}</text>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "grid") -> None:
        ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
        self.parts.append(f'<line class="{kind}" {ends}/>')

    def mark(self, x: float, y: float, kind: str, tip: str) -> None:
        """Draw a mark whose shape says the series as well as its colour does."""
        title = f"<title>{escape(tip)}</title>"
        if kind in "ac":
            shape = f'circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"'
            self.parts.append(f"<{shape}>{title}</circle>")
        else:
            box = f'x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"'
            self.parts.append(f'<rect class="{kind}" {box}>{title}</rect>')

    def curve(self, points: Points, kind: str) -> None:
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="M {way}"/>')

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img">'
        )
        title = f"<title>{escape(self.title)}</title>"
        body = "\n".join([f"<style>{STYLE}</style>", title, *self.parts])
        return f"{head}\n{body}\n</svg>\n"


def number(text: str) -> float:
    """Return the first number of a text, with its separators of thousands."""
    found = re.search(r"\d[\d,]*\.?\d*", text)
    if found is None:
        raise ValueError(f"no number in {text!r}")
    return float(found[0].replace(",", ""))


def pairs(cell: str) -> dict[str, str]:
    """Return the parts of a cell like `1: 56,400 rows/s; 2: 58,700 rows/s`."""
    return dict(part.split(": ", 1) for part in cell.split("; "))


def rows_of(section: dict[str, Any], begin: str) -> list[Row]:
    """Return the rows of a section whose measurement begins with some words."""
    rows = [row for table in section["tables"] for row in table]
    found = [row for row in rows if row.get("Measurement", "").startswith(begin)]
    if not found:
        raise ValueError(f"no measurement begins with {begin!r}")
    return found


def name_of(row: Row) -> str:
    return row["Database"].partition(",")[0]


@dataclass(frozen=True)
class Curve:
    """A series of a plot: its name, its class of colours and shapes, and its points."""

    name: str
    kind: str
    points: Points


def curves_plot(
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str,
    shown_y: Callable[[float], str],
    notes: Sequence[str],
    top: float,
) -> str:
    """Return a plot of curves over a logarithmic axis."""
    left, right, high, low = 70.0, WIDTH - 20.0, 82.0, 300.0
    drawing = Drawing(title, 370 + 18 * len(notes))
    drawing.text(20, 26, title, "title")
    xs = sorted({x for curve in curves for x, _ in curve.points})
    first, last = math.log(xs[0]), math.log(xs[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x) - first) / (last - first)
        return left + 20 + across * (right - left - 60), low - y / top * (low - high)

    for part in range(5):
        value = top * part / 4
        y = place(xs[0], value)[1]
        drawing.line(left, y, right, y)
        drawing.text(left - 8, y + 4, shown_y(value), anchor="end")
    for x in xs:
        drawing.text(place(x, 0)[0], low + 20, f"{x:,.0f}", anchor="middle")
    drawing.text((left + right) / 2, low + 42, x_label, anchor="middle")
    for place_of, curve in zip(_legend(curves), curves, strict=True):
        drawing.mark(place_of, 54, curve.kind, curve.name)
        drawing.text(place_of + 12, 58.5, curve.name)
        points = [place(x, y) for x, y in curve.points]
        drawing.curve(points, curve.kind)
        for (x, y), (of, value) in zip(points, curve.points, strict=True):
            drawing.mark(x, y, curve.kind, f"{curve.name}, {of:,.0f}: {shown_y(value)}")
    for number_of, note in enumerate(notes):
        drawing.text(20, low + 70 + 18 * number_of, note, "note")
    return drawing.svg()


def _legend(curves: Sequence[Curve]) -> list[float]:
    places, x = [], 28.0
    for curve in curves:
        places.append(x)
        x += 36 + 7.2 * len(curve.name)
    return places


def by_size(found: dict[str, Any]) -> str:
    """Return the plot of draws against the size of the buffer."""
    section, curves = found["figures"], []
    for begin, what, kinds in (
        ("`sample_arrays(256)` at", "SQL", "ab"),
        ("`mirror.sample_arrays(256)` at", "mirror", "cd"),
    ):
        for row, kind in zip(rows_of(section, begin), kinds, strict=True):
            points = [
                (number(size), number(spent.rpartition(", ")[2]))
                for size, spent in pairs(row["Absolute"]).items()
            ]
            curves.append(Curve(f"{name_of(row)}, {what}", kind, points))
    most = max(y for curve in curves for _, y in curve.points)
    return curves_plot(
        "Time to draw 256 steps, relative to a buffer of 10,000 steps",
        curves,
        x_label="steps in the buffer",
        shown_y=lambda y: f"{y:g} x",
        notes=_notes(section, "Draws by size"),
        top=2 if most <= 2 else 4 * math.ceil(most / 4),
    )


def by_writers(found: dict[str, Any]) -> str:
    """Return the plot of writers against throughput."""
    section = found["figures"]
    curves = [
        Curve(
            name_of(row),
            kind,
            [(number(n), number(rate)) for n, rate in pairs(row["Absolute"]).items()],
        )
        for row, kind in zip(rows_of(section, "8 writers of 64-step"), "ab", strict=True)
    ]
    return curves_plot(
        "Steps stored a second by all writers, in calls of 64 steps",
        curves,
        x_label="writer processes",
        shown_y=lambda y: f"{y:,.0f}",
        notes=_notes(section, "Lines on typed steps"),
        top=60_000,
    )


def _notes(section: dict[str, Any], topic: str) -> list[str]:
    """Return what is known of the run: the fact on a topic, or the machine and the versions."""
    facts: list[str] = section["facts"]
    own = [fact.partition(": ")[2] for fact in facts if fact.startswith(f"{topic}: ")]
    return [f"Machine: {own[0]}"] if own else facts[:2]


PANELS = (
    ("Storing one step at a time", "one step at a time"),
    ("Storing 1,000 steps in one call", "1,000 steps in one call"),
    ("Drawing 256 steps by SQL", "256 at random: "),
)
LEFT, RIGHT, LEAST, MOST = 270.0, WIDTH - 40.0, 0.001, 100.0


def beside_peers(found: dict[str, Any]) -> str:
    """Return the plot of inserts and draws against other buffers."""
    drawing = Drawing("Speed of sqlbuffer relative to other replay buffers", 0)
    drawing.text(20, 26, drawing.title, "title")
    for x, kind, name in ((28, "a", "SQLite"), (108, "b", "PostgreSQL")):
        drawing.mark(x, 54, kind, name)
        drawing.text(x + 12, 58.5, name)
    drawing.text(LEFT - 30, 58.5, "Right of 1 x sqlbuffer is faster. Lines are quartiles.", "note")
    y = 96.0
    for title, begin in PANELS:
        cells = {name_of(row): pairs(row["Absolute"]) for row in rows_of(found["peers"], begin)}
        for row in rows_of(found["earlier peers"], begin):
            earlier = {k: v for k, v in pairs(row["Absolute"]).items() if k.startswith("dm-reverb")}
            cells[name_of(row)] |= earlier
        y = _panel(drawing, y, title, cells)
    from_mirror: dict[str, dict[str, str]] = {}
    for row in rows_of(found["peers"], "`mirror.sample_arrays"):
        peer = row["Measurement"].partition("as fast as ")[2]
        from_mirror.setdefault(name_of(row), {})[peer] = row["Measured"]
    y = _panel(drawing, y, "Drawing 256 steps from a mirror", from_mirror)
    notes = [*found["peers"]["facts"][:1], *found["peers"]["facts"][3:]]
    for note in [*notes, "dm-reverb: an earlier run, before steps were stored in chunks."]:
        drawing.text(20, y - 8, note, "note")
        y += 18
    drawing.height = int(y) + 6
    return drawing.svg()


def _panel(drawing: Drawing, y: float, title: str, cells: dict[str, dict[str, str]]) -> float:
    """Draw ratios by database and by the other buffer; return where the next panel begins."""
    names = list(next(iter(cells.values())))
    low = y + 14 + 26 * len(names)
    drawing.text(20, y, title, "title")
    for tick in (0.001, 0.01, 0.1, 1, 10, 100):
        x = _place(tick)
        drawing.line(x, y + 6, x, low, "even" if tick == 1 else "grid")
        drawing.text(x, low + 16, f"{tick:g} x", anchor="middle")
    for name in names:
        y += 26
        drawing.text(LEFT - 12, y + 4.5, name.replace("`", ""), anchor="end")
        for (database, values), kind, shift in zip(cells.items(), "ab", (-5, 5), strict=True):
            value, *spread = (number(part) for part in re.findall(r"\d\S*", values[name]))
            for one, other in pairwise(spread):
                drawing.line(_place(one), y + shift, _place(other), y + shift, kind)
            tip = f"{database}, {name}: {values[name]} times as fast"
            drawing.mark(_place(value), y + shift, kind, tip)
    return low + 56


def _place(ratio: float) -> float:
    across = math.log(ratio / LEAST) / math.log(MOST / LEAST)
    return LEFT + across * (RIGHT - LEFT)


PLOTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "plot-draws-by-size.svg": by_size,
    "plot-peers.svg": beside_peers,
    "plot-writers.svg": by_writers,
}
# The lines of the table: what they say, how the measurement begins, and the column that is shown.
LINES = (
    ("Draw 256 of 1,000,000 rows: times as fast as `ORDER BY random() LIMIT 256`",
     "`sample(256)` at 1,000,000 rows: times faster", "Measured"),
    ("Draw 256 of 1,000,000 rows: times as long as of 10,000",
     "`sample(256)` at 1,000,000 rows vs", "Measured"),
    ("Draw 256 typed steps from a mirror: times as fast as by SQL",
     "`mirror.sample_arrays(256)`: times faster", "Measured"),
    ("Draw 256 of 1,000,000 rows by priority: times as fast as a weighted `ORDER BY`",
     "`sample(256)` by priority at 1,000,000 rows: times faster", "Measured"),
    ("Store 1,000 JSON rows: share of the speed of the bare driver",
     "`store_batch` of 1,000 rows vs the bare", "Measured"),
    ("Store 1,000 typed steps: share of the speed of the bare driver",
     "`extend` of 1,000 steps vs the bare", "Measured"),
    ("Append typed steps one by one, until the last is stored",
     "`append` of one step after the other, until", "Absolute"),
    ("Store into a full buffer, which evicts: share of the speed without a capacity",
     "inserting at full capacity", "Measured"),
    ("Store while an analyst's transaction is open for 10 s: share of the speed without",
     "insert behind a snapshot", "Measured"),
    ("Room on disk of typed steps: times their raw bytes",
     "room on disk of small steps", "Measured"),
)  # fmt: skip
PAGE = ROOT / "docs" / "performance.md"
MARKERS = ("<!-- begin summary -->", "<!-- end summary -->")


def found_figures() -> dict[str, Any]:
    """Return what the benchmarks found, by the sections of their page."""
    text = DOCUMENT.with_suffix(".json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def summary(found: dict[str, Any]) -> str:
    """Return the short table, with the quartiles where there are any."""
    lines = [("Measurement", "SQLite", "PostgreSQL")]
    for what, begin, column in LINES:
        sqlite, postgresql = rows_of(found["figures"], begin)
        lines.append((what, sqlite[column], postgresql[column]))
    return aligned(lines)


def main() -> None:
    """Draw and write everything."""
    found = found_figures()
    for name, draw in PLOTS.items():
        (FOLDER / name).write_text(draw(found), encoding="utf-8")
        print(f"docs/images/{name}")
    replace_between_markers(PAGE, summary(found), *MARKERS)


if __name__ == "__main__":
    main()
