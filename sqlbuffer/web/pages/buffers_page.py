"""The buffers of the database, live; and the curves and distributions of one buffer."""

import json
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.storage.browsing.buffers import LATELY_S, MOST_BUFFERS, WINDOW_S
from sqlbuffer.storage.browsing.curves import ROWS_OF_A_BATCH, TimeSpan, now_of
from sqlbuffer.web.curves import MOST_EPISODES, figures_of
from sqlbuffer.web.rendering import command_line, fragment, page, python_call, quoted
from sqlbuffer.web.site import MOST_WATCHERS, site_of

_TEMPLATE = "buffers_table.html"


def show_buffers(request: Request) -> Response:
    """Return the page."""
    site = site_of(request)
    commands = [
        command_line("watch", site.shown_url),
        command_line("info", site.shown_url),
        command_line("doctor", site.shown_url),
    ]
    context = _context(site.look())
    return page(request, "buffers.html", place="buffers", commands=commands, **context)


def _context(look: Any) -> dict[str, Any]:
    return {
        "overview": look.overview,
        "warnings": look.warnings,
        "most_buffers": MOST_BUFFERS,
        "window_s": WINDOW_S,
        "lately_s": LATELY_S,
    }


async def live(request: Request) -> Response:
    """Return the figures as server-sent events, until the client goes away."""
    poller = site_of(request).live
    if poller.n_watchers >= MOST_WATCHERS:
        text = f"{MOST_WATCHERS} pages are live already; close one of them"
        return Response(text, 503, headers={"Retry-After": "30"})
    return StreamingResponse(
        _events(request),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(request: Request) -> AsyncIterator[str]:
    yield "retry: 3000\n\n"
    async for seen in site_of(request).live.sightings():
        if seen.trouble is not None:
            yield _event("trouble", f"not live: {seen.trouble}")
        else:
            yield _event("figures", fragment(request, _TEMPLATE, **_context(seen.found)))


def _event(name: str, text: str) -> str:
    # One line of ASCII, for any text.
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"


TAB = ("/buffer", "Figures")
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


def show_buffer(request: Request) -> Response:
    """Return the page."""
    site, name = site_of(request), buffer_of(request)
    chosen = request.query_params.get("last", "all")
    with site.pool.connection() as connection:
        span = _span(request, chosen, now_of(connection))
        figures = figures_of(connection, name, span)
    if figures is None:
        raise unknown_buffer(name)
    return page(
        request,
        "buffer.html",
        place="/buffer",
        buffer=name,
        stats=figures.stats,
        most_episodes=MOST_EPISODES,
        curves=figures.curves,
        histograms=figures.histograms,
        ranges=RANGES,
        chosen="" if _number(request, "since") is not None else chosen,
        span=span,
        commands=[
            *(command_line("sql", site.shown_url, line) for line in _statements(name, span)),
            command_line("watch", site.shown_url, buffer=name),
            python_call(site.shown_url, name, "stats()"),
        ],
    )


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
        "SELECT sampled_at, avg(clock - model_version) AS staleness FROM v_samples "
        f"WHERE {where('sampled_at', f'position <= {ROWS_OF_A_BATCH}')} "
        "GROUP BY batch_id, sampled_at ORDER BY sampled_at",
        f"SELECT priority FROM v_priorities WHERE buffer = {quoted_name}",
    ]


def _iso(seconds: float) -> str:
    """Return a Unix time as both databases compare it with their own."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def buffer_of(request: Request) -> str:
    """Return the name of the buffer that a request is about.

    Raises:
        BufferNotFoundError: It names none.
    """
    name = request.query_params.get("buffer")
    if name is None:
        raise BufferNotFoundError("the address names no buffer; choose one from the list")
    return str(name)


def unknown_buffer(name: str) -> BufferNotFoundError:
    """Return the error for a buffer that is not there."""
    return BufferNotFoundError(
        f"there is no buffer {name!r}: it was dropped, or never made; choose one from the list"
    )


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
    Route("/", show_buffers),
    Route("/live", live),
    Route("/buffer", show_buffer),
]
