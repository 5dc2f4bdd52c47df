"""Page 3: the episodes of a buffer, and the tasks without episodes."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.codec.plain_values import INT64_MAX, INT64_MIN, is_storable_text
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.tree import check, known_fields
from sqlbuffer.storage.browsing.rollouts import (
    MOST_NEWER,
    SORTS,
    ListedRollout,
    RolloutFilter,
    RolloutPage,
    RolloutQuery,
    browsed_buffer,
    n_newer,
    rollout_page,
)
from sqlbuffer.storage.browsing.steps import rewards_of
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.web.filter_bar import MOST_CHARACTERS, EpisodeFilter, parse_filter, quoted_value
from sqlbuffer.web.pages.buffers_page import buffer_of, live_part
from sqlbuffer.web.rendering import (
    buffer_link,
    command_line,
    episode_link,
    fragment,
    link,
    page,
    python_rows,
    quoted,
    readable_literal,
)
from sqlbuffer.web.site import site_of

TAB = ("/episodes", "Episodes")
ROWS_A_PAGE = 50
# Names in the view of the columns that pages are sorted by, and compared.
_IN_VIEW = {"first_seq": "started_at", "rollout_reward": "episode_reward", "key": "episode_id"}


@dataclass(frozen=True)
class ListColumn:
    """A column of the list of episodes.

    Attributes:
        name: Its head.
        sorts: The orders that its head leads to, the first one first; empty: none.
        is_number: Numbers are aligned right.
        is_kept: It cannot be hidden.
    """

    name: str
    sorts: tuple[str, ...] = ()
    is_number: bool = False
    is_kept: bool = False

    def next_sort(self, sort: str) -> str:
        """Return the order that the head leads to from another one."""
        return self.sorts[-1] if sort == self.sorts[0] else self.sorts[0]

    def direction(self, sort: str, orders: Mapping[str, tuple[str, bool]] = SORTS) -> str | None:
        """Return the direction in which an order sorts the column; None: it sorts another one."""
        if sort not in self.sorts:
            return None
        return "descending" if orders[sort][1] else "ascending"


COLUMNS = (
    ListColumn("episode", ("episode", "episode descending"), is_kept=True),
    ListColumn("task", ("task", "task descending")),
    ListColumn("group"),
    ListColumn("agent", ("agent", "agent descending")),
    ListColumn("status", ("status", "status descending")),
    ListColumn("reward", ("best", "worst"), is_number=True),
    ListColumn("length", ("longest", "shortest"), is_number=True),
    ListColumn("spread", ("spread",), is_number=True),
    ListColumn("model", ("model descending", "model"), is_number=True),
    ListColumn("began", ("newest", "oldest"), is_number=True),
    ListColumn("took", is_number=True),
    ListColumn("ended", ("ended descending", "ended"), is_number=True),
)


def show(request: Request) -> Response:
    """Return the page."""
    site, name = site_of(request), buffer_of(request)
    sought = request.query_params.get("q", "").strip()
    asked = request.query_params.get("sort", "newest")
    sort = asked if asked in SORTS else "newest"
    trouble, listing, wanted = None, RolloutPage([], None, None), EpisodeFilter()
    query = RolloutQuery(sort)
    with site.pool.connection() as connection:
        buffer = browsed_buffer(connection, site.url, name)
        fields = buffer.info.config.fields
        try:
            wanted = parse_filter(sought, fields.specs)
            query = _query(request, sort, wanted, fields.comparable)
            listing = rollout_page(connection, buffer.info, query, ROWS_A_PAGE)
            listing = _with_unknown_sums(connection, buffer, listing)
        except ConditionError as error:
            trouble, wanted = str(error), EpisodeFilter()
            query = RolloutQuery(sort)
            listing = rollout_page(connection, buffer.info, query, ROWS_A_PAGE)
        newest = rollout_page(connection, buffer.info, RolloutQuery(), 1).rollouts
    shown_filter = sought if trouble is None else ""
    state = {"q": shown_filter or None, "sort": None if sort == "newest" else sort}

    has_groups = any(row.group_id != row.task_id for row in listing.rollouts)

    def to(**changed: Any) -> str:
        return link(request, "/episodes", buffer=name, **{**state, **changed})

    return page(
        request,
        "episodes.html",
        place="/episodes",
        buffer=name,
        listing=listing,
        columns=[column for column in COLUMNS if column.name != "group" or has_groups],
        has_groups=has_groups,
        sought=sought,
        words=" ".join(wanted.words),
        trouble=trouble,
        live=link(
            request,
            "/episodes/live",
            buffer=name,
            to=to().partition("?")[2],
            since=place_text([row.first_seq for row in newest] or [0]),
        ),
        step_fields=known_fields(fields.comparable),
        is_filtered=query.is_filtered,
        is_indexed=query.is_indexed,
        sort=sort,
        is_first=query.after is None,
        first=to(),
        later=None if listing.after is None else to(after=place_text(listing.after)),
        to=to,
        sort_to=lambda name_of_sort: to(sort=None if name_of_sort == "newest" else name_of_sort),
        rollout_to=lambda row: rollout_address(
            request, name, row, **list_state(shown_filter, sort)
        ),
        task_to=lambda row: to(q=f"task={quoted_value(row.task_id)}"),
        most_characters=MOST_CHARACTERS,
        commands=_commands(site.shown_url, name, query, listing, wanted),
    )


def _with_unknown_sums(connection: Any, buffer: OpenBuffer, listing: RolloutPage) -> RolloutPage:
    """Return a page on which the sum of rewards is NaN if the first or the last one is.

    The stored sum is that of the other rewards.
    """
    own = [row for row in listing.rollouts if row.is_held and row.reward is None]
    ends = [seq for row in own for seq in (row.first_seq, row.last_seq)]
    rewards = rewards_of(connection, buffer, ends)
    unknown = {seq for seq, reward in rewards.items() if reward is not None and reward != reward}
    rollouts = [
        replace(row, return_=math.nan, rollout_reward=math.nan)
        if row.reward is None and not unknown.isdisjoint((row.first_seq, row.last_seq))
        else row
        for row in listing.rollouts
    ]
    return replace(listing, rollouts=rollouts)


def list_state(sought: str, sort: str) -> dict[str, Any]:
    """Return what the address of an episode has of the list that led to it."""
    return {"among": sought or None, "sort": None if sort == "newest" else sort}


def list_query(query: Mapping[str, str], fields: Any) -> RolloutQuery:
    """Return the filter and the order of the list that led to an episode; wrong ones are ignored.

    Args:
        query: The address, with the `list_state`.
        fields: `BufferConfig.fields` of the buffer.
    """
    sort = query.get("sort", "newest")
    try:
        wanted = parse_filter(query.get("among", "").strip(), fields.specs)
        condition = None if wanted.tree is None else check(wanted.tree, fields.comparable)
    except ConditionError:
        wanted, condition = EpisodeFilter(), None
    return RolloutQuery(
        sort if sort in SORTS else "newest",
        filters=wanted.filters,
        words=wanted.words,
        condition=condition,
    )


def rollout_address(request: Request, buffer: str, row: ListedRollout, **query: Any) -> str:
    """Return the address of the page of a rollout, an episode's with the rest of its query."""
    if row.number:
        return episode_link(request, buffer, row.number, **query)
    return buffer_link(request, buffer, "/task", task=row.task_id)


