"""`sqlbuffer copy`: copy buffers into another database."""

from typing import Annotated

import typer

from sqlbuffer.cli.options import Condition, Equal, example

EPILOG = example(
    "sqlbuffer copy replay.db postgresql://me@db.internal/replay",
    "sqlbuffer copy postgresql://me@db.internal/replay local.db --buffer cartpole",
    "sqlbuffer copy replay.db good.db --buffer cartpole --condition "
    '\'{"field": "reward", "op": "gt", "value": 0}\'',
)


def copy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="The database to copy from, as a URL or the path of a SQLite file."
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="DST",
            help="The database to copy to; the schema of a new SQLite file is made, and missing "
            "buffers are.",
        ),
    ],
    buffer: Annotated[
        str | None,
        typer.Option(
            "--buffer", "-b", metavar="NAME", help="Copy this buffer alone.", show_default=False
        ),
    ] = None,
    condition: Condition = None,
    eq: Equal = None,
) -> None:
    """Copy buffers into another database, while writers write.

    It copies all buffers, or one with --buffer, into buffers of the same names, which must be
    empty. If the command is interrupted, run it again: it continues where it stopped. --condition
    and --eq choose steps.
    """
    from sqlbuffer import ReplayBuffer
    from sqlbuffer.cli.copy_progress import CopyProgressBar
    from sqlbuffer.cli.output import console, note
    from sqlbuffer.query.texts import condition_of

    names = _chosen(source, buffer)
    with CopyProgressBar(console()) as bar:
        for name in names:
            with ReplayBuffer(source, name, create=False) as found:
                wanted = condition_of(found.fields, condition, eq)
                with ReplayBuffer(target, name, config=found.config) as copied:
                    try:
                        report = found.copy_to(copied, wanted, on_progress=bar.of(name))
                    except KeyboardInterrupt:
                        note(f"buffer {name!r} is copied in part; the same command continues")
                        raise
            bar.print(str(report))
    if not names:
        note("no buffers to copy")


def _chosen(source: str, name: str | None) -> list[str]:
    """Return the names of the buffers to copy.

    Raises:
        CopyError: Some of them are not copied alone.
    """
    from sqlbuffer.cli.options import chosen_buffer, listed
    from sqlbuffer.errors import CopyError
    from sqlbuffer.storage.buffers import catalog
    from sqlbuffer.storage.inspect import listings
    from sqlbuffer.storage.migrations import status

    if name is not None:
        return [chosen_buffer(source, name)]
    status.check(source)
    layouts = listings.buffers_with_layout(source)
    if layouts:
        raise CopyError(
            f"buffers of sqlbuffer.compat are not copied alone: {listed(layouts)}; give --buffer "
            f"NAME to copy another one, or copy the whole database (`pg_dump`, or `.backup` of "
            f"SQLite)"
        )
    return catalog.list_buffers(source)
