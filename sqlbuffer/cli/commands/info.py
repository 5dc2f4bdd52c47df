"""`sqlbuffer info`: show the contents of a database."""

from collections.abc import Sequence
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
    database,
    example,
    opened,
)
from sqlbuffer.cli.output import Format, buffers_for_people, chosen, note, note_if_measured, write

# The table leaves these out if no buffer has a value of them.
_RARE = (
    "expired", "used_up", "other_session", "partial", "leased", "quarantined", "clock",
    "max_staleness", "max_use", "min_size", "alpha",
)  # fmt: skip
EPILOG = example(
    "sqlbuffer info sqlite:///replay.db",
    "sqlbuffer info replay.db --json",
    "sqlbuffer info replay.db --config --buffer cartpole > settings.json",
)


def info(
    url: Url = None,
    exact: Exact = False,
    json: Json = False,
    csv: Csv = False,
    ndjson: Ndjson = False,
    buffer: BufferName = None,
    config: Annotated[
        bool,
        typer.Option(
            "--config", help="Print the settings of a buffer as JSON, for `sqlbuffer create`."
        ),
    ] = False,
) -> None:
    """Show a database and all its buffers in full.

    A second table has their typed fields. Times are UTC. In a file or a pipe, tables are not cut.
    `sqlbuffer ls` shows less, and is quicker.
    """
    if config:
        if json or csv or ndjson or exact:
            raise UsageError("--config prints its own JSON; leave out the other options")
        with opened(database(url), buffer) as one:
            typer.echo(one.config.model_dump_json(indent=2))
        return
    if buffer is not None:
        raise UsageError("--buffer goes with --config; `sqlbuffer info URL` shows all buffers")
    from sqlbuffer.cli.output import console, shown_url
    from sqlbuffer.display import shown_size
    from sqlbuffer.storage.inspect import listings
    from sqlbuffer.storage.migrations import status

    format_, url = chosen(json=json, csv=csv, ndjson=ndjson), database(url)
    found = status.check(url)
    answer, fields = listings.buffers_in_full(url, exact=exact), listings.fields(url)
    if format_ is not Format.TABLE:
        rows = [(*row, fields.get(row[0])) for row in answer.rows]
        write([*answer.columns, "fields"], rows, format_)
        return
    server = status.server(url)
    facts = f"{server.version}, {shown_size(server.size_bytes)}, schema {found.revision}"
    console().print(f"{shown_url(url)}: {facts}", markup=False, soft_wrap=True)
    if not answer.rows:
        note("no buffers yet; a program makes one with ReplayBuffer(url, name=...)")
        return
    columns, shown = that_say_something(answer.columns, answer.rows)
    write(*buffers_for_people(columns, shown), format_)
    listed = [(name, *field.values()) for name, own in fields.items() for field in own]
    if listed:
        write(("buffer", "field", "level", "dtype", "shape", "comparable"), listed, format_)
    note_if_measured(answer.columns, answer.rows)
    for line in listings.unfinished_copies(url):
        note(line)


def that_say_something(
    columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[list[str], list[list[Any]]]:
    """Return a table without the rare columns that are empty for every buffer."""
    kept = [i for i, name in enumerate(columns) if name not in _RARE or any(row[i] for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
