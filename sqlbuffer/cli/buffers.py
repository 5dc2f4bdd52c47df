"""Commands about whole buffers: `info`, `ls`, `create`, `resize`, `add-field`, `delete` and
`expire`.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import (
    BufferName,
    Condition,
    Csv,
    Equal,
    Exact,
    Json,
    Ndjson,
    Url,
    Yes,
    chosen_buffer,
    confirm,
    database,
    database_and_optional_word,
    database_and_word,
    example,
    opened,
    unknown_task,
)
from sqlbuffer.cli.output import (
    Format,
    buffers_for_people,
    chosen,
    console,
    for_people,
    note,
    note_if_measured,
    shown_url,
    write,
)
from sqlbuffer.display import shown_size
from sqlbuffer.errors import BufferNotFoundError, SchemaMissingError, SQLBufferError

if TYPE_CHECKING:
    from sqlbuffer import BufferConfig, ReplayBuffer

# The table leaves these out if no buffer has a value of them.
_RARE = (
    "expired", "used_up", "other_session", "partial", "flat", "leased", "quarantined", "clock",
    "max_staleness", "max_use", "min_size", "alpha",
)  # fmt: skip
INFO_EXAMPLES = example(
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
        with opened(database(url), buffer) as opened_buffer:
            typer.echo(opened_buffer.config.model_dump_json(indent=2))
        return
    if buffer is not None:
        raise UsageError("--buffer goes with --config; `sqlbuffer info URL` shows all buffers")
    from sqlbuffer.display import shown_size
    from sqlbuffer.storage.inspect import listings
    from sqlbuffer.storage.migrations import status

    format_, url = chosen(json=json, csv=csv, ndjson=ndjson), database(url)
    schema = status.check(url)
    answer, fields = listings.buffers_in_full(url, exact=exact), listings.fields(url)
    if format_ is not Format.TABLE:
        rows = [(*row, fields.get(row[0])) for row in answer.rows]
        write([*answer.columns, "fields"], rows, format_)
        return
    server = status.server(url)
    facts = f"{server.version}, {shown_size(server.size_bytes)}, schema {schema.revision}"
    console().print(f"{shown_url(url)}: {facts}", markup=False, soft_wrap=True)
    if not answer.rows:
        note("no buffers yet; a program makes one with ReplayBuffer(url, name=...)")
        return
    columns, shown = _without_empty_rare_columns(answer.columns, answer.rows)
    write(*buffers_for_people(columns, shown), format_)
    listed = [(name, *field.values()) for name, specs in fields.items() for field in specs]
    if listed:
        write(("buffer", "field", "level", "dtype", "shape", "comparable"), listed, format_)
    note_if_measured(answer.columns, answer.rows)
    for line in listings.unfinished_copies(url):
        note(line)


def _without_empty_rare_columns(
    columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[list[str], list[list[Any]]]:
    """Return a table without the rare columns that are empty for every buffer."""
    kept = [i for i, name in enumerate(columns) if name not in _RARE or any(row[i] for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


LS_EXAMPLES = example(
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
    chosen_name = buffer if name is None else name
    if tasks or chosen_name is not None:
        _list_tasks(url, chosen_name, limit, format_)
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
    with listings.tasks(url, buffer, limit) as listing:
        columns, rows = listing.columns[:-1], _Counted(listing.rows)
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


CREATE_EXAMPLES = example(
    "sqlbuffer create replay.db cartpole",
    "sqlbuffer create postgresql://me@db.internal/replay cartpole --config settings.json",
)
STDIN = "-"


def create(
    url: Url = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the buffer.", show_default=False),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Its settings as JSON, as `sqlbuffer info --config` prints them; - is standard "
            "input. Settings that are left out have their defaults.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a buffer, and the schema of a new SQLite file.

    An existing buffer is left as it is. If its settings equal those of the file, the command
    succeeds (exit code 0). Otherwise it lists the differences and fails (2).
    """
    from sqlbuffer import ReplayBuffer

    url, name = database_and_word(
        url, name, "which name? type `sqlbuffer create URL NAME`", may_be_new=True
    )
    settings = None if config is None else _config_of(config)
    is_there = name in _buffer_names(url)
    with ReplayBuffer(url, name, config=settings):
        state = "is there already, with these settings" if is_there else "is made"
        typer.echo(f"buffer {name!r} {state}")


def _buffer_names(url: str | None) -> list[str]:
    from sqlbuffer import ReplayBuffer

    try:
        return ReplayBuffer.list(url, retry_s=0)
    except (BufferNotFoundError, SchemaMissingError):
        return []


