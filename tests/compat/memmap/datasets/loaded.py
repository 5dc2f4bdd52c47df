"""Buffers to try loaders on: the model, and the real one on both databases."""

from typing import Any

import numpy as np

from sqlbuffer.compat.memmap import ReplayBuffer
from tests.compat.memmap.model import Model

FIELDS = {"x": ("float", (2,), -1.0), "r": "float", "done": "bool", "v": ("float", (1,))}
META = {"task": "int", "z": ("float", 2)}
LENGTHS = (3, 1, 5)
SHAPE = {"max_episodes": 4, "max_timesteps": 6, "fields": FIELDS, "meta_fields": META}


class LoadedModel(Model):
    """The model with the loaders of the real buffer."""

    dataset = ReplayBuffer.dataset
    dataloader = ReplayBuffer.dataloader
    get_all_data = ReplayBuffer.get_all_data


def step(number: int, *, last: bool = False) -> dict[str, Any]:
    """Return a step whose values tell its number."""
    return {
        "x": np.array([number, number + 0.5], np.float32),
        "r": float(number),
        "done": last,
        "v": np.array([number], np.float32),
    }


def fill(buffer: Any, lengths: tuple[int, ...] = LENGTHS, first: int = 0) -> Any:
    """Store episodes of these lengths; the number of the step goes on from one to the next."""
    number = first
    for i, length in enumerate(lengths):
        with buffer.one_episode(task=i % 2, z=np.array([i, i], np.float32)):
            for t in range(length):
                buffer.store(**step(number, last=t == length - 1))
                number += 1
    return buffer


def first(loader: Any) -> Any:
    return next(iter(loader))


def listed(batch: Any) -> dict[str, Any]:
    return {name: value.tolist() for name, value in batch.items()}


def dtypes(batch: Any) -> dict[str, Any]:
    return {name: (value.dtype, tuple(value.shape)) for name, value in batch.items()}
