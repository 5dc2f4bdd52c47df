"""Commands that move steps: `copy`, `export`, `import` and `insert`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import (
    BufferName,
    Condition,
    Equal,
    chosen_buffer,
    example,
    listed,
    opened,
)
from sqlbuffer.cli.output import console, note

if TYPE_CHECKING:
    from rich.console import Console

    from sqlbuffer.buffer import ReplayBuffer

COPY_EXAMPLES = example(
    "sqlbuffer copy replay.db postgresql://me@db.internal/replay",
    "sqlbuffer copy postgresql://me@db.internal/replay local.db --buffer cartpole",
    "sqlbuffer copy replay.db good.db --buffer cartpole --condition "
    '\'{"field": "reward", "op": "gt", "value": 0}\'',
    "sqlbuffer copy monday.db all.db --buffer cartpole --prefix monday/",
)
Prefix = Annotated[
    str,
    typer.Option(
        "--prefix",
        metavar="TEXT",
        help="Put this before ids of steps and episodes: `run1/`.",
        show_default=False,
    ),
]
OnConflict = Annotated[
    Literal["error", "skip"],
    typer.Option("--on-conflict", help="What to do with merged steps whose ids are there already."),
]
IncludeOpen = Annotated[
    bool, typer.Option("--include-open", help="Merge episodes that have not ended too.")
]


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
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="NAME",
            help="Copy into the buffer of this name; with --buffer.",
            show_default=False,
        ),
    ] = None,
    condition: Condition = None,
    eq: Equal = None,
    prefix: Prefix = "",
    on_conflict: OnConflict = "error",
    include_open: IncludeOpen = False,
) -> None:
    """Copy buffers into another database, while writers write.

    It copies all buffers, or one with --buffer, into buffers of the same names. An empty buffer
    becomes an exact copy. Steps are merged into one that has some, under new numbers, and so are
    steps with a --prefix. If the command is interrupted, run it again: it continues where it
    stopped. Run it later, and it takes what has come since. --condition and --eq choose steps.
    """
    from sqlbuffer import ReplayBuffer
    from sqlbuffer.query.tree import condition_of

    if into is not None and buffer is None:
        raise UsageError("--into names the target of one buffer: give --buffer NAME too")
    names = _chosen(source, buffer)
    with CopyProgressBar(console()) as bar:
        for name in names:
            with ReplayBuffer(source, name, create=False) as source_buffer:
                tree = condition_of(source_buffer.fields, condition, eq)
                with _target(target, into or name, source_buffer) as copied:
                    try:
                        report = source_buffer.copy_to(
                            copied, tree, prefix=prefix, on_conflict=on_conflict,
                            include_open=include_open, on_progress=bar.of(name),
                        )  # fmt: skip
                    except KeyboardInterrupt:
                        note(f"buffer {name!r} is copied in part; the same command continues")
                        raise
            bar.print(str(report))
    if not names:
        note("no buffers to copy")


def _target(url: str, name: str, source: "ReplayBuffer") -> "ReplayBuffer":
    """Return the buffer of a name, which is made like another one if it is missing."""
    from sqlbuffer import ReplayBuffer
    from sqlbuffer.interchange.buffer_opening import found_buffer

    return found_buffer(url, name) or ReplayBuffer(url, name, config=source.config)


def _chosen(source: str, name: str | None) -> list[str]:
    """Return the names of the buffers to copy; raise CopyError if one is not copied alone."""
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


EXPORT_EXAMPLES = example(
    "sqlbuffer export replay.db out --buffer cartpole",
    "sqlbuffer export replay.db pairs --buffer chats --format hf --rows preference",
    "sqlbuffer export replay.db cartpole/mine-v0 --format minari --env CartPole-v1",
    "sqlbuffer export replay.db data.npz --buffer walker",
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
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME",
            help="parquet: a folder; jsonl: a file with a step a line, - is standard output; hf: a "
            "folder that datasets.load_dataset opens; minari: a data set of that name; atif: a "
            "folder with a trajectory of each episode; npz or hdf5: a file of flat arrays as in "
            "D4RL. Without it npz or hdf5 for .npz, .h5 and .hdf5, else parquet.",
            show_default=False,
        ),
    ] = None,
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
            help="Columns, with commas between them; all by default. Of conversations and so on: "
            "further columns, such as reward,level=meta.level.",
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
    from sqlbuffer.interchange.formats import EXPORT_FORMATS, export_format_of, exporter
    from sqlbuffer.query.tree import condition_of

    kind = export_format_of(out) if format_ is None else format_
    if kind not in EXPORT_FORMATS:
        raise UsageError(f"there is no format {kind!r}; choose from {', '.join(EXPORT_FORMATS)}")
    if out == "-" and kind != "jsonl":
        raise UsageError(f"{kind} is not written to standard output; name a folder")
    try:
        write = exporter(kind, rows=rows, env=env)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with opened(source, buffer) as opened_buffer, CopyProgressBar(console()) as bar:
        report = write(
            opened_buffer,
            out,
            condition_of(opened_buffer.fields, where, eq),
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            overwrite=overwrite,
            on_progress=bar.of(opened_buffer.name),
        )
        if out == "-":
            note(str(report))
        else:
            bar.print(str(report))


IMPORT_EXAMPLES = example(
    "sqlbuffer import out postgresql://me@db.internal/replay",
    "sqlbuffer import out copy.db --buffer cartpole",
    "sqlbuffer import cartpole/random-v0 replay.db --format minari --buffer offline",
    "sqlbuffer import data.npz replay.db --buffer offline --tail drop",
    "sqlbuffer import jobs/today replay.db --format atif --buffer agents",
    "sqlbuffer import steps.parquet replay.db --buffer mine --column observation=obs --column idx=",
)


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="A folder that was exported, other files, or a data set of Minari by its name. "
            "An .npz or HDF5 file has flat arrays, as in D4RL.",
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
            help="parquet, jsonl, minari, atif, npz or hdf5; without it what OUT looks like.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME=FIELD",
            help="Field for a column or array of another program's files; NAME= omits it.",
            show_default=False,
        ),
    ] = None,
    tail: Annotated[
        Literal["open", "cut", "drop"] | None,
        typer.Option(
            "--tail",
            help="For flat arrays, steps at the end whose episode has not ended: leave it open, "
            "cut it as truncated (which is the default), or drop them.",
            show_default=False,
        ),
    ] = None,
    store_next: Annotated[
        bool,
        typer.Option("--store-next", help="For flat arrays: store next_observations as a field."),
    ] = False,
    prefix: Prefix = "",
    on_conflict: OnConflict = "error",
    include_open: IncludeOpen = False,
) -> None:
    """Store the steps of files in a buffer.

    The folder of an export restores its buffer, if that is missing or empty: numbers, ids, times,
    episodes and settings. Whole episodes are merged into a buffer that has steps, and with a
    --prefix. Other files are appended. All files are checked first: if one is damaged, nothing is
    stored. If the command is interrupted, run it again: it continues where it stopped.
    """
    from sqlbuffer.interchange import (
        import_arrays,
        import_atif,
        import_minari,
        import_parquet,
        insert_jsonl,
    )
    from sqlbuffer.interchange.formats import IMPORT_FORMATS, format_of

    kind = format_of(source) if format_ is None else format_
    if kind not in IMPORT_FORMATS:
        raise UsageError(f"there is no format {kind!r}; choose from {', '.join(IMPORT_FORMATS)}")
    are_arrays = kind in ("npz", "hdf5")
    if column and kind != "parquet" and not are_arrays:
        raise UsageError(f"--column is for Parquet and flat arrays, and this is {kind}")
    if (tail is not None or store_next) and not are_arrays:
        option = "--store-next" if tail is None else "--tail"
        raise UsageError(f"{option} is for flat arrays (.npz or HDF5), and this is {kind}")
    if include_open and kind != "parquet":
        raise UsageError(f"--include-open is for the folder of an export, and this is {kind}")
    columns: dict[str, str | None] = {}
    for pair in column or ():
        name, sign, field = pair.partition("=")
        if not sign:
            raise UsageError(f"--column takes NAME=FIELD, such as observation=obs, got {pair!r}")
        columns[name] = field or None
    with CopyProgressBar(console()) as bar:
        show = bar.of(buffer or source)
        try:
            ids: dict[str, Any] = {"prefix": prefix, "on_conflict": on_conflict}
            if kind == "parquet":
                report = import_parquet(
                    source, target, buffer, columns=columns or None, include_open=include_open,
                    on_progress=show, **ids,
                )  # fmt: skip
            elif are_arrays:
                report = import_arrays(
                    target, source, buffer or "default", columns=columns or None,
                    tail=tail or "cut", store_next=store_next or None, on_progress=show, **ids,
                )  # fmt: skip
            else:
                stores: dict[str, Any] = {
                    "jsonl": insert_jsonl,
                    "minari": import_minari,
                    "atif": import_atif,
                }
                report = stores[kind](source, target, buffer or "default", on_progress=show, **ids)
        except KeyboardInterrupt:
            note("the steps are imported in part; the same command continues")
            raise
        bar.print(str(report))


INSERT_EXAMPLES = example(
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
    prefix: Prefix = "",
    on_conflict: OnConflict = "error",
) -> None:
    """Store steps that are given as JSON, one step in each line.

    A line has the arguments of `ReplayBuffer.add`: task_id, step, state, actions, reward, and so
    on. A line that cannot be stored ends the command. A file is checked before its first line is
    stored; of standard input, the lines before the wrong one are stored. Lines of standard input
    without an id are new steps each time; the report says how many there were.
    """
    from sqlbuffer.interchange import insert_jsonl

    with CopyProgressBar(console()) as bar:
        report = insert_jsonl(
            source, target, buffer, prefix=prefix, on_conflict=on_conflict,
            on_progress=bar.of(buffer),
        )  # fmt: skip
        bar.print(str(report))


class CopyProgressBar:
    """Shows the progress of copies for as long as the `with` block lasts.

    Args:
        console: Where to.
    """

    def __init__(self, console: "Console") -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[steps]:,} steps, {task.fields[rate]:,.0f}/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "CopyProgressBar":
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def of(self, name: str) -> Callable[[int, int, range], None]:
        """Return what shows the progress of one buffer."""
        task = self._bars.add_task(name, total=None, steps=0, rate=0.0)

        def show(n_steps: int, seq: int, seqs: range) -> None:
            bar = next(bar for bar in self._bars.tasks if bar.id == task)
            # The first report has no earlier one to compare with.
            rate = bar.speed or n_steps / max(bar.elapsed or 0.0, 1e-9)
            self._bars.update(
                task, total=len(seqs), completed=seq - seqs.start, steps=n_steps, rate=rate
            )

        return show

    def print(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
