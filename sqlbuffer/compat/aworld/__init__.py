"""The calls of AWorld's `aworld.replay_buffer` on a SQL database.

Change `aworld.replay_buffer` to `sqlbuffer.compat.aworld` and `aworld.core.common` to
`sqlbuffer.compat.aworld.common`. Defects are not reproduced: every row is stored once, the
oldest row leaves first, `sample` returns a list, and each `ReplayBuffer()` has its own data.
"""

from typing import Any

from sqlbuffer.compat.alternatives import Alternatives
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
    SQLStorage,
    Storage,
    TaskSampler,
)
from sqlbuffer.compat.aworld.common import ActionModel, Observation
from sqlbuffer.compat.aworld.query_filter import QueryBuilder, QueryFilter
from sqlbuffer.compat.aworld.storage.multi_proc_mem import MultiProcMemoryStorage

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

# Names of AWorld that this package does not have.
_SQL_STORAGE = (
    'ReplayBuffer(url="postgresql://user@host/database") shares one buffer between machines, and '
    'ReplayBuffer(url="sqlite:///replay.db") keeps it in a file'
)
_INSTEAD = {
    "RedisStorage": _SQL_STORAGE,
    "OdpsStorage": f"{_SQL_STORAGE}; analysts read the view v_experiences",
    "EventReplayBuffer": (
        "make a DataRow of each message and give it to ReplayBuffer.store, or give its fields to "
        "sqlbuffer.ReplayBuffer.add"
    ),
    "ReplayBufferExporter": (
        "query the view v_experiences, or write to_dict() of the rows that "
        "sqlbuffer.ReplayBuffer.get_all() streams"
    ),
}
ALTERNATIVES = Alternatives("AWorld", _INSTEAD)


def __getattr__(name: str) -> Any:
    """Raise for the names of AWorld that this package does not have."""
    raise ALTERNATIVES.missing(__name__, name)
