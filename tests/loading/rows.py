"""Rows that loaders are tested with."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from sqlbuffer import QueryBuilder, ReplayBuffer

FIELDS = {"obs": ("float32", (2,)), "action": "int64"}


def fill(buffer: ReplayBuffer, n: int, first: int = 0, task: str = "t") -> None:
    """Store n rows whose actions are their numbers."""
    numbers = np.arange(first, first + n)
    obs = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    buffer.extend({"obs": obs, "action": numbers}, task_id=task, step=numbers)


def actions(batches: Iterable[Any]) -> list[list[int]]:
    return [[int(action) for action in batch.action] for batch in batches]


def flat(batches: Iterable[Any]) -> list[int]:
    return joined(actions(batches))


def joined(lists: Iterable[list[int]]) -> list[int]:
    return [number for numbers in lists for number in numbers]


def delete_steps(buffer: ReplayBuffer, steps: Iterable[int]) -> None:
    buffer.delete(QueryBuilder().in_("exp_meta.step", [int(step) for step in steps]).build())
