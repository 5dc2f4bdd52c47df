"""`sqlbuffer errors`: explain an error, as its message says to."""

import difflib
import re
from pathlib import Path
from typing import Annotated

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import example
from sqlbuffer.cli.output import Format, write

EPILOG = example("sqlbuffer errors", "sqlbuffer errors StorageBusyError")
_ENTRY = re.compile(r"^## (\w+)\n+(.*?)\s*(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_FENCE = re.compile(r"^```\w*\n?", re.MULTILINE)


def errors(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The class of the error.", show_default=False),
    ] = None,
) -> None:
    """Show what causes an error and how to solve it. Without a name, list all errors."""
    entries: dict[str, str] = dict(_ENTRY.findall(_page()))
    if name is None:
        meanings = {found: text.partition("\n\n")[0] for found, text in entries.items()}
        rows = [(found, text.replace("\n", " ")) for found, text in meanings.items()]
        write(("error", "meaning"), rows, Format.TABLE)
        return
    known = {found.lower(): found for found in entries}
    asked = name.rpartition(".")[2].lower()
    if asked not in known:
        near = difflib.get_close_matches(asked, known, n=1)
        hint = f"did you mean {known[near[0]]}?" if near else "`sqlbuffer errors` lists all"
        raise UsageError(f"no error {name!r}; {hint}")
    typer.echo(f"{known[asked]}\n\n{_FENCE.sub('', entries[known[asked]]).rstrip()}")


def _page() -> str:
    """Return the page on errors: inside the installed package, or in the docs of a checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "errors.md"
    page = installed if installed.exists() else package.parent / "docs/reference/errors.md"
    return _LINK.sub(r"\1", page.read_text(encoding="utf-8"))
