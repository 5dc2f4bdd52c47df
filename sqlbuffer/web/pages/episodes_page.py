"""Page 3: the episodes of a buffer, and the tasks without episodes."""

import json
import math
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.builder import Tree
from sqlbuffer.query.tree import check, condition_of
from sqlbuffer.storage.browsing.rollouts import (
    SORTS,
    ListedRollout,
    RolloutPage,
    RolloutQuery,
    browsed_buffer,
    rollout_page,
)
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.web.pages.buffers_page import buffer_of
from sqlbuffer.web.rendering import (
    buffer_link,
    command_line,
    episode_link,
    link,
    page,
    python_rows,
    quoted,
)
from sqlbuffer.web.site import site_of

TAB = ("/episodes", "Episodes")
ROWS_A_PAGE = 50
STATUSES = ("open", "complete", "aborted", "abandoned")
# The names of the fields of the form that leave rollouts out.
_TEXTS = ("task", "episode", "agent", "status", "version", "least", "most", "condition")
# Names in the view of the columns that pages are sorted by.
_IN_VIEW = {"first_seq": "started_at", "rollout_reward": "episode_reward", "key": "episode_id"}
MOST_CHARACTERS = 20_000
_INT64 = 2**63


def show(request: Request) -> Response:
    """Return the page."""
    site, name = site_of(request), buffer_of(request)
    form = {key: request.query_params.get(key, "").strip() for key in _TEXTS}
    trouble, listing, tree = None, RolloutPage([], None, None), None
    with site.pool.connection() as connection:
        buffer = browsed_buffer(connection, site.url, name)
        try:
            tree = _tree(form["condition"], buffer.info)
            query = _query(request, form, buffer.info, tree)
            listing = rollout_page(connection, buffer.info, query, ROWS_A_PAGE)
        except ConditionError as error:
            query, trouble, tree = RolloutQuery(), str(error), None
    sort = query.sort
    state = {key: value or None for key, value in form.items()}
    ordered = {"sort": None if sort == "newest" else sort}

    def to(**changed: Any) -> str:
        return link(request, "/episodes", buffer=name, **{**state, **ordered, **changed})

    return page(
        request,
        "episodes.html",
        place="/episodes",
        buffer=name,
        listing=listing,
        form=form,
        trouble=trouble,
        is_filtered=query.is_filtered,
        is_indexed=query.is_indexed,
        sort=sort,
        sorts=list(SORTS),
        statuses=STATUSES,
        is_first=query.after is None,
        first=to(),
        later=None if listing.after is None else to(after=place_text(listing.after)),
        to=to,
        rollout_to=lambda row: rollout_address(request, name, row),
        commands=_commands(site.shown_url, name, query, listing, tree),
    )


def rollout_address(request: Request, buffer: str, row: ListedRollout) -> str:
    """Return the address of the page of a rollout."""
    if row.number:
        return episode_link(request, buffer, row.number)
    return buffer_link(request, buffer, "/task", task=row.task_id)


def _tree(text: str, info: BufferInfo) -> Tree | None:
    """Return the condition of a form; raise ConditionError if it is malformed."""
    if len(text) > MOST_CHARACTERS:
        raise ConditionError(f"the condition has more than {MOST_CHARACTERS:,} characters")
    if not text:
        return None
    is_json = text.startswith(("{", "["))
    specs = info.config.fields.specs
    return condition_of(specs, text if is_json else None, None if is_json else [text])


def _query(
    request: Request, form: dict[str, str], info: BufferInfo, tree: Tree | None
) -> RolloutQuery:
    """Return the query of an address; raise ConditionError if a text of the form is wrong."""
    asked = request.query_params.get("sort", "newest")
    sort = asked if asked in SORTS else "newest"
    query = RolloutQuery(
        sort=sort,
        task_id=_key(form["task"]),
        episode_id=_key(form["episode"]),
        agent_id=_key(form["agent"]),
        status=form["status"] if form["status"] in STATUSES else None,
        model_version=_whole(form["version"], "version"),
        least_reward=_real(form["least"], "least reward"),
        most_reward=_real(form["most"], "most reward"),
        condition=None if tree is None else check(tree, info.config.fields.comparable),
    )
    forms = ["nn", "0n"] if query.is_indexed else ["nn", "0n", "sn"]
    if query.is_indexed and sort == "spread":
        forms = ["nsnn"]
    return replace(query, after=page_place(request.query_params.get("after"), *forms))


