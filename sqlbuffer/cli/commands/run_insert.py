"""`sqlbuffer insert`: store JSON lines."""

from typing import Annotated

import typer

from sqlbuffer.cli.options import example

EPILOG = example(
    "sqlbuffer insert replay.db --buffer mine - < steps.jsonl",
    "sqlbuffer insert postgresql://me@db.internal/replay steps.jsonl --buffer mine",
)


def insert(
    target: Annotated[
        str,
        typer.Argument(
            metavar="DST", help="The database; a missing SQLite file and a missing buffer are made."
        ),
    ],
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON lines; - reads standard input.")
    ] = "-",
    buffer: Annotated[
        str, typer.Option("--buffer", "-b", metavar="NAME", help="The buffer.")
    ] = "default",
) -> None:
    """Store steps that are given as JSON, one step in each line.

    A line has the arguments of `ReplayBuffer.add`: task_id, step, state, actions, reward, and so
    on. A line that cannot be stored ends the command. A file is checked before its first line is
    stored; of standard input, the lines before the wrong one are stored.
    """
    from sqlbuffer.cli.copy_progress import CopyProgressBar
    from sqlbuffer.cli.output import console
    from sqlbuffer.interchange import insert_jsonl

    with CopyProgressBar(console()) as bar:
        report = insert_jsonl(source, target, buffer, on_progress=bar.of(buffer))
        bar.print(str(report))
