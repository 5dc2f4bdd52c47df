"""The calls of DI-engine's `ding.worker.replay_buffer` on a SQL database.

Change `from ding.worker.replay_buffer import ...` to `from sqlbuffer.compat.ding import ...`.
Without a `url` in its config a buffer is private: it starts empty and is gone with its process, as
in DI-engine. With a `url` it is stored, and every process with the same `url` shares it.
"""

from typing import Any

from sqlbuffer.compat.ding.advanced_buffer import AdvancedReplayBuffer
from sqlbuffer.compat.ding.base_buffer import (
    IBuffer,
    create_buffer,
    get_buffer_cls,
    register_buffer,
)
from sqlbuffer.compat.ding.episode_buffer import EpisodeReplayBuffer
from sqlbuffer.compat.ding.errors import (
    ALTERNATIVES,
    ItemError,
    MissingListError,
    PriorityError,
    ReplayConfigError,
    ReplayError,
    UnknownBufferError,
)
from sqlbuffer.compat.ding.naive_buffer import (
    ElasticReplayBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
)
from sqlbuffer.compat.ding.utils import (
    PeriodicThruputMonitor,
    SampledDataAttrMonitor,
    ThruputController,
    TickTime,
    UsedDataRemover,
    generate_id,
)

__all__ = [
    "AdvancedReplayBuffer",
    "ElasticReplayBuffer",
    "EpisodeReplayBuffer",
    "IBuffer",
    "ItemError",
    "MissingListError",
    "NaiveReplayBuffer",
    "PeriodicThruputMonitor",
    "PriorityError",
    "ReplayConfigError",
    "ReplayError",
    "SampledDataAttrMonitor",
    "SequenceReplayBuffer",
    "ThruputController",
    "TickTime",
    "UnknownBufferError",
    "UsedDataRemover",
    "create_buffer",
    "generate_id",
    "get_buffer_cls",
    "register_buffer",
]


def __getattr__(name: str) -> Any:
    """Raise for the names of DI-engine that this package does not have."""
    raise ALTERNATIVES.missing(__name__, name)