def _key(text: str) -> str | None:
    if "\0" in text:
        raise ConditionError("no key has the character U+0000")
    return text or None


def _whole(text: str, name: str) -> int | None:
    try:
        value = int(text) if text else None
    except ValueError:
        raise ConditionError(f"the {name} is a whole number, such as 3; got {text!r}") from None
    if value is not None and not -_INT64 <= value < _INT64:
        raise ConditionError(f"the {name} has at most 64 bits; got {text!r}")
    return value


def _real(text: str, name: str) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        raise ConditionError(f"the {name} is a number, such as 0.5; got {text!r}") from None
    if value is not None and math.isnan(value):
        raise ConditionError(f"the {name} is a number, such as 0.5; got {text!r}")
    return value


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
        or (isinstance(value, int) and -_INT64 <= value < _INT64)
        else "?"
        for value in place
    )  # fmt: skip
    return place if form in forms else None


def _commands(
    url: str,
    name: str,
    query: RolloutQuery,
    listing: RolloutPage,
    tree: Tree | None,
) -> list[str]:
    """Return lines that find the same rollouts: the first page, or all of them for a later one."""
    if tree is not None:
        shown = "row.exp_meta.task_id, row.exp_meta.episode_id, row.seq"
        return [python_rows(url, name, f"get_all({tree!r})", shown)]
    lines = []
    limit = "" if query.after is not None else f" LIMIT {ROWS_A_PAGE}"
    if not listing.rollouts or any(row.number for row in listing.rollouts):
        lines.append(episodes_statement(name, query, listing.looked_at) + limit)
    if not all(row.number for row in listing.rollouts):
        where = f"buffer = {quoted(name)}"
        if query.task_id is not None:
            where += f" AND task_id = {quoted(query.task_id)}"
        lines.append(f"SELECT * FROM v_tasks WHERE {where}{limit}")
    return [command_line("sql", url, line) for line in lines]


def episodes_statement(buffer: str, query: RolloutQuery, looked_at: int | None) -> str:
    """Return SQL over the view of episodes, with the filters and the order of a page.

    Args:
        buffer: The buffer.
        query: Filter and order of the page.
        looked_at: `RolloutPage.looked_at` of the page.
    """
    equal = {
        "buffer": buffer,
        "task_id": query.task_id,
        "episode_id": query.episode_id,
        "agent_id": query.agent_id,
        "status": query.status,
    }
    parts = [f"e.{name} = {quoted(value)}" for name, value in equal.items() if value is not None]
    source = "v_episodes"
    if looked_at is not None:
        of = " AND ".join(parts[: 1 if query.task_id is None else 2])
        newest = f"WHERE {of} ORDER BY e.started_at DESC LIMIT {looked_at}"
        source = f"(SELECT e.* FROM v_episodes e {newest})"
    if query.group_id is not None:
        parts.append(f"coalesce(e.group_id, e.task_id) = {quoted(query.group_id)}")
    if query.model_version is not None:
        parts.append(f"e.model_version = {query.model_version}")
    if query.least_reward is not None:
        parts.append(f"e.episode_reward >= {query.least_reward!r}")
    if query.most_reward is not None:
        parts.append(f"e.episode_reward <= {query.most_reward!r}")
    column, descends = SORTS[query.sort]
    order = f"e.{_IN_VIEW.get(column, column)}{' DESC' if descends else ''} NULLS LAST"
    groups = ""
    if column == "spread":
        order = "g.spread DESC NULLS LAST, g.group_id DESC, e.episode_reward DESC NULLS LAST"
        groups = (
            " JOIN buffers b ON b.name = e.buffer"
            " LEFT JOIN group_stats g"
            " ON g.buffer_id = b.id AND g.group_id = coalesce(e.group_id, e.task_id)"
        )
        if query.is_indexed:
            parts += ["g.spread IS NOT NULL", "e.episode_reward IS NOT NULL"]
    return f"SELECT e.* FROM {source} e{groups} WHERE {' AND '.join(parts)} ORDER BY {order}"


ROUTES = [Route("/episodes", show)]
