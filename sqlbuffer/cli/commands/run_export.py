"""`sqlbuffer export`: write the steps of a buffer to files."""

from typing import Annotated

import typer

from sqlbuffer.cli.options import BufferName, Equal, example

EPILOG = example(
    "sqlbuffer export replay.db out --buffer cartpole",
    "sqlbuffer export replay.db pairs --buffer chats --format hf --rows preference",
    "sqlbuffer export replay.db cartpole/mine-v0 --format minari --env CartPole-v1",
    "sqlbuffer export postgresql://me@db.internal/replay out --columns obs,action,reward",
    "sqlbuffer export replay.db - --format jsonl --eq task_id=t1 | jq .reward_t",
    "sqlbuffer export replay.db good --where "
    '\'{"field": "reward", "op": "gt", "value": 0}\' --overwrite',
)


def export(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="The database, as a URL or the path of a SQLite file."),
    ],
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="The folder, file or data set to make.")
    ],
    buffer: BufferName = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME",
            help="parquet: a folder; jsonl: a file with a step a line, - is standard output; hf: a "
            "folder that datasets.load_dataset opens; minari: a data set of that name.",
        ),
    ] = "parquet",
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            "--condition",
            metavar="JSON",
            help="Steps that match this JSON of QueryBuilder().build(): "
            '\'{"field": "step", "op": "gt", "value": 3}\'.',
            show_default=False,
        ),
    ] = None,
    eq: Equal = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAMES",
            help="Columns, with commas between them; all by default.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            "--rows",
            metavar="NAME",
            help="For hf: steps, conversations, messages, prompt_completion or preference.",
        ),
    ] = "steps",
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            metavar="ID",
            help="For minari: the environment that was recorded, such as CartPole-v1.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an export that is there.")
    ] = False,
) -> None:
    """Write the steps of a buffer to files, while writers write.

    The output appears when it is complete. An interrupted command leaves nothing. If a command is
    killed, the next export to the same path removes its files.
    """
    from sqlbuffer.cli.copy_progress import CopyProgressBar
    from sqlbuffer.cli.errors import UsageError
    from sqlbuffer.cli.options import opened
    from sqlbuffer.cli.output import console, note
    from sqlbuffer.interchange.formats import EXPORT_FORMATS, exporter
    from sqlbuffer.query.texts import condition_of

    if format_ not in EXPORT_FORMATS:
        raise UsageError(f"there is no format {format_!r}; choose from {', '.join(EXPORT_FORMATS)}")
    if out == "-" and format_ != "jsonl":
        raise UsageError(f"{format_} is not written to standard output; name a folder")
    try:
        write = exporter(format_, rows=rows, env=env)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with opened(source, buffer) as found, CopyProgressBar(console()) as bar:
        report = write(
            found,
            out,
            condition_of(found.fields, where, eq),
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            overwrite=overwrite,
            on_progress=bar.of(found.name),
        )
        if out == "-":
            note(str(report))
        else:
            bar.print(str(report))
