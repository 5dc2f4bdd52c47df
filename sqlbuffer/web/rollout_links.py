"""The addresses of the pages of a rollout, and the lines that show the same elsewhere."""

from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from sqlbuffer.query.builder import QueryBuilder
from sqlbuffer.storage.browsing.found_rollouts import Rollout
from sqlbuffer.web.rendering import link
from sqlbuffer.web.shell_words import command_line, python_rows

# A browser takes these for folders.
_FOLDERS = (".", "..")
_IN_QUERY = "-"


def buffer_link(request: Request, buffer: str, path: str, **query: Any) -> str:
    """Return the address of a page of a buffer.

    Args:
        request: The request that is answered.
        buffer: The buffer.
        path: Path after the buffer's name, such as `/episodes/7`.
        **query: The state of the page.
    """
    if buffer in _FOLDERS:
        query, buffer = {**query, "buffer": buffer}, _IN_QUERY
    return link(request, f"/buffers/{quote(buffer, safe='')}{path}", **query)


def episode_link(request: Request, buffer: str, number: int, **query: Any) -> str:
    """Return the address of the page of an episode, by its number in `episodes`."""
    return buffer_link(request, buffer, f"/episodes/{number}", **query)


def rollout_link(request: Request, buffer: str, rollout: Rollout, **query: Any) -> str:
    """Return the address of the page of a rollout."""
    if rollout.number is not None:
        return episode_link(request, buffer, rollout.number, **query)
    own = {"task": rollout.task_id, "agent": rollout.agent_id}
    return buffer_link(request, buffer, "/task", **own, **query)


def difference_link(request: Request, buffer: str, a: int, b: int) -> str:
    """Return the address of the difference between two conversations."""
    return buffer_link(request, buffer, "/difference", a=a, b=b)


def buffer_of(request: Request) -> str:
    """Return the name of the buffer in an address."""
    name = str(request.path_params["name"])
    return request.query_params.get("buffer", name) if name == _IN_QUERY else name


def rollout_commands(url: str, buffer: str, rollout: Rollout) -> list[str]:
    """Return lines for a shell and for Python that show the steps of a rollout."""
    if rollout.episode_id is None:
        call = f"get_by_task_id({rollout.task_id!r})"
    else:
        condition = QueryBuilder().eq("task_id", rollout.task_id).and_()
        call = f"get_all({condition.eq('episode_id', rollout.episode_id).build()!r})"
    show = command_line("show", url, rollout.task_id, buffer=buffer, episode=rollout.episode_id)
    return [show, python_rows(url, buffer, call)]
