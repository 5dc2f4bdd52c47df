"""`sqlbuffer ls`: list the buffers of a database, or the tasks of a buffer."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import (
    BufferName,
    Csv,
    Exact,
    Json,
    Ndjson,
    Url,
    chosen_buffer,
    database_and_optional_word,
    example,
)
from sqlbuffer.cli.output import (
    Format,
    buffers_for_people,
    chosen,
    for_people,
    note,
    note_if_measured,
    write,
)

EPILOG = example(
    "sqlbuffer ls sqlite:///replay.db",
    "sqlbuffer ls sqlite:///replay.db cartpole",
    "sqlbuffer ls replay.db --tasks --limit 0 --csv",
)


def ls(
    url: Url = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="BUFFER",
            help="The buffer whose tasks to list, as with --buffer.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        bool, typer.Option("--tasks", "-t", help="List tasks, also where no buffer is named.")
    ] = False,
    buffer: BufferName = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Largest number of tasks; 0 lists all.")
    ] = 50,
    exact: Exact = False,
    json: Json = False,
    csv: Csv = False,
    ndjson: Ndjson = False,
) -> None:
    """List the buffers of a database, or the tasks of a buffer.

    The latest tasks come first. Times are UTC. In a file or a pipe, tables are not cut.
    """
    format_ = chosen(json=json, csv=csv, ndjson=ndjson)
    url, name = database_and_optional_word(url, name)
    if name is not None and buffer not in (None, name):
        raise UsageError(f"{name} and --buffer {buffer} name two buffers; give one of them")
    wanted = buffer if name is None else name
    if tasks or wanted is not None:
        _list_tasks(url, wanted, limit, format_)
    else:
        _list_buffers(url, format_, exact=exact)


def _list_buffers(url: str | None, format_: Format, *, exact: bool) -> None:
    from sqlbuffer.storage.inspect import listings
    from sqlbuffer.storage.migrations import status

    status.check(url)
    answer = listings.buffers(url, exact=exact)
    if format_ is not Format.TABLE:
        write(answer.columns, answer.rows, format_)
    elif answer.rows:
        write(*buffers_for_people(answer.columns, answer.rows), format_)
        note_if_measured(answer.columns, answer.rows)
    else:
        note("no buffers yet; a program makes one with ReplayBuffer(url, name=...)")


def _list_tasks(url: str | None, name: str | None, limit: int, format_: Format) -> None:
    from sqlbuffer.storage.inspect import listings

    buffer = chosen_buffer(url, name)
    with listings.tasks(url, buffer, limit) as found:
        columns, rows = found.columns[:-1], _Counted(found.rows)
        if format_ is Format.TABLE:
            write(*_without_empty(columns, list(for_people(columns, rows))), format_)
        else:
            write(columns, rows, format_)
    if rows.total > rows.count:
        note(f"{rows.total - rows.count:,} more tasks; --limit 0 lists all")
    elif not rows.count and format_ is Format.TABLE:
        note(f"buffer {buffer!r} is empty")


def _without_empty(columns: list[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Leave out columns without a value: many tasks have no names, and a terminal is narrow."""
    kept = [i for i in range(len(columns)) if not rows or any(row[i] is not None for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


class _Counted:
    """Rows without their last column, which says how many there are without a limit."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._rows, self.count, self.total = rows, 0, 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for row in self._rows:
            self.count, self.total = self.count + 1, row[-1]
            yield row[:-1]
