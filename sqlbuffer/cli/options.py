"""Arguments that several commands share, and the buffer that they mean."""

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sqlbuffer.cli.errors import TaskNotFoundError, UsageError
from sqlbuffer.cli.output import shown_url
from sqlbuffer.errors import BufferNotFoundError, SQLBufferError, StorageUnreachableError

if TYPE_CHECKING:
    from sqlbuffer import ReplayBuffer


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


Url = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="The database, as a URL or the path of a SQLite file; without it SQLBUFFER_URL, else "
        "sqlite:///sqlbuffer.db.",
        show_default=False,
    ),
]
BufferName = Annotated[
    str | None,
    typer.Option(
        "--buffer",
        "-b",
        metavar="NAME",
        help="The buffer; without it the only one there is, else `default`.",
        show_default=False,
    ),
]
Condition = Annotated[
    str | None,
    typer.Option(
        "--condition",
        metavar="JSON",
        help="Rows that match this JSON of QueryBuilder().build(): "
        '\'{"field": "step", "op": "gt", "value": 3}\'.',
        show_default=False,
    ),
]
Equal = Annotated[
    list[str] | None,
    typer.Option(
        "--eq",
        metavar="FIELD=VALUE",
        help="Rows whose field has this value: agent_id=a1, state.level=3. If repeated, all hold.",
        show_default=False,
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Count tasks in large databases too, and rows that only plain SQL has written; by "
        "default those are estimated (≈).",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON array of objects. NaN and infinities are null, bytes base64."
    ),
]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header; None is empty.")]
Ndjson = Annotated[
    bool,
    typer.Option("--ndjson", help="Print one JSON object a line, as rows arrive."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class WordLast(TyperCommand):
    """A command `[URL] WORD`: the last word is wanted, though the parser does not know it."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what stands in the usage line."""
        *pieces, last = super().collect_usage_pieces(ctx)
        return [*pieces, last.strip("[]")]


def example(*commands: str) -> str:
    """Return the end of a help text: the commands a user would type."""
    # \b keeps the lines from being joined.
    return "\b\n" + "\n".join(["Example:", *(f"  {command}" for command in commands)])


def database(url: str | None, *, may_be_new: bool = False) -> str | None:
    """Return the database of a command's word; the library checks it.

    Args:
        url: The word; None for the database of the environment.
        may_be_new: The command makes a file that is missing.

    Raises:
        StorageUnreachableError: None is named, and the file of last resort is not there.
    """
    if url is None and not may_be_new:
        _check_default()
    return url


def database_and_word(
    first: str | None, second: str | None, question: str, *, may_be_new: bool = False
) -> tuple[str | None, str]:
    """Return the URL and the word of `[URL] WORD`.

    Args:
        first: First word of the command line.
        second: Second word.
        question: Message if the word is missing.
        may_be_new: The command makes a file that is missing.

    Raises:
        UsageError: The word is missing.
    """
    if second is not None:
        return database(first, may_be_new=may_be_new), second
    if first is None or _is_database(first):
        raise UsageError(question)
    return database(None, may_be_new=may_be_new), first


def database_and_optional_word(
    first: str | None, second: str | None
) -> tuple[str | None, str | None]:
    """Return the URL and the word of `[URL] [WORD]`: a lone word is the URL if it can be one."""
    if second is None and first is not None and not _is_database(first):
        _check_default(first)
        return None, first
    return database(first), second


def _is_database(word: str) -> bool:
    from sqlbuffer.storage.database.urls import is_database

    return is_database(word)


def _check_default(word: str | None = None) -> None:
    """Raise if no database is named and the default file is missing; `word` may be a typo."""
    from sqlbuffer.config import DEFAULT_URL, url_of_environment

    path = Path(DEFAULT_URL.removeprefix("sqlite:///"))
    if url_of_environment() is None and not path.exists():
        read_as = "" if word is None else f"{word!r} is not a file or a URL: "
        raise StorageUnreachableError(
            f"{read_as}no database is named, and there is no file {path} to fall back on; put the "
            "URL behind the command, such as sqlite:///replay.db, or into SQLBUFFER_URL"
        )


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
