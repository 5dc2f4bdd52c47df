"""`sqlbuffer show`: print one trajectory."""

from typing import TYPE_CHECKING, Annotated

import typer

from sqlbuffer.cli.options import (
    BufferName,
    Csv,
    Json,
    Ndjson,
    Url,
    buffer_of_task,
    database_and_word,
    example,
    opened,
    unknown_episode,
    unknown_task,
)
from sqlbuffer.cli.output import Format, chosen, write

if TYPE_CHECKING:
    from sqlbuffer import DataRow


EPILOG = example(
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
    from sqlbuffer.cli.output import console, in_full
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
    with opened(url, buffer) as found:
        rows: list[DataRow] = found.get_by_task_id(task_id)
        if not rows:
            raise unknown_task(url, found.name, task_id)
        if episode is not None:
            known = dict.fromkeys(row.exp_meta.episode_id for row in rows)
            rows = [row for row in rows if row.exp_meta.episode_id == episode]
            if not rows:
                raise unknown_episode(task_id, episode, [*filter(None, known)])
        if format_ is Format.TABLE:
            print_trajectory(console(), found.name, rows)
        else:
            write(*in_full(rows, found.fields), format_)
