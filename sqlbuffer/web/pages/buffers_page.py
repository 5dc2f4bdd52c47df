"""Page 1: the buffers of the database, live."""

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sqlbuffer.storage.browsing.buffers import LATELY_S, MOST_BUFFERS, WINDOW_S
from sqlbuffer.web.rendering import command_line, fragment, page
from sqlbuffer.web.site import MOST_WATCHERS, site_of

_TEMPLATE = "buffers_table.html"


def show(request: Request) -> Response:
    """Return the page."""
    site = site_of(request)
    commands = [
        command_line("watch", site.shown_url),
        command_line("info", site.shown_url),
        command_line("doctor", site.shown_url),
    ]
    context = _context(site.look())
    return page(request, "buffers.html", place="buffers", commands=commands, **context)


def _context(found: Any) -> dict[str, Any]:
    return {
        "overview": found.overview,
        "warnings": found.warnings,
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


ROUTES = [Route("/", show), Route("/live", live)]
