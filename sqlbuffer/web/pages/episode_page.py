"""The steps of an episode, or of a task without episodes, with a search; and parts of them.

Whole texts, values, images and differences have addresses of their own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sqlbuffer.llm.tokens import LLM_FIELDS
from sqlbuffer.steps import PAYLOADS
from sqlbuffer.storage.browsing.rollouts import (
    ListedRollout,
    Relatives,
    Rollout,
    browsed_buffer,
    find_episode,
    neighbours,
    relatives_of,
)
from sqlbuffer.storage.browsing.steps import (
    KeyPage,
    StepKey,
    draws_of,
    final_observation,
    key_page,
    notes_of,
    read_steps,
    spaced_keys,
)
from sqlbuffer.web.filter_bar import quoted_value
from sqlbuffer.web.jumps import KINDS, has_failed, marks_of, marks_on
from sqlbuffer.web.pages.episodes_page import list_query, rollout_address
from sqlbuffer.web.rendering import (
    buffer_link,
    buffer_of,
    curve_commands,
    difference_link,
    draw_commands,
    encoded,
    episode_link,
    link,
    page,
    rollout_commands,
    rollout_link,
    token_commands,
)
from sqlbuffer.web.searching import found_ahead
from sqlbuffer.web.site import site_of
from sqlbuffer.web.step_arrays import (
    MOST_SIDE,
    MOST_STEPS_READ,
    THUMBNAIL_SIDE,
    array_of,
    curves_of,
    image_fields,
    png_of,
    root_of,
    value_at,
    value_text,
)
from sqlbuffer.web.step_values import bars, numbers_text
from sqlbuffer.web.tokens import COLORS, has_tokens, tokens_page
from sqlbuffer.web.transcript import (
    MOST_TURNS,
    Said,
    StepsPage,
    difference,
    first_line,
    pieces,
    printable,
    said_in_step,
    steps_page,
    whole_conversation,
)

STEPS_A_PAGE = 200
CURVE_BYTES = 64 * 2**20
VIEWS = {"steps": "Steps", "tokens": "Tokens", "curves": "Curves", "draws": "Draws"}


@dataclass(frozen=True)
class PagePlace:
    """The part of a rollout that an address requests.

    Attributes:
        at: First step of the page; None: the first of the rollout.
        before: Step that the page ends before.
        is_last: True for the last page.
        first_turn: Number of the first turn to show of the first step.
        sought: Text to search for.
        view: View of the steps.
        token: Number of a sequence of tokens, and place in it of the first token to show.
        color: What the color of tokens shows.
        is_table: Tokens are shown as a table.
        jump: Kind of place to go to; see `jumps.KINDS`.
        has_numbers: Small arrays are shown by their numbers, not by bars.
        among: Filter of the list of episodes that led here.
        sort: Order of that list; None: newest first.
    """

    at: StepKey | None
    before: StepKey | None
    is_last: bool
    first_turn: int
    sought: str
    view: str
    token: tuple[int, int] = (0, 0)
    color: str = "logprob"
    is_table: bool = False
    jump: str | None = None
    has_numbers: bool = False
    among: str | None = None
    sort: str | None = None

    @classmethod
    def of(cls, request: Request) -> "PagePlace":
        """Return the place that an address names; wrong parts are ignored."""
        query = request.query_params
        view, color = query.get("view", "steps"), query.get("color", "logprob")
        token = _key(query.get("token", "")) or StepKey(0, 0)
        return cls(
            _key(query.get("at", "")),
            _key(query.get("before", "")),
            "last" in query,
            _number(query.get("turn", "")) or 0,
            query.get("q", "").strip()[:200],
            view if view in VIEWS else "steps",
            (max(token.position, 0), max(token.seq, 0)),
            color if color in COLORS else "logprob",
            "table" in query,
            query.get("jump") if query.get("jump") in KINDS else None,
            query.get("values") == "numbers",
            query.get("among"),
            query.get("sort"),
        )

    @property
    def of_list(self) -> dict[str, Any]:
        """The list that led to the rollout."""
        return {"among": self.among, "sort": self.sort}

    @property
    def state(self) -> dict[str, Any]:
        """What links to other steps keep of an address."""
        kept: dict[str, Any] = {"view": None if self.view == "steps" else self.view}
        kept["q"] = self.sought or None
        kept |= self.of_list
        kept["values"] = "numbers" if self.has_numbers else None
        if self.view == "tokens":
            kept["color"] = None if self.color == "logprob" else self.color
            kept["table"] = 1 if self.is_table else None
        return kept

    def keys(self, connection: Any, buffer: Any, rollout: Rollout) -> KeyPage:
        """Return the steps of the page."""
        if self.is_last or self.before is not None:
            return key_page(
                connection, buffer, rollout, STEPS_A_PAGE, before=self.before, is_last=self.is_last
            )
        after = None if self.at is None else _before(self.at)
        return key_page(connection, buffer, rollout, STEPS_A_PAGE, after=after)


def show_episode(request: Request) -> Response:
    """Return the page of an episode."""
    return _show(request, request.path_params["number"])


def show_task(request: Request) -> Response:
    """Return the page of the steps of a task that belong to no episode."""
    return _show(request, None)


def _show(request: Request, number: int | None) -> Response:
    site, name, place = site_of(request), buffer_of(request), PagePlace.of(request)
    with site.pool.connection(in_order=True) as connection:
        buffer = browsed_buffer(connection, site.url, name)
        rollout = _rollout(request, connection, buffer, number)
        views = {key: words for key, words in VIEWS.items() if _has_view(buffer, key)}
        if place.view not in views:
            place = replace(place, view="steps")
        if "seek" in request.query_params and (place.sought or place.jump):
            return _sought(request, connection, buffer, rollout, place)
        relatives = Relatives()
        around: tuple[ListedRollout | None, ListedRollout | None] = (None, None)
        if rollout.number is not None:
            query = list_query(request.query_params, buffer.info.config.fields)
            task_id, of = rollout.task_id, rollout.number
            around = neighbours(connection, buffer.info, query, task_id, of)
            relatives = relatives_of(connection, buffer.info.id, rollout.number)
        keys = place.keys(connection, buffer, rollout)
        context = _context(request, connection, buffer, rollout, place, keys)
    sum_of_others = rollout.return_
    if context["n_not_numbers"]:
        # The stored sum is that of the other rewards.
        rollout = replace(rollout, return_=math.nan)
    return page(
        request,
        "episode.html",
        place="episode",
        buffer=name,
        rollout=rollout,
        sum_of_others=sum_of_others,
        relatives=relatives,
        around=around,
        around_to=lambda row: rollout_address(
            request, name, row, view=place.state["view"], **place.of_list
        ),
        group_to=link(request, "/group", buffer=name, group=rollout.group_id or rollout.task_id),
        task_to=link(request, "/episodes", buffer=name, q=f"task={quoted_value(rollout.task_id)}"),
        list_to=link(request, "/episodes", buffer=name, q=place.among, sort=place.sort),
        episode_to=lambda number: episode_link(request, name, number),
        at=place,
        views=views,
        keep=place.state,
        commands=_commands(site.shown_url, name, rollout, place, keys),
        to=lambda **query: rollout_link(request, name, rollout, **query),
        of_buffer=lambda path, **query: buffer_link(request, name, path, **query),
        version=buffer.info.id,
        pieces=lambda text: pieces(text, place.sought),
        bars=bars,
        numbers_text=numbers_text,
        printable=printable,
        first_line=first_line,
        has_failed=has_failed,
        missed=_number(request.query_params.get("missed", "")),
        reached=request.query_params.get("reached"),
        **context,
    )


def _has_view(buffer: Any, view: str) -> bool:
    """Return True if the steps of a buffer have a view."""
    return view != "tokens" or has_tokens(buffer.layout.specs)


def _commands(url: str, name: str, rollout: Rollout, place: PagePlace, keys: KeyPage) -> list[str]:
    """Return lines that show a view in a shell or in Python."""
    if place.view == "curves":
        return curve_commands(url, name, rollout)
    if place.view == "draws":
        return draw_commands(url, name, rollout, [key.seq for key in keys.keys])
    if place.view == "tokens":
        return token_commands(url, name, rollout)
    return rollout_commands(url, name, rollout)


def _rollout(request: Request, connection: Any, buffer: Any, number: int | None) -> Rollout:
    if number is not None:
        rollout = find_episode(connection, buffer, number)
        if rollout is None:
            raise HTTPException(404, f"Buffer {buffer.info.name!r} has no episode {number}.")
        return rollout
    query = request.query_params
    if "task" not in query:
        raise HTTPException(400, "Name the task: ?task=")
    return Rollout(query["task"], agent_id=query.get("agent"))


def _context(
    request: Request,
    connection: Any,
    buffer: Any,
    rollout: Rollout,
    place: PagePlace,
    keys: KeyPage,
) -> dict[str, Any]:
    """Return the template's values in addition to the rollout."""
    first = keys.keys[0] if keys.keys else None
    earlier = None
    if first is not None:
        previous = key_page(connection, buffer, rollout, 1, before=first).keys
        earlier = previous[0] if previous else None
    context: dict[str, Any] = {
        "steps": StepsPage([], [], False, [], False), "curves": [], "draws": None,
        "n_steps": None, "n_read": 0, "earlier": None, "later": None,
        "has_last": True, "marks": {}, "kinds": KINDS, "at_text": None,
        "n_not_numbers": 0,
    }  # fmt: skip
    if place.view == "curves":
        return context | _curves(connection, buffer, rollout)
    if first is None:
        # Behind the end, or before the first step that is left.
        context["earlier"] = None if place.at is None else {"last": 1}
    elif place.first_turn:
        turn = max(place.first_turn - MOST_TURNS, 0) or None
        context["earlier"] = {"at": _text(first), "turn": turn}
    elif earlier is not None:
        context["earlier"] = {"before": _text(first)}
    if place.view == "draws":
        context["draws"] = draws_of(connection, buffer, [key.seq for key in keys.keys])
        context["positions"] = {key.seq: key.position for key in keys.keys}
        context["later"] = _later(keys, len(keys.keys), place)
        return context
    if place.view == "tokens":
        return context | _tokens(connection, buffer, place, keys, context["earlier"])
    images = image_fields(buffer.layout.specs)
    steps, n_taken = read_steps(connection, buffer, keys.keys, without=images)
    before = None if earlier is None else _row(connection, buffer, earlier, images)
    notes = notes_of(connection, buffer, [step.key.seq for step in steps])
    later = _later(keys, n_taken, place)
    final = final_observation(connection, buffer, rollout.number) if later is None else None
    shown = steps_page(
        steps, notes, sought=place.sought, before=before, first_turn=place.first_turn,
        images=images, final=final, spaces=buffer.info.config.fields.spaces,
    )  # fmt: skip
    last = shown.steps[-1] if shown.steps else None
    if last is not None and last.next_turn is not None:
        position = _text(StepKey(last.position, last.seq))
        later = {"at": position, "turn": last.next_turn}
    elif last is not None and shown.is_cut:
        later = {"at": _text(steps[len(shown.steps)].key)}
    # The page has the last step already, which continues after it.
    is_last = last is not None and keys.keys[-1].seq == last.seq and not keys.has_more
    return context | {
        "steps": shown, "later": later, "has_last": not is_last, "marks": marks_on(shown),
        "at_text": None if earlier is None or first is None else _text(first),
        "n_not_numbers": _n_not_numbers([step.row for step in steps]),
    }  # fmt: skip


