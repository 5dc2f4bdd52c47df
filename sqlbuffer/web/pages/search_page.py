"""Page 6: words in all episodes of a buffer."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.storage.browsing.rollouts import browsed_buffer
from sqlbuffer.storage.browsing.steps import StepKey
from sqlbuffer.web.pages.buffers_page import buffer_of
from sqlbuffer.web.pages.episodes_page import page_place, place_text, rollout_address
from sqlbuffer.web.rendering import buffer_link, episode_link, link, page, word_commands
from sqlbuffer.web.searching import (
    SEARCH_SECONDS,
    BufferSearch,
    FoundRollout,
    Hit,
    search_buffer,
    words_of,
)
from sqlbuffer.web.site import site_of
from sqlbuffer.web.transcript import pieces, printable

TAB = ("/search", "Search")
MOST_CHARACTERS = 200


def show(request: Request) -> Response:
    """Return the page."""
    site, name = site_of(request), buffer_of(request)
    sought = request.query_params.get("q", "").strip()[:MOST_CHARACTERS]
    words = words_of(sought)
    after = page_place(request.query_params.get("after"), "nn")
    at = page_place(request.query_params.get("at"), "nn")
    search = BufferSearch()
    with site.pool.connection() as connection:
        buffer = browsed_buffer(connection, site.url, name)
        if words:
            is_step = after is not None and at is not None and {*map(type, at)} == {int}
            key = StepKey(*at) if at is not None and is_step else None
            search = search_buffer(connection, buffer, words, after, key)

    def to(**changed: Any) -> str:
        return link(request, "/search", **{"buffer": name, "q": sought or None, **changed})

    later = None
    if search.after is not None:
        reached = None if search.at is None else place_text(list(search.at))
        later = to(after=place_text(search.after), at=reached)
    return page(
        request,
        "search.html",
        place="/search",
        buffer=name,
        sought=sought,
        words=words,
        search=search,
        listed=folded(search.found),
        is_first=after is None,
        first=to(),
        later=later,
        most_characters=MOST_CHARACTERS,
        most_seconds=SEARCH_SECONDS,
        rollout_to=lambda row: rollout_address(request, name, row),
        hit_to=lambda found, hit: _address(request, name, found, hit),
        pieces=lambda text: pieces(text, *words),
        printable=printable,
        commands=word_commands(site.shown_url, name, words) if words else [],
    )


def folded(found: Sequence[FoundRollout]) -> list[tuple[FoundRollout, list[FoundRollout]]]:
    """Return rollouts with hits, each with the others of its group that have the same hits."""
    listed: dict[Any, tuple[FoundRollout, list[FoundRollout]]] = {}
    for one in found:
        hits = tuple((hit.where, *hit.excerpts) for hit in one.hits)
        key = (one.row.group_id, hits)
        if key in listed:
            listed[key][1].append(one)
        else:
            listed[key] = (one, [])
    return list(listed.values())


def _address(request: Request, name: str, found: FoundRollout, hit: Hit) -> str:
    """Return the address of the step of a hit."""
    row, query = found.row, dict[str, Any]()
    if hit.key is not None:
        query = {"q": hit.words, "at": f"{hit.key.position}.{hit.key.seq}"}
    if row.number:
        address = episode_link(request, name, row.number, **query)
    else:
        address = buffer_link(request, name, "/task", task=row.task_id, **query)
    return f"{address}#{hit.anchor}"


ROUTES = [Route("/search", show)]
