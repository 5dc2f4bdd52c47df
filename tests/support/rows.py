"""Rows for tests that need some."""

from typing import Any

import numpy as np

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder

TASK_0 = QueryBuilder().eq("exp_meta.task_id", "task_0")


def make_row(*, task: int = 0, step: int = 0, **meta: Any) -> DataRow:
    """Return a row of `task_<task>` with an array for a state."""
    return DataRow(
        ExpMeta(f"task_{task}", "test", "agent", step, 1_700_000_000.0 + step, **meta),
        Experience(np.full(4, step, np.float32), [step % 2], 1.0, terminated=False),
    )
