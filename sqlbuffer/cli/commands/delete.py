"""`sqlbuffer delete`: delete rows, tasks or a whole buffer."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import (
    BufferName,
    Condition,
    Equal,
    Url,
    Yes,
    confirm,
    database,
    example,
    opened,
    unknown_task,
)

if TYPE_CHECKING:
    from sqlbuffer import ReplayBuffer

EPILOG = example(
    "sqlbuffer delete sqlite:///replay.db --task task-1 --task task-2",
    "sqlbuffer delete sqlite:///replay.db --buffer cartpole --eq agent_id=a1",
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
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Every row; the buffer stays, empty.")
    ] = False,
    whole_buffer: Annotated[
        bool,
        typer.Option("--whole-buffer", help="The buffer itself, which --buffer has to name."),
    ] = False,
    buffer: BufferName = None,
    yes: Yes = False,
) -> None:
    """Delete rows, tasks or a whole buffer, for good.

    The command shows the number of rows and asks before it deletes. Choose rows by --task,
    --condition or --eq, --all-rows, or --whole-buffer. With --condition and --eq together, both
    must hold.
    """
    url = database(url)
    ways = {
        "--task": bool(task),
        "--condition or --eq": condition is not None or bool(eq),
        "--all-rows": all_rows,
        "--whole-buffer": whole_buffer,
    }
    given = [way for way, is_given in ways.items() if is_given]
    if len(given) != 1:
        problem = f"{' and '.join(given)} exclude each other;" if given else "delete what?"
        raise UsageError(f"{problem} give one of {', '.join(ways)}")
    if whole_buffer and buffer is None:
        raise UsageError("--whole-buffer wants the buffer named: give --buffer NAME as well")
    with opened(url, buffer) as chosen:
        if whole_buffer:
            _drop(url, chosen, yes=yes)
        elif all_rows:
            _delete(chosen, None, yes=yes)
        else:
            from sqlbuffer.query.texts import condition_of

            tree = condition_of(chosen.fields, condition, eq)
            if task:
                _want_tasks(url, chosen, task)
                tree = {"field": "exp_meta.task_id", "op": "in", "value": task}
            _delete(chosen, tree, yes=yes)


def _drop(url: str | None, buffer: "ReplayBuffer", *, yes: bool) -> None:
    from sqlbuffer import ReplayBuffer

    name, rows = buffer.name, len(buffer)
    confirm(f"buffer {name!r} is deleted for good, with {rows:,} rows", yes=yes)
    ReplayBuffer.drop(url, name)
    typer.echo(f"deleted buffer {name!r} with {rows:,} rows; {_buffers_left(url)}")


def _buffers_left(url: str | None) -> str:
    from sqlbuffer import ReplayBuffer

    left = len(ReplayBuffer.list(url))
    return "it was the last one" if not left else f"{left:,} buffers are left"


def _delete(buffer: "ReplayBuffer", tree: Any, *, yes: bool) -> None:
    held = len(buffer)
    matching = held if tree is None else buffer.size(tree)
    if not matching:
        typer.echo(f"nothing to delete: no row of buffer {buffer.name!r} matches")
        return
    confirm(
        f"{matching:,} of {held:,} rows of buffer {buffer.name!r} are deleted for good", yes=yes
    )
    deleted = buffer.clear() if tree is None else buffer.delete(tree)
    typer.echo(f"deleted {deleted:,} rows of buffer {buffer.name!r}; {len(buffer):,} are left")


def _want_tasks(url: str | None, buffer: "ReplayBuffer", tasks: list[str]) -> None:
    """Raise for a task that is not there: one misspelt among several is better noticed before."""
    for task in tasks:
        if not buffer.size({"field": "exp_meta.task_id", "op": "eq", "value": task}):
            raise unknown_task(url, buffer.name, task)