def _query(
    request: Request, sort: str, wanted: EpisodeFilter, comparable: Mapping[str, bool]
) -> RolloutQuery:
    """Return the query of an address."""
    query = RolloutQuery(
        sort=sort,
        filters=wanted.filters,
        words=wanted.words,
        condition=None if wanted.tree is None else check(wanted.tree, comparable),
    )
    forms = ["nn", "0n"] if query.is_indexed else ["nn", "0n", "sn"]
    if query.is_indexed and sort == "spread":
        forms = ["nsnn"]
    elif query.is_indexed and SORTS[sort][0] == "task_id":
        forms = ["sn"]
    return replace(query, after=page_place(request.query_params.get("after"), *forms))


def place_text(after: list[Any]) -> str:
    """Return the start of a page for an address; JSON of Python, which has infinities and NaN."""
    return json.dumps(after, separators=(",", ":"))


def page_place(text: str | None, *forms: str) -> list[Any] | None:
    """Return the start of a page; None, the first page, if the text is not such a place.

    Args:
        text: JSON, from an address.
        *forms: Allowed forms: a letter for each value, `n` for a number, `s` for a text and `0` for
            null.
    """
    try:
        place = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(place, list):
        return None
    form = "".join(
        "0" if value is None
        else "s" if isinstance(value, str) and is_storable_text(value)
        else "n" if isinstance(value, float)
        or (isinstance(value, int) and INT64_MIN <= value <= INT64_MAX)
        else "?"
        for value in place
    )  # fmt: skip
    return place if form in forms else None


