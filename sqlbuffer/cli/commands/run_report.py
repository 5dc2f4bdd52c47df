"""`sqlbuffer report`: write the figures of the pages into one file."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import Url, database, example

EPILOG = example(
    "sqlbuffer report replay.db -o report.html",
    "sqlbuffer report postgresql://me@db.internal/replay -o report.html --buffer rollouts",
)


def report(
    url: Url = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file; - is standard output.")
    ] = "report.html",
    buffer: Annotated[
        str | None,
        typer.Option(
            "--buffer",
            "-b",
            metavar="NAME",
            help="The buffer; without it all buffers.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> None:
    """Write the pages of `sqlbuffer ui` into one HTML file.

    It has the curves and distributions of buffers, the best and worst episodes, and the groups. It
    needs no server and no network, and runs nothing that users have stored.
    """
    from sqlbuffer.storage.migrations import status
    from sqlbuffer.web import require_extra

    require_extra()
    from sqlbuffer.web.report import report as made

    named = database(url)
    path = Path(output)
    if output != "-" and path.exists() and not overwrite:
        raise UsageError(f"{path} is there already; --overwrite replaces it")
    status.check(named)
    found = made(named, buffer)
    if output == "-":
        sys.stdout.buffer.write(found)
        return
    _write(path, found)
    typer.echo(f"{path}: {len(found):,} bytes", err=True)


def _write(path: Path, found: bytes) -> None:
    """Write a whole file; an interruption leaves no partial file."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(found)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