def _n_not_numbers(rows: Sequence[Any]) -> int:
    """Return how many rewards are NaN."""
    rewards = [row.exp_data.reward_t for row in rows if row is not None]
    return sum(reward is not None and math.isnan(reward) for reward in rewards)


def _later(keys: KeyPage, n_shown: int, place: PagePlace) -> dict[str, Any] | None:
    """Return where the next page begins; None: nothing follows."""
    if n_shown < len(keys.keys):
        return {"at": _text(keys.keys[n_shown])}
    goes_on = keys.has_more if place.before is None and not place.is_last else not place.is_last
    return {"at": _text(_behind(keys.keys[-1]))} if keys.keys and goes_on else None


def _curves(connection: Any, buffer: Any, rollout: Rollout) -> dict[str, Any]:
    images = image_fields(buffer.layout.specs)
    keys, n_steps = spaced_keys(connection, buffer, rollout, MOST_STEPS_READ)
    without = [*images, "messages"]
    steps, _ = read_steps(connection, buffer, keys, without=without, most_bytes=CURVE_BYTES)
    rows = [(step.key.position, step.row) for step in steps if step.row is not None]
    n_not_numbers = _n_not_numbers([row for _, row in rows])
    return {
        "curves": curves_of(rows), "n_steps": n_steps, "n_read": len(rows),
        "n_not_numbers": n_not_numbers,
    }  # fmt: skip


