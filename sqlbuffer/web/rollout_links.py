"""The addresses of the pages of a rollout, and the lines that show the same elsewhere."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from sqlbuffer.query.builder import QueryBuilder
from sqlbuffer.storage.browsing.rollouts import Rollout
from sqlbuffer.web.rendering import command_line, link, python_rows, quoted

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
    show = command_line("show", url, rollout.task_id, buffer=buffer, episode=rollout.episode_id)
    return [show, python_rows(url, buffer, _steps_of(rollout))]


def curve_commands(url: str, buffer: str, rollout: Rollout) -> list[str]:
    """Return lines for Python that show the numbers of the steps of a rollout."""
    data = ("reward_t", "v_t", "adv_t", "state", "actions", "extra")
    shown = ", ".join(["row.exp_meta.step", "row.fields", *(f"row.exp_data.{it}" for it in data)])
    return [python_rows(url, buffer, _steps_of(rollout), shown)]


def draw_commands(url: str, buffer: str, rollout: Rollout, seqs: Sequence[int]) -> list[str]:
    """Return a line for a shell that shows the batches that held some steps of a rollout."""
    first, last = min(seqs, default=0), max(seqs, default=0)
    episode = "IS NULL" if rollout.episode_id is None else f"= {quoted(rollout.episode_id)}"
    statement = (
        "SELECT seq, batch_id, sampled_at, clock, sampler, position FROM v_samples "
        f"WHERE buffer = {quoted(buffer)} AND task_id = {quoted(rollout.task_id)} "
        f"AND episode_id {episode} AND seq BETWEEN {first} AND {last} "
        "ORDER BY sampled_at DESC, batch_id DESC, position"
    )
    return [command_line("sql", url, statement)]


def _steps_of(rollout: Rollout) -> str:
    """Return the call that reads the steps of a rollout."""
    if rollout.episode_id is None:
        return f"get_by_task_id({rollout.task_id!r})"
    condition = QueryBuilder().eq("task_id", rollout.task_id).and_()
    return f"get_all({condition.eq('episode_id', rollout.episode_id).build()!r})"
