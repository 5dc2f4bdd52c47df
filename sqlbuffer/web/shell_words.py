"""The line of a shell or of Python that shows the same as a page."""

import shlex
from typing import Any


def command_line(command: str, *words: Any, **options: Any) -> str:
    """Return a line for a shell: `sqlbuffer show URL TASK --buffer NAME`.

    Args:
        command: The command.
        *words: Its arguments.
        **options: Its options; None is left out, True is an option without a value.
    """
    parts = ["sqlbuffer", *command.split()]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            parts.append(option)
        elif value is not None:
            # A value that begins with a dash is not an option of its own.
            parts.append(f"{option}={value}")
    given = [str(word) for word in words]
    if any(word.startswith("-") for word in given):
        given.insert(0, "--")
    return shlex.join([*parts, *given])


def python_call(url: str, buffer: str, call: str) -> str:
    """Return lines of Python that open a buffer for reading and call it.

    Args:
        url: The database.
        buffer: The buffer.
        call: Call after `buffer.`.
    """
    return (
        "from sqlbuffer import ReplayBuffer\n"
        f"buffer = ReplayBuffer({url!r}, {buffer!r}, create=False)\n"
        f"buffer.{call}"
    )
