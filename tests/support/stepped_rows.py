"""Rows to store, and what is said of those that came back."""

from collections.abc import Iterable, Sequence

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder

EVERY_ROW = QueryBuilder().gt("seq", -1).build()


def make_row(
    step: int = 1,
    *,
    task: str = "t1",
    agent: str = "a1",
    id: str | None = None,
    reward: float | None = None,
    time: float | None = None,
    episode: str | None = None,
) -> DataRow:
    """Return a row; its reward and time are its step where not given."""
    execute_time = float(step) if time is None else time
    meta = ExpMeta(task, "a task", agent, step, execute_time, episode_id=episode)
    data = Experience(
        state={"step": step}, actions=[step], reward_t=float(step) if reward is None else reward
    )
    return DataRow(meta, data) if id is None else DataRow(meta, data, id)


def make_rows(
    steps: Iterable[int], *, task: str = "t1", prefix: str | None = None
) -> list[DataRow]:
    """Return a row a step, with ids `<prefix><step>` where a prefix is given."""
    return [
        make_row(step, task=task, id=None if prefix is None else f"{prefix}{step}")
        for step in steps
    ]


def steps_of(rows: Iterable[DataRow]) -> list[int]:
    return [row.exp_meta.step for row in rows]


def tasks_of(rows: Iterable[DataRow]) -> list[str]:
    return [row.exp_meta.task_id for row in rows]


def seqs_of(rows: Iterable[DataRow]) -> list[int | None]:
    return [row.seq for row in rows]


def tasks_in(tasks: Iterable[Sequence[DataRow]]) -> list[str]:
    """Return the task of each list of rows, which must be of one task each."""
    named = [set(tasks_of(task)) for task in tasks]
    assert all(len(names) == 1 for names in named)
    return [name for (name,) in named]


def step_is(step: int) -> dict[str, object]:
    return QueryBuilder().eq("exp_meta.step", step).build()


def steps_between(low: int, high: int) -> dict[str, object]:
    return QueryBuilder().between("exp_meta.step", low, high).build()