def _commands(
    url: str, name: str, query: RolloutQuery, listing: RolloutPage, wanted: EpisodeFilter
) -> list[str]:
    """Return lines that find the same rollouts: the first page, or all of them for a later one."""
    if wanted.tree is not None:
        shown = "row.exp_meta.task_id, row.exp_meta.episode_id, row.seq"
        try:
            return [python_rows(url, name, f"get_all({readable_literal(wanted.as_tree())})", shown)]
        except ConditionError:
            return []
    lines = []
    limit = "" if query.after is not None else f"\nLIMIT {ROWS_A_PAGE}"
    if not listing.rollouts or any(row.number for row in listing.rollouts):
        lines.append(episodes_statement(name, query, listing.looked_at) + limit)
    if not all(row.number for row in listing.rollouts):
        task_id = query.exact("task")
        where = f"WHERE buffer = {quoted(name)}"
        if task_id is not None:
            where += f"\n  AND task_id = {quoted(task_id)}"
        lines.append(f"SELECT * FROM v_tasks\n{where}{limit}")
    return [command_line("sql", url, line) for line in lines]


def episodes_statement(buffer: str, query: RolloutQuery, looked_at: int | None) -> str:
    """Return SQL over the view of episodes, with the filters and the order of a page.

    Args:
        buffer: The buffer.
        query: Filter and order of the page.
        looked_at: `RolloutPage.looked_at` of the page.
    """
    parts = [f"e.buffer = {quoted(buffer)}"]
    source = "v_episodes e"
    if looked_at is not None:
        exact = [each for each in query.filters if (each.name, each.comparison) == ("task", "=")]
        of = " AND ".join([*parts, *(_compared(each) for each in exact[:1])])
        source = (
            f"(\n  SELECT e.* FROM v_episodes e\n  WHERE {of}\n"
            f"  ORDER BY e.started_at DESC LIMIT {looked_at}\n) e"
        )
    if query.group_id is not None:
        parts.append(f"coalesce(e.group_id, e.task_id) = {quoted(query.group_id)}")
    parts += map(_compared, query.filters)
    parts += map(_has_word, query.words)
    column, descends = SORTS[query.sort]
    order = f"e.{_IN_VIEW.get(column, column)}{' DESC' if descends else ''} NULLS LAST"
    groups = ""
    if column == "spread":
        order = "g.spread DESC NULLS LAST, g.group_id DESC, e.episode_reward DESC NULLS LAST"
        if query.is_indexed:
            parts += ["g.spread IS NOT NULL", "e.episode_reward IS NOT NULL"]
    if column == "spread" or any(each.name == "spread" for each in query.filters):
        groups = (
            "\nJOIN buffers b ON b.name = e.buffer\n"
            "LEFT JOIN group_stats g ON g.buffer_id = b.id "
            "AND g.group_id = coalesce(e.group_id, e.task_id)"
        )
    where = "\n  AND ".join(parts)
    return f"SELECT e.* FROM {source}{groups}\nWHERE {where}\nORDER BY {order}"


def _compared(each: RolloutFilter) -> str:
    """Return a filter in SQL."""
    column = f"e.{_IN_VIEW.get(each.column, each.column)}"
    if each.name == "group":
        column = "coalesce(e.group_id, e.task_id)"
    elif each.name == "spread":
        column = "g.spread"
    value = quoted(each.value) if isinstance(each.value, str) else _number(each.value)
    return f"{column} {'<>' if each.comparison == '!=' else each.comparison} {value}"


def _number(value: float) -> str:
    """Return a number as a literal of SQL; an infinite one is beyond all that are stored."""
    return repr(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}9e999"


def _has_word(word: str) -> str:
    """Return the condition of SQL that an id of an episode contains a word."""
    escaped = re.sub(r"([%_\\])", r"\\\1", word.lower())
    escape = "" if escaped == word.lower() else r" ESCAPE '\'"
    tests = [
        f"lower(e.{name}) LIKE {quoted(f'%{escaped}%')}{escape}"
        for name in ("episode_id", "task_id", "group_id", "agent_id")
    ]
    return f"({' OR '.join(tests)})"


async def live(request: Request) -> Response:
    """Return how many rollouts began since a page was shown, as server-sent events."""
    site, name = site_of(request), buffer_of(request)
    since = page_place(request.query_params.get("since"), "n") or [0]
    to = request.query_params.get("to", "")

    def count_newer() -> int:
        with site.pool.connection() as connection:
            buffer = browsed_buffer(connection, site.url, name)
            return n_newer(connection, buffer.info.id, int(since[0]))

    async def part(_: Any) -> str:
        return fragment(
            request, "newer.html", n=await run_in_threadpool(count_newer), most=MOST_NEWER,
            to=link(request, "/episodes", **dict(parse_qsl(to))),
        )  # fmt: skip

    return live_part(request, part)


ROUTES = [Route("/episodes", show), Route("/episodes/live", live)]
