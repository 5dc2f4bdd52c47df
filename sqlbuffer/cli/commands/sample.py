"""`sqlbuffer sample`: draw a batch and show it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlbuffer.cli.options import (
    BufferName,
    Condition,
    Csv,
    Equal,
    Json,
    Ndjson,
    Url,
    database,
    example,
    opened,
)
from sqlbuffer.cli.output import Format, chosen, note, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlbuffer import DataRow

EPILOG = example(
    "sqlbuffer sample sqlite:///replay.db",
    "sqlbuffer sample replay.db -n 2 --tasks --seed 7",
    "sqlbuffer sample replay.db --eq agent_id=a1 --json",
)
_TASK_COLUMNS = (
    "task_id",
    "task_name",
    "steps",
    "agents",
    "total_reward",
    "first_step",
    "last_step",
)


def sample(
    url: Url = None,
    n: Annotated[int, typer.Option("-n", min=0, help="Rows, or tasks with --tasks.")] = 5,
    tasks: Annotated[bool, typer.Option("--tasks", "-t", help="Draw whole tasks.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Draw the same again while the rows are the same.", show_default=False
        ),
    ] = None,
    condition: Condition = None,
    eq: Equal = None,
    buffer: BufferName = None,
    json: Json = False,
    csv: Csv = False,
    ndjson: Ndjson = False,
) -> None:
    """Draw rows, or whole tasks, uniformly at random, and show them.

    The command only reads: rows that are used up, stale or in quarantine are shown too, no rate
    limiter is asked, and nothing counts as sampled.

    Tables show short payloads, and tasks in one line each. --json, --csv and --ndjson print every
    row in full.
    """
    from sqlbuffer import RandomSampler, RandomTaskSample
    from sqlbuffer.cli.output import in_brief, in_full
    from sqlbuffer.query.texts import condition_of

    format_, url = chosen(json=json, csv=csv, ndjson=ndjson), database(url)
    with opened(url, buffer) as found:
        tree = condition_of(found.fields, condition, eq)
        if tasks:
            drawn = found.peek(n, sampler=RandomTaskSample(seed=seed), condition=tree)
            rows, n_drawn = [row for task in drawn for row in task], len(drawn)
        else:
            drawn, rows = [], found.peek(n, sampler=RandomSampler(seed=seed), condition=tree)
            n_drawn = len(rows)
        name, fields = found.name, found.fields
        is_empty = n_drawn < n and not len(found)
    if format_ is not Format.TABLE:
        write(*in_full(rows, fields), format_)
    elif tasks:
        write(_TASK_COLUMNS, map(_summary, drawn), format_)
    else:
        write(*in_brief(rows, fields), format_)
    if is_empty:
        note(f"buffer {name!r} is empty")
    elif n_drawn < n:
        what, which = ("tasks" if tasks else "rows"), ("held" if tree is None else "that match")
        note(f"all {n_drawn} {what} {which} in buffer {name!r}, of {n} asked for")


def _summary(task: "Sequence[DataRow]") -> list[Any]:
    from sqlbuffer.cli.output import total_reward

    first, last = task[0].exp_meta, task[-1].exp_meta
    agents = {row.exp_meta.agent_id for row in task}
    reward = total_reward(task)
    return [
        first.task_id, first.task_name, len(task), len(agents), reward, first.step, last.step
    ]  # fmt: skip
