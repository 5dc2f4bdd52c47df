"""`sqlbuffer import`: store the steps of files in a buffer."""

from typing import Annotated

import typer

from sqlbuffer.cli.options import example

EPILOG = example(
    "sqlbuffer import out postgresql://me@db.internal/replay",
    "sqlbuffer import out copy.db --buffer cartpole",
    "sqlbuffer import cartpole/random-v0 replay.db --format minari --buffer offline",
    "sqlbuffer import steps.parquet replay.db --buffer mine --column observation=obs --column idx=",
)


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="A folder that was exported, other files, or a data set of Minari by its name.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="DST",
            help="The database; the schema of a new SQLite file is made, and a missing buffer is.",
        ),
    ],
    buffer: Annotated[
        str | None,
        typer.Option(
            "--buffer",
            "-b",
            metavar="NAME",
            help="The buffer; without it the one that was exported, else `default`.",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME",
            help="parquet, jsonl or minari; without it what OUT looks like.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME=FIELD",
            help="Field for a column of another program's files; NAME= omits it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Store the steps of files in a buffer.

    The folder of an export restores its buffer, which must be missing or empty: numbers, ids,
    times, episodes and settings. Other files are appended. All files are checked first: if one is
    damaged, nothing is stored. If the command is interrupted, run it again: it continues where it
    stopped.
    """
    from sqlbuffer.cli.copy_progress import CopyProgressBar
    from sqlbuffer.cli.errors import UsageError
    from sqlbuffer.cli.output import console, note
    from sqlbuffer.interchange import import_minari, import_parquet, insert_jsonl
    from sqlbuffer.interchange.formats import IMPORT_FORMATS, format_of

    kind = format_of(source) if format_ is None else format_
    if kind not in IMPORT_FORMATS:
        raise UsageError(f"there is no format {kind!r}; choose from {', '.join(IMPORT_FORMATS)}")
    if column and kind != "parquet":
        raise UsageError(f"--column is for Parquet, and this is {kind}")
    columns: dict[str, str | None] = {}
    for each in column or ():
        name, sign, field = each.partition("=")
        if not sign:
            raise UsageError(f"--column takes NAME=FIELD, such as observation=obs, got {each!r}")
        columns[name] = field or None
    with CopyProgressBar(console()) as bar:
        show = bar.of(buffer or source)
        try:
            if kind == "jsonl":
                report = insert_jsonl(source, target, buffer or "default", on_progress=show)
            elif kind == "minari":
                report = import_minari(source, target, buffer or "default", on_progress=show)
            else:
                report = import_parquet(
                    source, target, buffer, columns=columns or None, on_progress=show
                )
        except KeyboardInterrupt:
            note("the steps are imported in part; the same command continues")
            raise
        bar.print(str(report))