def _tokens(
    connection: Any, buffer: Any, place: PagePlace, keys: KeyPage, earlier: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the values of the view of tokens; its pages may end within a step."""
    needed = (*LLM_FIELDS, "extra")
    without = [name for name in (*buffer.layout.specs, *PAYLOADS) if name not in needed]
    steps, n_taken = read_steps(connection, buffer, keys.keys, without=without)
    read = [(step.key, step.row) for step in steps if step.row is not None]
    shown = tokens_page([row for _, row in read], place.color, place.token)
    at = _text(keys.keys[0]) if keys.keys else None
    if shown.earlier is not None:
        earlier = {"at": at, "token": _text(StepKey(*shown.earlier))}
    later = _later(keys, n_taken, place)
    has_last = later is not None
    if shown.later is not None:
        later = {"at": at, "token": _text(StepKey(*shown.later))}
    return {
        "tokens": shown, "earlier": earlier, "later": later, "has_last": has_last,
        "colors": COLORS, "color": place.color, "is_table": place.is_table, "at_text": at,
        "token_text": _text(StepKey(*place.token)) if any(place.token) else None,
        "keys": [_text(key) for key, _ in read], "positions": [key.position for key, _ in read],
    }  # fmt: skip


def _row(connection: Any, buffer: Any, key: StepKey, images: Any) -> Any:
    steps, _ = read_steps(connection, buffer, [key], without=images)
    return steps[0].row if steps else None


def _sought(
    request: Request, connection: Any, buffer: Any, rollout: Rollout, place: PagePlace
) -> Response:
    """Send the browser to the next step that has what is searched for."""
    after = None if place.at is None else _before(place.at)
    kind, sought = place.jump, place.sought

    def find(step: Any, turns: Any) -> str | None:
        if kind is not None:
            return next(iter(marks_of(kind, step.key.seq, step.row, turns)), None)
        return next((turn.anchor for turn in turns if turn.is_match), None)

    result = found_ahead(connection, buffer, rollout, after, find, sought)
    query: dict[str, Any] = {"q": sought or None, "jump": kind, **place.of_list}
    if result.key is not None:
        query["at"] = _text(result.key)
    else:
        query |= {"at": None if place.at is None else _text(place.at), "missed": result.n_searched}
        if result.reached is not None:
            query["reached"] = _text(_behind(result.reached))
    to = rollout_link(request, buffer_of(request), rollout, **query)
    anchor = f"#{result.anchor}" if result.anchor else ""
    return RedirectResponse(to + anchor, 303)


def _text(key: StepKey) -> str:
    return f"{key.position}.{key.seq}"


def _key(text: str) -> StepKey | None:
    """Return the step of an address: `POSITION.SEQ`, or a position alone."""
    position, _, seq = text.partition(".")
    numbers = _number(position), _number(seq or "0")
    return None if None in numbers else StepKey(*numbers)  # type: ignore[arg-type]


def _number(text: str) -> int | None:
    try:
        number = int(text[:20])
    except ValueError:
        return None
    return number if -(2**63) < number < 2**63 - 1 else None


def _before(key: StepKey) -> StepKey:
    return StepKey(key.position, key.seq - 1)


def _behind(key: StepKey) -> StepKey:
    return StepKey(key.position, key.seq + 1)


# For a step that is stored once, under a number that is never reused.
_FOR_EVER = "private, max-age=31536000, immutable"
MOST_COMPARED_STEPS, MOST_COMPARED_BYTES = 1_000, 16 * 2**20


def text(request: Request) -> Response:
    """Return a whole text of a step: of the message at `place`, or of one of its calls."""
    query = request.query_params
    row = _part_row(request)
    said = said_in_step(row.exp_data.messages, row.exp_data.actions, row.exp_data.state)
    place, part = query.get("place", ""), query.get("part", "text")
    if not place.isdecimal() or int(place) >= len(said):
        raise HTTPException(404, "The step has no such message.")
    whole = _part(said[int(place)], part)
    if whole is None:
        raise HTTPException(404, "The message has no such part.")
    return _plain(whole)


def value(request: Request) -> Response:
    """Return a value of a step as text, its numbers in full."""
    return _plain(value_text(_value(request)))


def image(request: Request) -> Response:
    """Return a value of a step as PNG."""
    return _image(request, _value(request), _FOR_EVER)


def final_value(request: Request) -> Response:
    """Return a value of a final observation as text."""
    return _plain(value_text(_final_value(request)))


def final_image(request: Request) -> Response:
    """Return a value of a final observation as PNG; a later one may take its place."""
    return _image(request, _final_value(request), "no-store")


def _final_value(request: Request) -> Any:
    site, number = site_of(request), request.path_params["number"]
    with site.pool.connection(in_order=True) as connection:
        buffer = browsed_buffer(connection, site.url, buffer_of(request))
        is_number = 0 < number < 2**63
        final = final_observation(connection, buffer, number) if is_number else None
    name = root_of(request.query_params.get("value", ""))
    if final is None or name not in final.values:
        raise HTTPException(404, "The episode has no such final observation.")
    return final.values[name]


def _image(request: Request, value: Any, cache: str) -> Response:
    array = array_of(value)
    side = THUMBNAIL_SIDE if "small" in request.query_params else MOST_SIDE
    png = None if array is None else png_of(array, side)
    if png is None:
        raise HTTPException(404, "The value is not an image: uint8, H x W or H x W x C.")
    return Response(png, media_type="image/png", headers={"Cache-Control": cache})


def show_difference(request: Request) -> Response:
    """Return the page of the difference between two conversations."""
    site, name = site_of(request), buffer_of(request)
    view = "sides" if request.query_params.get("view") == "sides" else "lines"
    sides = []
    with site.pool.connection(in_order=True) as connection:
        buffer = browsed_buffer(connection, site.url, name)
        for side in ("a", "b"):
            number = request.query_params.get(side, "")
            rollout = find_episode(
                connection, buffer, int(number[:20] if number.isdecimal() else 0)
            )
            if rollout is None:
                raise HTTPException(404, _no_side(name, side, number))
            sides.append((rollout, *_conversation(connection, buffer, rollout)))
    (a, left, a_cut), (b, right, b_cut) = sides
    differences = difference(left, right)
    return page(
        request,
        "difference.html",
        place="episode",
        buffer=name,
        sides=[a, b],
        difference=differences,
        is_cut=a_cut or b_cut or differences.is_cut,
        to=lambda rollout: episode_link(request, name, rollout.number),
        view=view,
        views={"lines": "Line by line", "sides": "Side by side"},
        view_to=lambda name_of_view: _sides_link(request, a, b, name_of_view),
        other_way=_sides_link(request, b, a, view),
        commands=[
            line for compared in (a, b) for line in rollout_commands(site.shown_url, name, compared)
        ],
        printable=printable,
    )


def _no_side(buffer: str, side: str, number: str) -> str:
    """Return why there is no difference to show."""
    if not number:
        return f"The address names one episode: a difference needs {side}=, the number of another."
    return f"Buffer {buffer!r} has no episode {number!r}, which {side}= names."


def _sides_link(request: Request, a: Rollout, b: Rollout, view: str) -> str:
    query = {"view": None if view == "lines" else view}
    return difference_link(request, buffer_of(request), a.number or 0, b.number or 0, **query)


def _conversation(connection: Any, buffer: Any, rollout: Rollout) -> tuple[list[Said], bool]:
    """Return the messages of a rollout, and whether there are more after them."""
    keys = key_page(connection, buffer, rollout, MOST_COMPARED_STEPS)
    steps, n_taken = read_steps(connection, buffer, keys.keys, most_bytes=MOST_COMPARED_BYTES)
    turns = whole_conversation(
        (step.key.seq, data.messages, data.actions, data.state)
        for step in steps
        if step.row is not None
        for data in (step.row.exp_data,)
    )
    return [turn.said for turn in turns], keys.has_more or n_taken < len(keys.keys)


def _part_row(request: Request, root: str | None = None) -> Any:
    """Return the step of an address; with a root, at least that field or payload of it."""
    site, seq = site_of(request), request.path_params["seq"]
    with site.pool.connection(in_order=True) as connection:
        buffer = browsed_buffer(connection, site.url, buffer_of(request))
        low = buffer.window_in(connection).low
        keys = [StepKey(0, seq)] if low < seq < 2**63 else []
        names = (*buffer.layout.specs, *PAYLOADS)
        others = () if root is None else [name for name in names if name != root]
        steps, _ = read_steps(connection, buffer, keys, without=others)
        if others and steps and steps[0].row is None:
            # A part of deeply nested JSON cannot be taken out of it.
            steps, _ = read_steps(connection, buffer, keys)
    if not steps:
        raise HTTPException(404, f"The buffer has no step {seq}; it may have been evicted.")
    if steps[0].row is None:
        raise HTTPException(404, f"The step cannot be rebuilt. {steps[0].trouble}")
    return steps[0].row


def _value(request: Request) -> Any:
    path = request.query_params.get("value", "")
    try:
        return value_at(_part_row(request, root_of(path)), path)
    except KeyError:
        raise HTTPException(404, "The step has no such value.") from None


def _part(said: Said, part: str) -> str | None:
    if part in ("text", "reasoning"):
        return str(getattr(said, part))
    call = part.removeprefix("call")
    return (
        said.calls[int(call)].arguments
        if call.isdecimal() and int(call) < len(said.calls)
        else None
    )


def _plain(text: str) -> Response:
    # A browser shows it as text, for any content: every answer has `nosniff`.
    return Response(encoded(text), media_type="text/plain; charset=utf-8")


ROUTES = [
    Route("/buffers/{name:path}/episodes/{number:int}", show_episode),
    Route("/buffers/{name:path}/episodes/{number:int}/final/value", final_value),
    Route("/buffers/{name:path}/episodes/{number:int}/final/image.png", final_image),
    Route("/buffers/{name:path}/task", show_task),
    Route("/buffers/{name:path}/steps/{seq:int}/text", text),
    Route("/buffers/{name:path}/steps/{seq:int}/value", value),
    Route("/buffers/{name:path}/steps/{seq:int}/image.png", image),
    Route("/buffers/{name:path}/difference", show_difference),
]
