"""Page 5: the rollouts of a group next to each other."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.storage.browsing.buffers import GROUP_SORTS, ListedGroup, group_of, group_page
from sqlbuffer.storage.browsing.rollouts import (
    RolloutQuery,
    browsed_buffer,
    group_rewards,
    in_order,
    rollout_page,
)
from sqlbuffer.web.answers import advantages_of, group_texts
from sqlbuffer.web.jumps import has_failed
from sqlbuffer.web.pages.buffers_page import buffer_of
from sqlbuffer.web.pages.episodes_page import (
    episodes_statement,
    page_place,
    place_text,
    rollout_address,
)
from sqlbuffer.web.rendering import (
    buffer_link,
    command_line,
    difference_link,
    link,
    page,
    quoted,
)
from sqlbuffer.web.site import site_of
from sqlbuffer.web.transcript import first_line, pieces, printable

TAB = ("/groups", "Groups")
GROUPS_A_PAGE = 50
ROLLOUTS_A_PAGE = 64
# Groups of more episodes have no advantages on the page.
MOST_SIBLINGS = 10_000
_SORTS = dict(zip(GROUP_SORTS, ("most spread", "least spread", "group"), strict=True))


def show(request: Request) -> Response:
    """Return the list of groups."""
    site, name = site_of(request), buffer_of(request)
    asked = request.query_params.get("sort", "spread")
    sort = asked if asked in _SORTS else "spread"
    forms = ("ss",) if sort == "group" else ("ns", "0s")
    after = page_place(request.query_params.get("after"), *forms)
    with site.pool.connection() as connection:
        buffer = browsed_buffer(connection, site.url, name)
        listing = group_page(connection, buffer.info.id, sort, after, GROUPS_A_PAGE)

    def to(**changed: Any) -> str:
        return link(request, "/groups", **{"buffer": name, "sort": sort, **changed})

    column, descends = GROUP_SORTS[sort]
    ending = " DESC" if descends else ""
    # Not v_groups: pages need an index for each order.
    statement = (
        "SELECT g.* FROM group_stats g JOIN buffers b ON b.id = g.buffer_id "
        f"WHERE b.name = {quoted(name)} "
        f"ORDER BY g.{column}{ending} NULLS LAST, g.group_id{ending}"
    )
    if after is None:
        statement += f" LIMIT {GROUPS_A_PAGE}"
    return page(
        request,
        "groups.html",
        place="/groups",
        buffer=name,
        groups=listing.groups,
        sort=sort,
        sorts=_SORTS,
        is_first=after is None,
        first=to(),
        later=None if listing.after is None else to(after=place_text(listing.after)),
        to=to,
        group_to=lambda group: link(request, "/group", buffer=name, group=group.group_id),
        commands=[command_line("sql", site.shown_url, statement)],
    )


def show_group(request: Request) -> Response:
    """Return the rollouts of one group, with what they were asked and what they said."""
    site, name = site_of(request), buffer_of(request)
    group_id = request.query_params.get("group", "")
    sort = request.query_params.get("sort", "best")
    with site.pool.connection() as connection:
        buffer = browsed_buffer(connection, site.url, name)
        known = "\0" not in group_id
        group = group_of(connection, buffer.info.id, group_id) if known else None
        query = RolloutQuery(
            sort=sort if sort in ("best", "worst", "newest") else "best",
            group_id=group_id if known else "",
            after=page_place(request.query_params.get("after"), "nn", "0n"),
        )
        listing = rollout_page(connection, buffer.info, query, ROLLOUTS_A_PAGE)
        rewards = group_rewards(connection, buffer.info.id, query.group_id or "", MOST_SIBLINGS + 1)
        with in_order(connection):
            texts = group_texts(connection, buffer, listing.rollouts)

    def to(**changed: Any) -> str:
        state = {"buffer": name, "group": group_id, "sort": query.sort}
        return link(request, "/group", **{**state, **changed})

    episodes = [row for row in listing.rollouts if row.number]
    ends = (episodes[0], episodes[-1]) if len(episodes) > 1 else None
    statement = episodes_statement(name, query, listing.looked_at)
    if query.after is None:
        statement += f" LIMIT {ROLLOUTS_A_PAGE}"
    return page(
        request,
        "group.html",
        status_code=200 if listing.rollouts else 404,
        place="/groups",
        buffer=name,
        group_id=group_id,
        group=group,
        listing=listing,
        sort=query.sort,
        first=to(),
        later=None if listing.after is None else to(after=place_text(listing.after)),
        to=to,
        rollout_to=lambda row: rollout_address(request, name, row),
        ends=ends,
        widest=_ends_of(group),
        episodes=episodes,
        difference_to=lambda a, b: difference_link(request, name, a.number, b.number, view="sides"),
        compare_to=buffer_link(request, name, "/difference"),
        advantages=advantages_of(rewards if len(rewards) <= MOST_SIBLINGS else {}),
        most_siblings=MOST_SIBLINGS,
        has_advantages=len(rewards) <= MOST_SIBLINGS,
        texts_of=texts,
        of_buffer=lambda path, **query: buffer_link(request, name, path, **query),
        pieces=lambda text: pieces(text, ""),
        printable=printable,
        first_line=first_line,
        has_failed=has_failed,
        commands=[command_line("sql", site.shown_url, statement)],
    )


def _ends_of(group: ListedGroup | None) -> tuple[float, float] | None:
    """Return the least and the greatest reward of a group; None if there are not two."""
    if group is None or group.least is None or group.greatest is None:
        return None
    return (group.least, group.greatest) if group.greatest > group.least else None


ROUTES = [Route("/groups", show), Route("/group", show_group)]