def _config_of(path: str) -> "BufferConfig":
    from sqlbuffer import BufferConfig

    try:
        text = sys.stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; `sqlbuffer info URL "
            f"--config` prints the settings of a buffer"
        ) from None
    shown = "standard input" if path == STDIN else path
    try:
        return BufferConfig.model_validate_json(text)
    except SQLBufferError as error:
        raise UsageError(f"{shown}: {error}") from None


RESIZE_EXAMPLES = example(
    "sqlbuffer resize sqlite:///replay.db 100000",
    "sqlbuffer resize sqlite:///replay.db unlimited --buffer cartpole",
    "sqlbuffer resize postgresql://me@db.internal/replay 1000 --buffer cartpole --yes",
    "sqlbuffer resize sqlite:///replay.db --max-age 7d --max-bytes '200 GB'",
)
UNLIMITED = "unlimited"


def resize(
    url: Url = None,
    capacity: Annotated[
        str | None,
        typer.Argument(metavar="N|unlimited", help="Largest number of rows.", show_default=False),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="AGE|unlimited",
            help="Largest age of a row, such as 7d, 12h or 90min.",
            show_default=False,
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes",
            metavar="SIZE|unlimited",
            help="Largest size of all payloads, such as '200 GB' or '500 MiB'.",
            show_default=False,
        ),
    ] = None,
    buffer: BufferName = None,
    yes: Yes = False,
) -> None:
    """Change the limits of a buffer: rows, age or size.

    A lower limit evicts the oldest rows immediately and for good, so the command asks if rows would
    leave.
    """
    question = "to what capacity? type `sqlbuffer resize URL 100000`, or `unlimited`"
    if max_age is not None or max_bytes is not None:
        url, word = database_and_optional_word(url, capacity)
    else:
        url, word = database_and_word(url, capacity, question)
    limits: dict[str, Any] = {
        name: None if value.lower() == UNLIMITED else value
        for name, value in (("max_age", max_age), ("max_bytes", max_bytes))
        if value is not None
    }
    if word is not None:
        limits["max_capacity"] = _capacity(word)
    with opened(url, buffer) as opened_buffer:
        _resize(url, opened_buffer, limits, yes=yes)


def _resize(url: str | None, buffer: "ReplayBuffer", limits: dict[str, Any], *, yes: bool) -> None:
    from sqlbuffer.config import checked_limits

    limits |= checked_limits(limits)
    rows, before = len(buffer), {name: getattr(buffer, name) for name in limits}
    leaving = _leaving(url, buffer, limits.get("max_capacity"))
    if limits.get("max_age") is not None:
        leaving = max(leaving, buffer.delete(older_than=limits["max_age"], dry_run=True))
    n_bytes = limits.get("max_bytes")
    too_large = n_bytes is not None and buffer.size_bytes() > n_bytes
    if leaving or too_large:
        whole = ", and the rest of their tasks," if buffer.evict_by == "task" else ""
        count = f"{leaving:,}" if leaving or not too_large else "some"
        confirm(f"{count} of {rows:,} rows{whole} leave buffer {buffer.name!r} for good", yes=yes)
    buffer.resize(**limits)
    left = len(buffer)
    changes = ", ".join(
        f"{_LIMITS[name]} {_shown(name, old)} -> {_shown(name, limits[name])}"
        for name, old in before.items()
    )
    typer.echo(
        f"buffer {buffer.name!r}: {changes}; {max(rows - left, 0):,} rows left it, it holds "
        f"{left:,}"
    )


ADD_FIELD_EXAMPLES = example(
    "sqlbuffer add-field sqlite:///replay.db weight --dtype float32 --default 1.0",
    "sqlbuffer add-field replay.db goal --dtype float32 --shape 3 --default '[0, 0, 0]'",
    "sqlbuffer add-field replay.db source --dtype U16 --default sim --column --buffer cartpole",
)


