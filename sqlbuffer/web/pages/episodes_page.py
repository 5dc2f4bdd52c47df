"""Page 3: the episodes of a buffer, and the tasks without episodes."""

import math
from dataclasses import replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.errors import ConditionError
from sqlbuffer.query.builder import Tree
from sqlbuffer.query.tree_checks import check
from sqlbuffer.query.typed_conditions import condition_of
from sqlbuffer.storage.browsing.found_rollouts import browsed_buffer
from sqlbuffer.storage.browsing.rollout_pages import rollout_page
from sqlbuffer.storage.browsing.rollout_query import (
    SORTS,
    ListedRollout,
    RolloutPage,
    RolloutQuery,
)
from sqlbuffer.storage.buffers.buffer_info import BufferInfo
from sqlbuffer.web.pages.buffer_page import buffer_of
from sqlbuffer.web.rendering import link, page
from sqlbuffer.web.rollout_links import buffer_link, episode_link
from sqlbuffer.web.shell_words import command_line, python_rows
from sqlbuffer.web.site import site_of

TAB = ("/episodes", "Episodes")
ROWS_A_PAGE = 50
STATUSES = ("open", "complete", "aborted")
# The names of the fields of the form that leave rollouts out.
_TEXTS = ("task", "episode", "agent", "status", "version", "least", "most", "condition")
_ORDERS = {
    "newest": "e.started_at DESC",
    "oldest": "e.started_at",
    "best": "e.episode_return DESC",
    "worst": "e.episode_return",
    "longest": "e.length DESC",
    "shortest": "e.length",
    "spread": "g.spread DESC, e.task_id DESC, e.episode_return DESC",
}
_MOST_CHARACTERS = 20_000
_INT64 = 2**63


def show(request: Request) -> Response:
    """Return the page."""
    site, name = site_of(request), buffer_of(request)
    given = {key: request.query_params.get(key, "").strip() for key in _TEXTS}
    trouble, found, tree = None, RolloutPage([], None, None), None
    with site.pool.connection() as connection:
        buffer = browsed_buffer(connection, site.url, name)
        try:
            tree = _tree(given["condition"], buffer.info)
            query = _query(request, given, buffer.info, tree)
            found = rollout_page(connection, buffer.info, query, ROWS_A_PAGE)
        except ConditionError as error:
            query, trouble, tree = RolloutQuery(), str(error), None
    sort = query.sort
    state = {key: value or None for key, value in given.items()}
    ordered = {"sort": None if sort == "newest" else sort}

    def to(**changed: Any) -> str:
        return link(request, "/episodes", buffer=name, **{**state, **ordered, **changed})

    after = None if found.after is None else orjson.dumps(found.after).decode()
    return page(
        request,
        "episodes.html",
        place="/episodes",
        buffer=name,
        found=found,
        given=given,
        trouble=trouble,
        is_filtered=query.is_filtered,
        sort=sort,
        sorts=list(SORTS),
        statuses=STATUSES,
        is_first=query.after is None,
        first=to(),
        later=None if after is None else to(after=after),
        to=to,
        rollout_to=lambda row: rollout_address(request, name, row),
        commands=_commands(site.shown_url, name, given, query, found, tree),
    )


def rollout_address(request: Request, buffer: str, row: ListedRollout) -> str:
    """Return the address of the page of a rollout."""
    if row.number:
        return episode_link(request, buffer, row.number)
    return buffer_link(request, buffer, "/task", task=row.task_id)


