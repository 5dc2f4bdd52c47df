"""A report: what the pages show of buffers, in one file without a server."""

import base64
import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.storage.browsing.buffer_curves import TimeSpan, buffer_number
from sqlbuffer.storage.browsing.buffer_overviews import buffer_names
from sqlbuffer.storage.browsing.read_pool import ReadPool
from sqlbuffer.storage.browsing.report_rows import MOST_ROWS, ReportRow, report_rows
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database, shown_url
from sqlbuffer.web.buffer_figures import MOST_EPISODES, BufferFigures, figures_of
from sqlbuffer.web.rendering import FOLDER, encoded, environment

MOST_BUFFERS = 20
N_BEST = 20
MOST_GROUPS = 50
# Nobody waits for a report in a browser.
TIME_S = 60.0
_SCRIPTS = ("app.js", "uPlot.min.js", "curves.js")
_STYLES = ("uPlot.min.css", "app.css")


@dataclass(frozen=True)
class GroupRow:
    """The rollouts of a task.

    Attributes:
        task_id: The task.
        n: How many rollouts there are.
        mean: Mean of their returns.
        least: The least return.
        most: The greatest.
    """

    task_id: str
    n: int
    mean: float
    least: float
    most: float

    @property
    def spread(self) -> float:
        """Greatest less least return: where it is 0 there is nothing to learn from the group."""
        return self.most - self.least


@dataclass(frozen=True)
class BufferReport:
    """What a report says of a buffer."""

    name: str
    figures: BufferFigures
    n_rows: int
    best: tuple[ReportRow, ...]
    worst: tuple[ReportRow, ...]
    groups: tuple[GroupRow, ...]


def report(url: Database, buffer: str | None = None) -> bytes:
    """Return a report as HTML, which needs no other file.

    Args:
        url: The database.
        buffer: The buffer; None for all of them, up to a limit.

    Raises:
        BufferNotFoundError: There is no such buffer.
        StorageUnreachableError: No such file, or no server.
    """
    resolved = resolve_url(url)
    pool = ReadPool(resolved, time_s=TIME_S)
    try:
        with pool.connection() as connection:
            names = buffer_names(connection, most=MOST_BUFFERS) if buffer is None else [buffer]
            found = [_report_of(connection, name) for name in names]
    finally:
        pool.close()
    scripts = [(FOLDER / "static" / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    style = "\n".join((FOLDER / "static" / name).read_text(encoding="utf-8") for name in _STYLES)
    # Only these run, whatever texts of users there are in the file.
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes([style])}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    text = (
        environment()
        .get_template("report.html")
        .render(
            reports=found,
            database=shown_url(resolved),
            made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
            policy=policy,
            scripts=[Markup(script) for script in scripts],
            style=Markup(style),
            most_rows=MOST_ROWS,
            most_episodes=MOST_EPISODES,
            most_buffers=MOST_BUFFERS,
            n_best=N_BEST,
            most_groups=MOST_GROUPS,
            is_of_all=buffer is None,
        )
    )
    return encoded(text)


def _hashes(texts: Sequence[str]) -> str:
    """Return the sources that a policy allows: texts by their hashes."""
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _report_of(connection: Any, name: str) -> BufferReport:
    number = buffer_number(connection, name)
    figures = None if number is None else figures_of(connection, name, TimeSpan())
    if number is None or figures is None:
        raise BufferNotFoundError(
            f"there is no buffer {name!r}; `sqlbuffer ls URL` lists those that there are"
        )
    rows = report_rows(connection, number)
    by_return = sorted(filter(_has_return, rows), key=_return_of, reverse=True)
    # No episode is among the best and among the worst.
    best = by_return[:N_BEST]
    worst = by_return[N_BEST:][-N_BEST:][::-1]
    return BufferReport(name, figures, len(rows), tuple(best), tuple(worst), groups_of(rows))


def _has_return(row: ReportRow) -> bool:
    return row.total is not None and math.isfinite(row.total)


def _return_of(row: ReportRow) -> float:
    return 0.0 if row.total is None else row.total


def groups_of(rows: Sequence[ReportRow]) -> tuple[GroupRow, ...]:
    """Return the tasks with several rollouts, those with most of them first."""
    returns: dict[str, list[float]] = defaultdict(list)
    for row in filter(_has_return, rows):
        returns[row.task_id].append(_return_of(row))
    groups = [
        GroupRow(task, len(of), math.fsum(each / len(of) for each in of), min(of), max(of))
        for task, of in returns.items()
        if len(of) > 1
    ]
    return tuple(sorted(groups, key=lambda each: (-each.n, each.task_id))[:MOST_GROUPS])