def add_field(
    url: Url = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the field.", show_default=False),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Its dtype, such as float32 or U16.", show_default=False)
    ] = "",
    default: Annotated[
        str | None,
        typer.Option(
            "--default",
            metavar="JSON",
            help="Its value in the steps that are stored: a number, true, a text or a list.",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        str,
        typer.Option(
            "--shape",
            metavar="N,..",
            help="Its shape, such as 84,84; -1 for a length that varies. A scalar by default.",
            show_default=False,
        ),
    ] = "",
    column: Annotated[
        bool, typer.Option("--column", help="Conditions can use the field, which is a scalar.")
    ] = False,
    buffer: BufferName = None,
) -> None:
    """Add a typed field to a buffer; its older steps have the default.

    No step is written again, and processes that use the buffer go on. If the buffer has this field
    already, the command changes nothing.
    """
    question = (
        "which field? type `sqlbuffer add-field URL NAME --dtype float32 --default 0.0`, with "
        "another dtype and default"
    )
    url, name = database_and_word(url, name, question)
    if not dtype or default is None:
        raise UsageError(question)
    declaration = {
        "dtype": dtype, "shape": _shape(shape), "default": _value(default), "column": column,
    }  # fmt: skip
    with opened(url, buffer) as opened_buffer:
        is_new = opened_buffer.add_field(name, declaration)
        n = len(opened_buffer)
        typer.echo(
            f"buffer {opened_buffer.name!r}: field {name!r} is added, {n:,} steps have the default"
            if is_new
            else f"buffer {opened_buffer.name!r} has field {name!r} already"
        )


def _shape(word: str) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in word.split(",") if n.strip())
    except ValueError:
        raise UsageError(f"--shape is integers such as 84,84, got {word!r}") from None


def _value(text: str) -> Any:
    """Return the value of JSON; what is not JSON is a text."""
    try:
        return loads(text)
    except ValueError:
        return text


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


_LIMITS = {"max_capacity": "capacity", "max_age": "age", "max_bytes": "size"}


def _shown(name: str, limit: Any) -> str:
    if limit is None:
        return UNLIMITED
    if name == "max_age":
        return f"{limit:,.0f} s"
    return f"{limit:,}" if name == "max_capacity" else shown_size(limit)


DELETE_EXAMPLES = example(
    "sqlbuffer delete sqlite:///replay.db --task task-1 --task task-2",
    "sqlbuffer delete sqlite:///replay.db --buffer cartpole --eq agent_id=a1",
    "sqlbuffer delete sqlite:///replay.db --older-than 7d --dry-run",
    "sqlbuffer delete sqlite:///replay.db --buffer cartpole --all-rows",
    "sqlbuffer delete sqlite:///replay.db --buffer cartpole --whole-buffer --yes",
)


