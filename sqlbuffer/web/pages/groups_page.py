"""Page 5: the rollouts of a group next to each other."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.storage.browsing.buffers import GROUP_SORTS, ListedGroup, group_of, group_page
from sqlbuffer.storage.browsing.rollouts import (
    ListedRollout,
    RolloutQuery,
    browsed_buffer,
    group_rewards,
    in_order,
    rollout_page,
)
from sqlbuffer.web.answers import advantages_of, group_texts
from sqlbuffer.web.filter_bar import quoted_value
from sqlbuffer.web.jumps import has_failed
from sqlbuffer.web.pages.buffers_page import buffer_of
from sqlbuffer.web.pages.episodes_page import (
    ListColumn,
    episodes_statement,
    list_state,
    page_place,
    place_text,
    rollout_address,
)
from sqlbuffer.web.rendering import (
    ago,
    buffer_link,
    command_line,
    count,
    difference_link,
    link,
    page,
    quoted,
    short_id,
    took,
)
from sqlbuffer.web.site import site_of
from sqlbuffer.web.transcript import first_line, pieces, printable

TAB = ("/groups", "Groups")
GROUPS_A_PAGE = 50
ROLLOUTS_A_PAGE = 64
# Groups of more episodes have no advantages on the page.
MOST_SIBLINGS = 10_000
COLUMNS = (
    ListColumn("group", ("group", "group descending")),
    ListColumn("episodes", ("episodes", "episodes ascending"), is_number=True),
    ListColumn("mean reward", ("mean", "mean ascending"), is_number=True),
    ListColumn("deviation", ("deviation", "deviation ascending"), is_number=True),
    ListColumn("least", is_number=True),
    ListColumn("greatest", is_number=True),
    ListColumn("spread", ("spread", "alike"), is_number=True),
    ListColumn("flag"),
)
_IN_SQL = {"variance": "m2 / nullif(g.n_rewards, 0)"}


def show(request: Request) -> Response:
    """Return the list of groups."""
    site, name = site_of(request), buffer_of(request)
    asked = request.query_params.get("sort", "spread")
    sort = asked if asked in GROUP_SORTS else "spread"
    forms = ("ss",) if GROUP_SORTS[sort][0] == "group_id" else ("ns", "0s")
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
        f"ORDER BY g.{_IN_SQL.get(column, column)}{ending} NULLS LAST, g.group_id{ending}"
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
        columns=COLUMNS,
        directions=GROUP_SORTS,
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

    columns = _columns_of(listing.rollouts)
    alike = [column for column, cells in columns.items() if _is_alike(column, cells)]
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
        rollout_to=lambda row: rollout_address(
            request, name, row, **list_state(f"group={quoted_value(group_id)}", query.sort)
        ),
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
        columns=columns,
        alike=alike,
        varied=[column for column in columns if column not in alike],
        texts_in=("status", "task", "agent"),
        commands=[command_line("sql", site.shown_url, statement)],
    )


def _columns_of(rows: Sequence[ListedRollout]) -> dict[str, list[str]]:
    """Return the columns that do not differ in many groups, as they are shown."""
    return {
        "status": [row.status or "" for row in rows],
        "length": [count(row.length) for row in rows],
        "model": [count(row.model_version) for row in rows],
        "task": [short_id(row.task_id) for row in rows],
        "agent": [short_id(row.agent_id) for row in rows],
        "began": [ago(row.started_at) for row in rows],
        "took": [took(row.started_at, row.ended_at) for row in rows],
    }


def _is_alike(column: str, cells: Sequence[str]) -> bool:
    """Return True if all of several rows show the same; of a moment, its age."""
    texts = {Markup(cell).striptags() if column == "began" else cell for cell in cells}
    return len(cells) > 1 and len(texts) == 1


def _ends_of(group: ListedGroup | None) -> tuple[float, float] | None:
    """Return the least and the greatest reward of a group; None if there are not two."""
    if group is None or group.least is None or group.greatest is None:
        return None
    return (group.least, group.greatest) if group.greatest > group.least else None


ROUTES = [Route("/groups", show), Route("/group", show_group)]
