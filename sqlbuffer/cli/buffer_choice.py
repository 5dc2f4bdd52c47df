"""Find the buffer that a command means: by its name, by a task, or because it is the only one."""

import difflib
from typing import TYPE_CHECKING

from sqlbuffer.cli.errors import TaskNotFoundError, UsageError
from sqlbuffer.errors import BufferNotFoundError

if TYPE_CHECKING:
    from sqlbuffer import ReplayBuffer

SHOWN_NAMES = 10
SEARCHED_TASKS = 20_000
_DEFAULT = "default"


def chosen_buffer(url: str | None, name: str | None) -> str:
    """Return the name of the buffer that a command means.

    Without a name it is the only buffer, or `default` if there are several.

    Raises:
        BufferNotFoundError: There is no such buffer.
        UsageError: Several and none named.
    """
    from sqlbuffer.cli.terminal import shown_url
    from sqlbuffer.storage.buffers import catalog
    from sqlbuffer.storage.migrations import status

    status.check(url)
    names = catalog.list_buffers(url)
    if not names:
        raise BufferNotFoundError(
            f"{shown_url(url)} has no buffers yet; a program makes one with "
            "ReplayBuffer(url, name=...)"
        )
    if name is None:
        return _one_of(names)
    if name not in names:
        raise BufferNotFoundError(
            f"no buffer {name!r} in {shown_url(url)}; there are {listed(names)}"
        )
    return name


def buffer_of_task(url: str | None, task: str) -> str | None:
    """Return the only buffer that has a task, or `default` if it is among several; None where no
    buffer has it.

    Raises:
        UsageError: Several have it.
    """
    from sqlbuffer.storage.inspect import listings

    names = listings.buffers_of_task(url, task)
    return _one_of(names) if names else None


def _one_of(names: list[str]) -> str:
    if len(names) > 1 and _DEFAULT not in names:
        raise UsageError(f"which buffer? give --buffer NAME; there are {listed(names)}")
    return names[0] if len(names) == 1 else _DEFAULT


def opened(url: str | None, name: str | None) -> "ReplayBuffer":
    """Open the buffer that a command means; see `chosen_buffer`."""
    from sqlbuffer import ReplayBuffer

    return ReplayBuffer(url, name=chosen_buffer(url, name), create=False, wait_s=0)


def similar_tasks(url: str | None, buffer: str | None, task: str) -> list[str]:
    """Return the ids of tasks that resemble one, of a buffer or of all."""
    from sqlbuffer.storage.inspect import listings

    known = listings.task_ids(url, buffer, SEARCHED_TASKS)
    return difflib.get_close_matches(task, known, n=5)


def unknown_episode(task: str, episode: str, known: list[str]) -> TaskNotFoundError:
    """Return the error for an episode that a task does not have."""
    hint = f"it has {listed(known)}" if known else "its steps have no episode_id"
    return TaskNotFoundError(f"no episode {episode!r} of task {task!r}; {hint}")


def listed(names: list[str]) -> str:
    """Return the first few names for a message."""
    more = len(names) - SHOWN_NAMES
    shown = ", ".join(map(repr, names[:SHOWN_NAMES]))
    return f"{shown} and {more} more" if more > 0 else shown


def unknown_task(url: str | None, buffer: str | None, task: str) -> TaskNotFoundError:
    """Return the error for a task that a buffer, or None for all of them, does not have."""
    similar = similar_tasks(url, buffer, task)
    hint = (
        f"did you mean {listed(similar)}?" if similar else "`sqlbuffer ls URL --tasks` lists tasks"
    )
    where = "any buffer" if buffer is None else f"buffer {buffer!r}"
    return TaskNotFoundError(f"no task {task!r} in {where}; {hint}")
