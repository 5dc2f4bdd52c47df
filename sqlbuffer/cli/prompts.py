"""Ask before a command destroys something."""

import sys

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.errors import SQLBufferError


class DeclinedError(SQLBufferError):
    """The answer was no."""


def confirm(what: str, *, yes: bool) -> None:
    """Ask whether to go on, unless the answer was given in advance.

    Args:
        what: What is about to happen, such as `5 rows leave buffer 'x'`.
        yes: `--yes` was given.

    Raises:
        DeclinedError: The answer was not yes.
        UsageError: Nobody is there to answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what}; nobody is there to ask: give --yes to do it")
    typer.echo(f"{what}. Go on? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise DeclinedError("nothing was changed")
