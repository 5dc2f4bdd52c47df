"""The rows that are measured with: a small JSON state, 50 rows a task."""

from itertools import count, islice

from sqlbuffer import DataRow, Experience, ExpMeta
from sqlbuffer.steps import uuid7

ROWS_PER_TASK = 50
AGENTS = 100


class RowMaker:
    """Makes rows numbered on from `start`."""

    def __init__(self, start: int = 0) -> None:
        self._numbers = count(start)

    def batch(self, n: int) -> list[DataRow]:
        """Return n new rows."""
        return [_row(i) for i in islice(self._numbers, n)]

    def renumber(self, rows: list[DataRow]) -> list[DataRow]:
        """Make rows that were stored into new ones: a quarter of the cost of building them."""
        for row, i in zip(rows, self._numbers, strict=False):
            row.id = uuid7()
            row.exp_meta.task_id, row.exp_meta.step = _task(i), i
        return rows


def _row(i: int) -> DataRow:
    return DataRow(
        ExpMeta(_task(i), "bench", f"agent-{i % AGENTS}", i, float(i)),
        Experience({"i": i, "obs": [0.1, 0.2, 0.3, 0.4]}, [i % 4], reward_t=i * 0.5),
    )


def _task(i: int) -> str:
    return f"task-{i // ROWS_PER_TASK}"
