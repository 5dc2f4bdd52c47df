"""The figures of a buffer: its facts, curves and distributions, next to those of other buffers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.storage.browsing.buffers import buffer_names
from sqlbuffer.storage.browsing.curves import (
    KINDS,
    MOST_EPISODES,
    ROWS_OF_A_BATCH,
    TimeSpan,
    now_of,
)
from sqlbuffer.storage.browsing.run_facts import RunFacts, run_facts
from sqlbuffer.web.curves import AXES, BufferFigures, View, figures_of
from sqlbuffer.web.pages.buffers_page import buffer_of, unknown_buffer
from sqlbuffer.web.rendering import (
    command_line,
    episode_link,
    here_of,
    link,
    page,
    python_call,
    quoted,
)
from sqlbuffer.web.site import site_of

TAB = ("/buffer", "Figures")
# Lines of more buffers would hide each other, and each costs as much as a page.
MOST_OTHERS = 7
MOST_NAMES = 500
# Up to now: the name in the address, in words, and how many seconds.
RANGES = (
    ("15m", "15 min", 900.0),
    ("1h", "1 h", 3_600.0),
    ("6h", "6 h", 21_600.0),
    ("24h", "24 h", 86_400.0),
    ("7d", "7 days", 604_800.0),
    ("all", "all", math.inf),
)
_SECONDS = {name: seconds for name, _, seconds in RANGES}


@dataclass(frozen=True)
class _Shown:
    """What a request asks for, and the figures that answer it."""

    name: str
    others: Sequence[str]
    view: View
    figures: BufferFigures
    facts: RunFacts


def show_buffer(request: Request) -> Response:
    """Return the page."""
    site = site_of(request)
    with site.pool.connection() as connection:
        shown = _shown(request, connection)
        names = buffer_names(connection, most=MOST_NAMES)
    name, span = shown.name, shown.view.span
    return page(
        request,
        "buffer.html",
        place="/buffer",
        **_context(request, shown),
        refresh=link(request, "/figures", buffer=name, **_state(request)),
        ranges=RANGES,
        chosen="" if _number(request, "since") is not None else _last(request),
        span=span,
        axes=AXES,
        kinds=KINDS,
        smoothing=_smoothing(request),
        most_others=MOST_OTHERS,
        comparable=[other for other in names if other != name and other not in shown.others],
        state=_state(request),
        changed=lambda **query: here_of(request, **query),
        commands=[
            *(command_line("sql", site.shown_url, line) for line in _statements(name, span)),
            command_line("watch", site.shown_url, buffer=name),
            python_call(site.shown_url, name, "stats()"),
        ],
    )


def show_figures(request: Request) -> Response:
    """Return the part of the page that changes while a run writes."""
    with site_of(request).pool.connection() as connection:
        shown = _shown(request, connection)
    return page(request, "figures.html", **_context(request, shown))


def _shown(request: Request, connection: Any) -> _Shown:
    name = buffer_of(request)
    asked = request.query_params
    named = dict.fromkeys(other for other in asked.getlist("with") if other != name)
    others = list(named)[:MOST_OTHERS]
    axis, by = asked.get("x"), asked.get("by")
    view = View(
        _span(request, _last(request), now_of(connection)),
        # Runs of other days have nothing in common but their steps.
        axis if axis in AXES else "step" if others else "time",
        by if by in KINDS else None,
    )
    figures = figures_of(connection, name, view, others)
    facts = None if figures is None else run_facts(connection, name)
    if figures is None or facts is None:
        raise unknown_buffer(name)
    return _Shown(name, others, view, figures, facts)


def _context(request: Request, shown: _Shown) -> dict[str, Any]:
    return {
        "episode_link": lambda number: episode_link(request, shown.name, number),
        "buffer": shown.name,
        "others": shown.others,
        "view": shown.view,
        "stats": shown.figures.stats,
        "most_episodes": MOST_EPISODES,
        "figures": shown.figures,
        "facts": shown.facts,
    }


def _last(request: Request) -> str:
    return str(request.query_params.get("last", "all"))


def _smoothing(request: Request) -> float | None:
    """Return the smoothing in the address; None: the browser takes the one that it used last."""
    try:
        number = float(request.query_params.get("smooth", ""))
    except ValueError:
        return None
    return number if 0 <= number < 1 else None


def _state(request: Request) -> Mapping[str, Sequence[str]]:
    """Return what a form keeps of the address."""
    asked = request.query_params
    return {name: asked.getlist(name) for name in asked if name not in ("token", "buffer")}


def _statements(name: str, span: TimeSpan) -> list[str]:
    """Return the SQL behind the figures, for the same part of the history."""
    quoted_name = quoted(name)

    def where(time: str, *others: str) -> str:
        parts = [f"buffer = {quoted_name}", *others]
        if span.since is not None:
            parts.append(f"{time} >= '{_iso(span.since)}'")
        if span.until is not None:
            parts.append(f"{time} < '{_iso(span.until)}'")
        return " AND ".join(parts)

    return [
        "SELECT ended_at, episode_return, length FROM v_episodes "
        f"WHERE {where('started_at', 'length IS NOT NULL')} ORDER BY ended_at",
        "SELECT substr(CAST(inserted_at AS text), 1, 16) AS minute, count(*) AS written "
        f"FROM v_experiences WHERE {where('inserted_at')} GROUP BY 1 ORDER BY 1",
        "SELECT h.bucket * 10 AS unix_time, sum(h.n_sampled) AS sampled FROM flow_history h "
        f"JOIN buffers b ON b.id = h.buffer_id WHERE b.name = {quoted_name} GROUP BY 1 ORDER BY 1",
        "SELECT sampled_at, avg(staleness) AS staleness FROM v_samples "
        f"WHERE {where('sampled_at', f'position <= {ROWS_OF_A_BATCH}')} "
        "GROUP BY batch_id, sampled_at ORDER BY sampled_at",
        f"SELECT priority FROM v_priorities WHERE buffer = {quoted_name}",
    ]


def _iso(seconds: float) -> str:
    """Return a Unix time as both databases compare it with their own."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def _span(request: Request, chosen: str, now: float) -> TimeSpan:
    since, until = _number(request, "since"), _number(request, "until")
    if since is not None or until is not None:
        return TimeSpan(since, until)
    seconds = _SECONDS.get(chosen, math.inf)
    return TimeSpan(None if math.isinf(seconds) else now - seconds)


def _number(request: Request, name: str) -> float | None:
    """Return a Unix time of the address; None if it is not a number."""
    try:
        number: Any = float(request.query_params.get(name, ""))
    except ValueError:
        return None
    return float(number) if 0 <= number < 1e11 else None


ROUTES = [
    Route("/buffer", show_buffer),
    Route("/figures", show_figures),
]
