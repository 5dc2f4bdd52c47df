"""Ask before a command destroys something."""

import sys

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.errors import SQLBufferError


class DeclinedError(SQLBufferError):
    """The user did not agree."""


def confirm(what: str, *, yes: bool) -> None:
    """Ask the user to confirm, unless `--yes` was given.

    Args:
        what: Description of the change, such as `5 rows leave buffer 'x'`.
        yes: `--yes` was given.

    Raises:
        DeclinedError: The answer was not yes.
        UsageError: Standard input is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what}; standard input is not a terminal to ask at: give --yes to do it")
    typer.echo(f"{what}. Go on? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise DeclinedError("nothing was changed")
