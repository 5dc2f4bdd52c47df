"""Arguments that several commands take."""

from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="The database; without it SQLBUFFER_URL, else sqlite:///sqlbuffer.db.",
        show_default=False,
    ),
]


def example(*commands: str) -> str:
    """Return the end of a help text: the commands a user would type."""
    # \b keeps the lines from being joined.
    return "\b\n" + "\n".join(["Example:", *(f"  {command}" for command in commands)])
