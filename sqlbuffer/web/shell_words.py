"""The line of a shell, of SQL or of Python that shows the same as a page."""

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
            # A value that begins with a dash is not a separate option.
            parts.append(f"{option}={value}")
    given = [str(word) for word in words]
    if any(word.startswith("-") for word in given):
        given.insert(0, "--")
    return shlex.join([*parts, *given])


def quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def python_call(url: str, buffer: str, call: str) -> str:
    """Return lines of Python that open a buffer for reading and call it.

    Args:
        url: The database.
        buffer: The buffer.
        call: Call after `buffer.`.
    """
    return f"{_opened(url, buffer)}\nbuffer.{call}"


def python_rows(url: str, buffer: str, call: str, shown: str = "row") -> str:
    """Return lines of Python that open a buffer for reading and print each row of a call.

    Args:
        url: The database.
        buffer: The buffer.
        call: Call after `buffer.` that returns rows.
        shown: An expression of `row`.
    """
    return f"{_opened(url, buffer)}\nfor row in buffer.{call}:\n    print({shown})"


def _opened(url: str, buffer: str) -> str:
    return (
        "from sqlbuffer import ReplayBuffer\n"
        f"buffer = ReplayBuffer({url!r}, {buffer!r}, create=False)"
    )