def delete(
    url: Url = None,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK", help="Every row of this task; may be repeated."),
    ] = None,
    condition: Condition = None,
    eq: Equal = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Rows that the database wrote longer ago than this, such as 7d, 12h or 90min, by "
            "its clock (inserted_at, not execute_time). With the options above, both must hold.",
            show_default=False,
        ),
    ] = None,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Every row; the buffer stays, empty.")
    ] = False,
    whole_buffer: Annotated[
        bool,
        typer.Option("--whole-buffer", help="The buffer itself, which --buffer has to name."),
    ] = False,
    buffer: BufferName = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say how many rows and episodes would be deleted."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete rows, tasks or a whole buffer, for good.

    The command shows the number of rows and asks before it deletes. Choose rows by --task,
    --condition or --eq, --older-than, --all-rows, or --whole-buffer. With --condition and --eq
    together, both must hold.
    """
    url = database(url)
    ways = {
        "--task": bool(task),
        "--condition or --eq": condition is not None or bool(eq),
        "--older-than": older_than is not None,
        "--all-rows": all_rows,
        "--whole-buffer": whole_buffer,
    }
    named_ways = [way for way, is_given in ways.items() if is_given]
    alone = [way for way in named_ways if way != "--older-than"]
    is_excluded = older_than is not None and (all_rows or whole_buffer)
    if len(alone) > 1 or not named_ways or is_excluded:
        named = named_ways if is_excluded else alone
        problem = f"{' and '.join(named)} exclude each other;" if named else "delete what?"
        raise UsageError(f"{problem} give one of {', '.join(ways)}")
    if whole_buffer and buffer is None:
        raise UsageError("--whole-buffer wants the buffer named: give --buffer NAME as well")
    with opened(url, buffer) as chosen:
        if whole_buffer:
            _drop(url, chosen, yes=yes, dry_run=dry_run)
        elif all_rows:
            _delete(chosen, None, None, yes=yes, dry_run=dry_run)
        else:
            from sqlbuffer.query.tree import condition_of

            tree = condition_of(chosen.fields, condition, eq) if alone else None
            if task:
                _want_tasks(url, chosen, task)
                tree = {"field": "exp_meta.task_id", "op": "in", "value": task}
            _delete(chosen, tree, older_than, yes=yes, dry_run=dry_run)


def _drop(url: str | None, buffer: "ReplayBuffer", *, yes: bool, dry_run: bool) -> None:
    from sqlbuffer import ReplayBuffer

    name, rows = buffer.name, len(buffer)
    if dry_run:
        typer.echo(f"buffer {name!r} would be deleted, with {rows:,} rows; nothing was changed")
        return
    confirm(f"buffer {name!r} is deleted for good, with {rows:,} rows", yes=yes)
    ReplayBuffer.drop(url, name)
    typer.echo(f"deleted buffer {name!r} with {rows:,} rows; {_buffers_left(url)}")


def _buffers_left(url: str | None) -> str:
    from sqlbuffer import ReplayBuffer

    left = len(ReplayBuffer.list(url))
    return "it was the last one" if not left else f"{left:,} buffers are left"


def _delete(
    buffer: "ReplayBuffer", tree: Any, older_than: str | None, *, yes: bool, dry_run: bool
) -> None:
    held, is_all = len(buffer), tree is None and older_than is None
    matching, episodes = (held, 0) if is_all else buffer._changes.deletable(tree, None, older_than)
    if not matching:
        typer.echo(f"nothing to delete: no row of buffer {buffer.name!r} matches")
        return
    what = f"{matching:,} of {held:,} rows of buffer {buffer.name!r}"
    if dry_run:
        of_episodes = f", of {episodes:,} episodes," if episodes else ""
        typer.echo(f"{what}{of_episodes} would be deleted; nothing was changed")
        return
    confirm(f"{what} are deleted for good", yes=yes)
    deleted = buffer.clear() if is_all else buffer.delete(tree, older_than=older_than)
    typer.echo(f"deleted {deleted:,} rows of buffer {buffer.name!r}; {len(buffer):,} are left")


def _want_tasks(url: str | None, buffer: "ReplayBuffer", tasks: list[str]) -> None:
    """Raise for a missing task before any of the others is deleted."""
    for task in tasks:
        if not buffer.size({"field": "exp_meta.task_id", "op": "eq", "value": task}):
            raise unknown_task(url, buffer.name, task)


EXPIRE_EXAMPLES = example(
    "sqlbuffer expire sqlite:///replay.db",
    "sqlbuffer expire postgresql://me@db.internal/replay --every 45s",
    "sqlbuffer expire sqlite:///replay.db --buffer cartpole --accept-clock",
)


def expire(
    url: Url = None,
    buffer: Annotated[
        str | None,
        typer.Option(
            "--buffer",
            "-b",
            metavar="NAME",
            help="The buffer; without it all buffers of the database.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="TIME",
            help="Go on, and repeat it after this time, such as 45s, until Ctrl-C. Up to 45s, no "
            "row leaves more than a minute late.",
            show_default=False,
        ),
    ] = None,
    accept_clock: Annotated[
        bool,
        typer.Option(
            "--accept-clock",
            help="The database's clock is right now: apply max_age again, which stopped because "
            "the clock had moved.",
        ),
    ] = False,
) -> None:
    """Let rows leave that are past a limit, or never sampled again.

    Processes that write do so as well. This command is for buffers to which none writes, and for
    rows that plain SQL has written. `v_evictions` shows what left.
    """
    from sqlbuffer.checks import checked_age

    pause_s = None if every is None else checked_age(every, "--every", error=UsageError)
    url = database(url)
    chosen = None if buffer is None else chosen_buffer(url, buffer)
    is_first = True
    while True:
        for name in [chosen] if chosen is not None else _stored_names(url):
            _expire(url, name, accept_clock=accept_clock and is_first, shows_all=is_first)
        if pause_s is None:
            return
        is_first = False
        time.sleep(pause_s)


def _stored_names(url: str | None) -> list[str]:
    from sqlbuffer import ReplayBuffer
    from sqlbuffer.storage.migrations import status

    status.check(url)
    return ReplayBuffer.list(url)


def _expire(url: str | None, name: str, *, accept_clock: bool, shows_all: bool) -> None:
    from sqlbuffer import ReplayBuffer

    try:
        with ReplayBuffer(url, name, create=False, wait_s=0) as buffer:
            removed = buffer.expire(accept_clock=accept_clock)
            left = len(buffer)
    except BufferNotFoundError:  # dropped since they were listed
        note(f"buffer {name!r} is gone")
        return
    reasons = ", ".join(
        f"{n:,} {reason}"
        for reason, n in (
            ("too old", removed.aged),
            ("past max_bytes", removed.oversize),
            ("expired", removed.expired),
            ("used up", removed.used_up),
            ("of other sessions", removed.other_session),
        )
        if n
    )
    if reasons or shows_all:
        typer.echo(f"buffer {name!r}: {reasons or 'no'} rows left, it holds {left:,}")
