"""Rows whose states are arrays."""

from typing import Any

import numpy as np

from sqlbuffer import DataRow, Experience, ExpMeta


def make_array_row(*, task: int = 0, step: int = 0, **meta: Any) -> DataRow:
    """Return a step of `task_<task>`; its state is four times its number."""
    return DataRow(
        ExpMeta(f"task_{task}", "test", "agent", step, 1_700_000_000.0 + step, **meta),
        Experience(np.full(4, step, np.float32), [step % 2], 1.0, terminated=False),
    )
