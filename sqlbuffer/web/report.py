"""A report: the pages' figures of buffers, in one file without a server."""

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.storage.browsing.buffers import ListedGroup, buffer_names, group_page
from sqlbuffer.storage.browsing.curves import MOST_EPISODES, buffer_number
from sqlbuffer.storage.browsing.read_pool import ReadPool
from sqlbuffer.storage.browsing.rollouts import ListedRollout, RolloutQuery, rollout_page
from sqlbuffer.storage.browsing.run_facts import RunFacts, run_facts
from sqlbuffer.storage.buffers.catalog import BufferInfo, find_buffer
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database, shown_url
from sqlbuffer.web.curves import BufferFigures, figures_of
from sqlbuffer.web.rendering import FOLDER, encoded, environment

MOST_BUFFERS = 20
N_BEST = 20
MOST_GROUPS = 50
# No browser waits for a report.
TIME_S = 60.0
_SCRIPTS = ("app.js", "uPlot.min.js", "curves.js")
_STYLES = ("uPlot.min.css", "app.css", "figures.css", "tables.css")


@dataclass(frozen=True)
class BufferReport:
    """The part of a report about one buffer."""

    name: str
    figures: BufferFigures
    facts: RunFacts
    best: list[ListedRollout]
    worst: list[ListedRollout]
    groups: list[ListedGroup]


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
            reports = [_report_of(connection, name) for name in names]
    finally:
        pool.close()
    scripts = [(FOLDER / "static" / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    style = "\n".join((FOLDER / "static" / name).read_text(encoding="utf-8") for name in _STYLES)
    # Only these scripts and styles run, even if texts of users contain others.
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes([style])}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    text = (
        environment()
        .get_template("report.html")
        .render(
            reports=reports,
            database=shown_url(resolved),
            made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
            policy=policy,
            scripts=[Markup(script) for script in scripts],
            style=Markup(style),
            most_episodes=MOST_EPISODES,
            most_buffers=MOST_BUFFERS,
            n_best=N_BEST,
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
    figures = None if number is None else figures_of(connection, name)
    facts = None if figures is None else run_facts(connection, name)
    if number is None or figures is None or facts is None:
        raise BufferNotFoundError(
            f"there is no buffer {name!r}; `sqlbuffer ls URL` lists those that there are"
        )
    info = find_buffer(connection, name)
    assert info is not None
    best = _ends(connection, info, "best", [math.inf, 0])
    worst = _ends(connection, info, "worst", [-math.inf, 2**63 - 1])
    # No episode is among the best and among the worst.
    listed = {(row.task_id, row.number) for row in best}
    worst = [row for row in worst if (row.task_id, row.number) not in listed]
    groups = [
        group
        for group in group_page(connection, number, limit=MOST_GROUPS).groups
        if group.n_rollouts > 1
    ]
    return BufferReport(name, figures, facts, best, worst, groups)


def _ends(
    connection: Any, info: BufferInfo, sort: str, after: Sequence[float]
) -> list[ListedRollout]:
    """Return the rollouts at one end of all rewards that are numbers, behind the infinite ones."""
    query = RolloutQuery(sort=sort, after=after)
    rollouts = rollout_page(connection, info, query, N_BEST).rollouts
    return [
        row
        for row in rollouts
        if row.rollout_reward is not None and math.isfinite(row.rollout_reward)
    ]
