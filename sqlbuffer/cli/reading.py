"""Commands that read steps: `show`, `sample` and `sql`."""

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import (
    BufferName,
    Condition,
    Csv,
    Equal,
    Json,
    Ndjson,
    Url,
    buffer_of_task,
    database,
    database_and_word,
    example,
    opened,
    unknown_episode,
    unknown_task,
)
from sqlbuffer.cli.output import (
    Format,
    chosen,
    console,
    in_brief,
    in_full,
    note,
    total_reward,
    write,
)
from sqlbuffer.errors import SchemaMissingError, StorageError, StorageReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlbuffer import DataRow

SHOW_EXAMPLES = example(
    "sqlbuffer show sqlite:///replay.db task-1",
    "sqlbuffer show replay.db task-1 --buffer cartpole --ndjson",
    "sqlbuffer show replay.db task-1 --episode rollout-7",
)


def show(
    url: Url = None,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="Its task_id, as `ls` lists it.", show_default=False),
    ] = None,
    buffer: BufferName = None,
    episode: Annotated[
        str | None,
        typer.Option(help="Only the steps of this episode_id.", show_default=False),
    ] = None,
    json: Json = False,
    csv: Csv = False,
    ndjson: Ndjson = False,
) -> None:
    """Show one trajectory, with messages as a conversation.

    Arrays and long texts of states and actions are shortened; messages are not. Messages that a
    step repeats from the step before are left out. --json, --csv and --ndjson print every row in
    full, with the argument names of ReplayBuffer.add.
    """
    from sqlbuffer.cli.trajectory import print_trajectory
    from sqlbuffer.storage.migrations import status

    format_ = chosen(json=json, csv=csv, ndjson=ndjson)
    url, task_id = database_and_word(
        url,
        task,
        "which task? type `sqlbuffer show URL TASK`; `sqlbuffer ls URL --tasks` lists them",
    )
    if buffer is None:
        status.check(url)
        buffer = buffer_of_task(url, task_id)
        if buffer is None:
            raise unknown_task(url, None, task_id)
    with opened(url, buffer) as opened_buffer:
        rows: list[DataRow] = opened_buffer.get_by_task_id(task_id)
        if not rows:
            raise unknown_task(url, opened_buffer.name, task_id)
        if episode is not None:
            known = dict.fromkeys(row.exp_meta.episode_id for row in rows)
            rows = [row for row in rows if row.exp_meta.episode_id == episode]
            if not rows:
                raise unknown_episode(task_id, episode, [*filter(None, known)])
        if format_ is Format.TABLE:
            print_trajectory(console(), opened_buffer.name, rows)
        else:
            write(*in_full(rows, opened_buffer.fields), format_)


SAMPLE_EXAMPLES = example(
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
    n: Annotated[int, typer.Option("-n", min=1, help="Rows, or tasks with --tasks.")] = 5,
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
    from sqlbuffer.query.tree import condition_of

    format_, url = chosen(json=json, csv=csv, ndjson=ndjson), database(url)
    with opened(url, buffer) as opened_buffer:
        tree = condition_of(opened_buffer.fields, condition, eq)
        if tasks:
            drawn = opened_buffer.peek(n, sampler=RandomTaskSample(seed=seed), condition=tree)
            rows, n_drawn = [row for task in drawn for row in task], len(drawn)
        else:
            drawn = []
            rows = opened_buffer.peek(n, sampler=RandomSampler(seed=seed), condition=tree)
            n_drawn = len(rows)
        name, fields = opened_buffer.name, opened_buffer.fields
        is_empty = n_drawn < n and not len(opened_buffer)
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

    first, last = task[0].exp_meta, task[-1].exp_meta
    agents = {row.exp_meta.agent_id for row in task}
    reward = total_reward(task)
    return [
        first.task_id, first.task_name, len(task), len(agents), reward, first.step, last.step
    ]  # fmt: skip


SQL_EXAMPLES = example(
    'sqlbuffer sql sqlite:///replay.db "SELECT * FROM v_tasks LIMIT 5"',
    "sqlbuffer sql replay.db --csv - < question.sql > answer.csv",
)


_NO_COLUMN = re.compile(r"no such column|column .+ does not exist")


def sql(
    url: Url = None,
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="SELECT",
            help="One statement that only reads; - reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    csv: Csv = False,
    ndjson: Ndjson = False,
) -> None:
    """Run one SQL statement that only reads, and print its result.

    The database is opened read-only. The views v_buffers, v_tasks, v_agents, v_groups and
    v_experiences are made for queries. CSV, JSON and NDJSON are written as rows arrive, in little
    memory. A table shows the first 1,000 rows on a terminal, and all rows in a file or a pipe.
    """
    from sqlbuffer.storage.database import readonly

    format_ = chosen(json=json, csv=csv, ndjson=ndjson)
    url, text = database_and_word(
        url, statement, 'which statement? type `sqlbuffer sql URL "SELECT * FROM v_tasks"`'
    )
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        raise UsageError('the statement is empty; type `sqlbuffer sql URL "SELECT ..."`')
    try:
        with readonly.asked(url, text) as answer:
            if answer.columns:
                write(answer.columns, answer.rows, format_, exact=True)
            else:
                note("the statement returns no rows")
    except StorageReadOnlyError as error:
        what, _, remedy = str(error).partition("; ")
        # And not: no right to read.
        if any(word in what for word in ("read-only", "readonly", "reading only")):
            remedy = "`sqlbuffer sql` only reads: to write, use the database's own shell"
        raise StorageReadOnlyError(f"{what}; {remedy}") from None
    except SchemaMissingError as error:
        # A misspelt table looks the same to a driver.
        raise _as_asked(url, error) from None
    except StorageError as error:
        if not _NO_COLUMN.search(str(error)):
            raise
        raise StorageError(
            f"{error}; `SELECT * FROM v_experiences LIMIT 1` shows the columns of a view; those "
            f"typed fields that SQL can read are in its column `fields`, and v_fields lists all"
        ) from None


def _as_asked(url: str | None, error: SchemaMissingError) -> StorageError:
    from sqlbuffer.storage.migrations import status
    from sqlbuffer.storage.schema.views import nearest_relation

    if status.status(url).revision is None:
        return error
    what = str(error).rpartition("; run")[0]
    near = nearest_relation(what)
    return StorageError(
        f"{what}; did you mean {near}?"
        if near
        else f"{what}; `sqlbuffer sql` finds v_buffers, v_tasks, v_agents, v_groups, v_experiences "
        "and the others of the page on views"
    )
