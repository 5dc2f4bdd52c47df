"""Parts of steps at their own addresses: whole texts, values, images; and differences."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.query.selected_fields import PAYLOADS
from sqlbuffer.storage.browsing.rollouts import Rollout, browsed_buffer, find_episode
from sqlbuffer.storage.browsing.steps import StepKey, key_page, read_steps
from sqlbuffer.web.rendering import encoded, page
from sqlbuffer.web.rollout_links import (
    buffer_of,
    difference_link,
    episode_link,
    rollout_commands,
)
from sqlbuffer.web.site import site_of
from sqlbuffer.web.step_arrays import (
    MOST_SIDE,
    THUMBNAIL_SIDE,
    array_of,
    png_of,
    root_of,
    value_at,
    value_text,
)
from sqlbuffer.web.transcript.turns import Said, printable, said_in_step, whole_conversation
from sqlbuffer.web.transcript.views import difference

# For a step that is stored once, under a number that is never reused.
_FOR_EVER = "private, max-age=31536000, immutable"
MOST_COMPARED_STEPS, MOST_COMPARED_BYTES = 1_000, 16 * 2**20


def text(request: Request) -> Response:
    """Return a whole text of a step: of the message at `place`, or of one of its calls."""
    query = request.query_params
    row = _row(request)
    said = said_in_step(row.exp_data.messages, row.exp_data.actions, row.exp_data.state)
    place, part = query.get("place", ""), query.get("part", "text")
    if not place.isdecimal() or int(place) >= len(said):
        raise HTTPException(404, "The step has no such message.")
    found = _part(said[int(place)], part)
    if found is None:
        raise HTTPException(404, "The message has no such part.")
    return _plain(found)


def value(request: Request) -> Response:
    """Return a value of a step as text, its numbers in full."""
    return _plain(value_text(_value(request)))


def image(request: Request) -> Response:
    """Return a value of a step as PNG."""
    array = array_of(_value(request))
    side = THUMBNAIL_SIDE if "small" in request.query_params else MOST_SIDE
    png = None if array is None else png_of(array, side)
    if png is None:
        raise HTTPException(404, "The value is not an image: uint8, H x W or H x W x C.")
    return Response(png, media_type="image/png", headers={"Cache-Control": _FOR_EVER})


def show_difference(request: Request) -> Response:
    """Return the page of the difference between two conversations."""
    site, name = site_of(request), buffer_of(request)
    sides = []
    with site.pool.connection(in_order=True) as connection:
        buffer = browsed_buffer(connection, site.url, name)
        for side in ("a", "b"):
            number = request.query_params.get(side, "")
            rollout = find_episode(
                connection, buffer, int(number[:20] if number.isdecimal() else 0)
            )
            if rollout is None:
                raise HTTPException(404, f"Buffer {name!r} has no episode {side}={number!r}.")
            sides.append((rollout, *_conversation(connection, buffer, rollout)))
    (a, left, a_cut), (b, right, b_cut) = sides
    found = difference(left, right)
    return page(
        request,
        "difference.html",
        place="episode",
        buffer=name,
        sides=[a, b],
        difference=found,
        is_cut=a_cut or b_cut or found.is_cut,
        to=lambda rollout: episode_link(request, name, rollout.number),
        other_way=difference_link(request, name, b.number or 0, a.number or 0),
        commands=[line for each in (a, b) for line in rollout_commands(site.shown_url, name, each)],
        printable=printable,
    )


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


def _row(request: Request, root: str | None = None) -> Any:
    """Return the step of an address; with a root, at least that field or payload of it."""
    site, seq = site_of(request), request.path_params["seq"]
    with site.pool.connection(in_order=True) as connection:
        buffer = browsed_buffer(connection, site.url, buffer_of(request))
        low = buffer.window_in(connection).low
        keys = [StepKey(0, seq)] if low < seq < 2**63 else []
        names = (*buffer.layout.specs, *PAYLOADS)
        others = () if root is None else [name for name in names if name != root]
        found, _ = read_steps(connection, buffer, keys, without=others)
        if others and found and found[0].row is None:
            # A part of deeply nested JSON cannot be taken out of it.
            found, _ = read_steps(connection, buffer, keys)
    if not found:
        raise HTTPException(404, f"The buffer has no step {seq}; it may have been evicted.")
    if found[0].row is None:
        raise HTTPException(404, f"The step cannot be rebuilt. {found[0].trouble}")
    return found[0].row


def _value(request: Request) -> Any:
    path = request.query_params.get("value", "")
    try:
        return value_at(_row(request, root_of(path)), path)
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
    Route("/buffers/{name:path}/steps/{seq:int}/text", text),
    Route("/buffers/{name:path}/steps/{seq:int}/value", value),
    Route("/buffers/{name:path}/steps/{seq:int}/image.png", image),
    Route("/buffers/{name:path}/difference", show_difference),
]
