"""`sqlbuffer resize`: change the capacity of a buffer."""

from typing import TYPE_CHECKING, Annotated

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import BufferName, Url, Yes, confirm, database_and_word, example, opened

if TYPE_CHECKING:
    from sqlbuffer import ReplayBuffer

EPILOG = example(
    "sqlbuffer resize sqlite:///replay.db 100000",
    "sqlbuffer resize sqlite:///replay.db unlimited --buffer cartpole",
    "sqlbuffer resize postgresql://me@db.internal/replay 1000 --buffer cartpole --yes",
)
UNLIMITED = "unlimited"


def resize(
    url: Url = None,
    capacity: Annotated[
        str | None,
        typer.Argument(metavar="N|unlimited", help="Largest number of rows.", show_default=False),
    ] = None,
    buffer: BufferName = None,
    yes: Yes = False,
) -> None:
    """Change the largest number of rows of a buffer.

    A lower limit evicts the oldest rows immediately and for good, so the command asks if rows would
    leave.
    """
    url, word = database_and_word(
        url, capacity, "to what capacity? type `sqlbuffer resize URL 100000`, or `unlimited`"
    )
    wanted = _capacity(word)
    with opened(url, buffer) as found:
        before, rows = found.max_capacity, len(found)
        leaving = _leaving(url, found, wanted)
        if leaving:
            whole = ", and the rest of their tasks," if found.evict_by == "task" else ""
            confirm(
                f"{leaving:,} of {rows:,} rows{whole} leave buffer {found.name!r} for good",
                yes=yes,
            )
        found.resize(wanted)
        left = len(found)
        typer.echo(
            f"buffer {found.name!r}: capacity {_shown(before)} -> {_shown(wanted)}; "
            f"{max(rows - left, 0):,} rows left it, it holds {left:,}"
        )


def _capacity(word: str) -> int | None:
    if word.lower() == UNLIMITED:
        return None
    digits = word.replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit()) or int(digits) == 0:
        raise UsageError(f"a capacity is a positive number of rows or `unlimited`, got {word!r}")
    return int(digits)


def _leaving(url: str | None, buffer: "ReplayBuffer", capacity: int | None) -> int:
    """Return how many rows fall out of the window; of a buffer that evicts by task, at least."""
    from sqlbuffer import QueryBuilder
    from sqlbuffer.storage.inspect import listings

    if capacity is None:
        return 0
    if buffer.evict_by != "row":
        return max(len(buffer) - capacity, 0)
    newest = listings.newest_seq(url, buffer.name)
    return buffer.size(QueryBuilder().lte("seq", newest - capacity))


def _shown(capacity: int | None) -> str:
    return UNLIMITED if capacity is None else f"{capacity:,}"
