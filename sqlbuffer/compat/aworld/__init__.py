"""The calls of AWorld's `aworld.replay_buffer` on a SQL database.

Change `aworld.replay_buffer` to `sqlbuffer.compat.aworld` and `aworld.core.common` to
`sqlbuffer.compat.aworld.common`. Defects are not reproduced: every row is stored once, the
oldest row leaves first, `sample` returns a list, and each `ReplayBuffer()` has its own data.
"""

from typing import Any

from sqlbuffer.compat.aworld.alternatives import ALTERNATIVES
from sqlbuffer.compat.aworld.base import (
    Converter,
    DataRow,
    DefaultConverter,
    Experience,
    ExpMeta,
    InMemoryStorage,
    RandomTaskSample,
    ReplayBuffer,
    Sampler,
    Storage,
    TaskSampler,
)
from sqlbuffer.compat.aworld.common import ActionModel, Observation
from sqlbuffer.compat.aworld.query_filter import QueryBuilder, QueryFilter
from sqlbuffer.compat.aworld.storage.multi_proc_mem import MultiProcMemoryStorage
from sqlbuffer.compat.aworld.storage.sql import SQLStorage

__all__ = [
    "ActionModel",
    "Converter",
    "DataRow",
    "DefaultConverter",
    "ExpMeta",
    "Experience",
    "InMemoryStorage",
    "MultiProcMemoryStorage",
    "Observation",
    "QueryBuilder",
    "QueryFilter",
    "RandomTaskSample",
    "ReplayBuffer",
    "SQLStorage",
    "Sampler",
    "Storage",
    "TaskSampler",
]


def __getattr__(name: str) -> Any:
    """Raise for the names of AWorld that this package does not have."""
    raise ALTERNATIVES.missing(__name__, name)