def _tree(text: str, info: BufferInfo) -> Tree | None:
    """Return the condition that a form names.

    Raises:
        ConditionError: It is malformed.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConditionError(f"the condition has more than {_MOST_CHARACTERS:,} characters")
    if not text:
        return None
    is_json = text.startswith(("{", "["))
    specs = info.config.fields.specs
    return condition_of(specs, text if is_json else None, None if is_json else [text])


def _query(
    request: Request, given: dict[str, str], info: BufferInfo, tree: Tree | None
) -> RolloutQuery:
    """Return what an address asks for.

    Raises:
        ConditionError: A text of the form is wrong; the message says which.
    """
    asked = request.query_params.get("sort", "newest")
    sort = asked if asked in SORTS else "newest"
    found = RolloutQuery(
        sort=sort,
        task_id=_key(given["task"]),
        episode_id=_key(given["episode"]),
        agent_id=_key(given["agent"]),
        status=given["status"] if given["status"] in STATUSES else None,
        model_version=_whole(given["version"], "version"),
        least_return=_real(given["least"], "least return"),
        most_return=_real(given["most"], "most return"),
        condition=None if tree is None else check(tree, info.config.fields.comparable),
    )
    form = "nsnn" if sort == "spread" and not found.is_filtered else "nn"
    return replace(found, after=page_place(request.query_params.get("after"), form))


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


def page_place(text: str | None, *forms: str) -> list[Any] | None:
    """Return the start of a page; None, the first page, if the text is not such a place.

    Args:
        text: JSON, from an address.
        *forms: Allowed forms: a letter for each value, `n` for a number and `s` for a text.
    """
    try:
        found = orjson.loads(text) if text else None
    except ValueError:
        return None
    if not isinstance(found, list):
        return None
    form = "".join(
        "s" if isinstance(value, str) and "\0" not in value
        else "n" if isinstance(value, (int, float)) and abs(value) < _INT64
        else "?"
        for value in found
    )  # fmt: skip
    return found if form in forms else None


def _commands(
    url: str,
    name: str,
    given: dict[str, str],
    query: RolloutQuery,
    found: RolloutPage,
    tree: Tree | None,
) -> list[str]:
    """Return lines that find the same rollouts: the first page, or all of them for a later one."""
    if tree is not None:
        shown = "row.exp_meta.task_id, row.exp_meta.episode_id, row.seq"
        return [python_rows(url, name, f"get_all({tree!r})", shown)]
    lines = []
    limit = "" if query.after is not None else f" LIMIT {ROWS_A_PAGE}"
    if not found.rollouts or any(row.number for row in found.rollouts):
        lines.append(_of_episodes(name, given, query) + limit)
    if not all(row.number for row in found.rollouts):
        where = f"buffer = {quoted(name)}"
        if query.task_id is not None:
            where += f" AND task_id = {quoted(query.task_id)}"
        lines.append(f"SELECT * FROM v_tasks WHERE {where}{limit}")
    return [command_line("sql", url, line) for line in lines]


def _of_episodes(name: str, given: dict[str, str], query: RolloutQuery) -> str:
    """Return SQL over the view of episodes, with the filters and the order of the page."""
    columns = {"task": "task_id", "episode": "episode_id", "agent": "agent_id", "status": "status"}
    wanted = [("buffer", name), *((own, given[key]) for key, own in columns.items() if given[key])]
    parts = [f"e.{column} = {quoted(value)}" for column, value in wanted]
    if query.model_version is not None:
        parts.append(f"e.model_version = {query.model_version}")
    if query.least_return is not None:
        parts.append(f"e.episode_return >= {query.least_return!r}")
    if query.most_return is not None:
        parts.append(f"e.episode_return <= {query.most_return!r}")
    groups, column = "", _ORDERS[query.sort].split()[0]
    if query.sort in ("best", "worst", "longest", "shortest"):
        parts.append(f"{column} IS NOT NULL")
    if query.sort == "spread":
        spread = "max(episode_return) - min(episode_return) AS spread"
        groups = (
            f" JOIN (SELECT task_id, {spread} FROM v_episodes WHERE buffer = {quoted(name)} "
            "GROUP BY task_id) g ON g.task_id = e.task_id"
        )
    return (
        f"SELECT e.* FROM v_episodes e{groups} WHERE {' AND '.join(parts)} "
        f"ORDER BY {_ORDERS[query.sort]}"
    )


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


ROUTES = [Route("/episodes", show)]
