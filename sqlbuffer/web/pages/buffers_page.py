"""The buffers of the database, live."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sqlbuffer.errors import BufferNotFoundError, SQLBufferError
from sqlbuffer.storage.browsing.buffers import LATELY_S, MOST_BUFFERS, WINDOW_S, BufferOverview
from sqlbuffer.web.rendering import command_line, fragment, link, page
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
    context = _context(request, site.look())
    return page(request, "buffers.html", place="buffers", commands=commands, **context)


def _number(name: str) -> Callable[[BufferOverview], Any]:
    return lambda each: getattr(each.stats, name)


# The head of a column -> its value for sorting, and its explanation.
COLUMNS: dict[str, tuple[Callable[[BufferOverview], Any], str]] = {
    "buffer": (_number("buffer"), ""),
    "rows": (_number("rows"), ""),
    "capacity": (_number("capacity"), ""),
    "fill": (_number("fill"), ""),
    "in/s": (_number("insert_rate"), f"Steps in, mean over the last {WINDOW_S:.0f} s"),
    "out/s": (
        _number("sample_rate"),
        f"Steps out, mean over the last {WINDOW_S:.0f} s; processes report their draws every 5 s",
    ),
    "out/in": (_number("samples_per_insert"), ""),
    "writers": (
        lambda each: len(each.writers),
        f"Agents of the newest 1,000 steps that wrote in the last {LATELY_S:.0f} s",
    ),
    "readers": (
        lambda each: len(each.readers),
        f"Processes that drew in the last {LATELY_S:.0f} s",
    ),
    "oldest": (_number("oldest_age_s"), "Age of the oldest step"),
    "newest": (_number("newest_age_s"), "Age of the newest step"),
    "versions": (
        lambda each: each.versions[1],
        "Versions of the model: least and greatest among the oldest and the newest 100 steps, "
        "or chunks of steps",
    ),
}


def _sorted(buffers: Sequence[BufferOverview], sort: str) -> list[BufferOverview]:
    """Return buffers in an order: a column, with a minus before it if it descends."""
    of, _ = COLUMNS.get(sort.lstrip("-"), COLUMNS["buffer"])
    known = [each for each in buffers if of(each) is not None]
    rest = [each for each in buffers if of(each) is None]
    return sorted(known, key=of, reverse=sort.startswith("-")) + rest


def _context(request: Request, look: Any) -> dict[str, Any]:
    sort = request.query_params.get("sort", "buffer")

    def sort_to(column: str) -> str:
        first, second = (column, f"-{column}") if column == "buffer" else (f"-{column}", column)
        return link(request, "/", sort=second if sort == first else first)

    return {
        "overview": look.overview,
        "buffers": _sorted(look.overview.buffers, sort),
        "columns": COLUMNS,
        "sort": sort,
        "sort_to": sort_to,
        "live": link(request, "/live", sort=request.query_params.get("sort")),
        "warnings": look.warnings,
        "most_buffers": MOST_BUFFERS,
        "window_s": WINDOW_S,
    }


async def live(request: Request) -> Response:
    """Return the figures as server-sent events, until the client goes away."""

    async def table(look: Any) -> str:
        return fragment(request, _TEMPLATE, **_context(request, look))

    return live_part(request, table)


def live_part(request: Request, part_of: Callable[[Any], Awaitable[str]]) -> Response:
    """Return a part of a page as server-sent events, until the client goes away.

    Args:
        request: The request that is answered.
        part_of: Returns the part after each look at the database.
    """
    poller = site_of(request).live
    if poller.n_watchers >= MOST_WATCHERS:
        text = f"{MOST_WATCHERS} pages are live already; close one of them"
        return Response(text, 503, headers={"Retry-After": "30"})
    return StreamingResponse(
        _events(request, part_of),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(request: Request, part_of: Callable[[Any], Awaitable[str]]) -> AsyncIterator[str]:
    yield "retry: 3000\n\n"
    async for seen in site_of(request).live.sightings():
        if seen.trouble is not None:
            yield _event("trouble", f"not live: {seen.trouble}")
        else:
            try:
                yield _event("figures", await part_of(seen.found))
            except SQLBufferError as error:
                yield _event("trouble", f"not live: {error}")


def _event(name: str, text: str) -> str:
    # One line of ASCII, for any text.
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"


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


ROUTES = [
    Route("/", show_buffers),
    Route("/live", live),
]
