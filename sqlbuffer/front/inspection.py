"""Draws for inspection: no limit holds, nothing waits, and nothing is counted or logged."""

from sqlbuffer.arguments import Condition
from sqlbuffer.front.shared import Parts
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.steps.data_rows import DataRow


def look_at_rows(buffer: Parts, n: int, sampler: Sampler, condition: Condition) -> list[DataRow]:
    """Return up to n rows that a sampler draws from all that match."""
    with buffer._store.candidates(buffer._node(condition)) as candidates:
        rows = candidates.rows(sampler.choose(candidates, n)) if n else []
    return buffer._decoder.rows(rows)


def look_at_tasks(
    buffer: Parts, n: int, sampler: TaskSampler, condition: Condition
) -> list[list[DataRow]]:
    """Return up to n tasks that a sampler draws from all of which a row matches."""
    with buffer._store.candidates(buffer._node(condition)) as candidates:
        chosen = sampler.choose_tasks(candidates, n) if n else []
    tasks = buffer._store.tasks(chosen)
    return [buffer._decoder.rows(rows) for rows in tasks.values() if rows]
