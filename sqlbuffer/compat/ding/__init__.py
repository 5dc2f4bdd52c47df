"""The calls of DI-engine's `ding.worker.replay_buffer` on a SQL database.

Change `from ding.worker.replay_buffer import ...` to `from sqlbuffer.compat.ding import ...`.
Without a `url` in its config a buffer is private: it starts empty and is gone with its process, as
in DI-engine. With a `url` it is stored, and every process with the same `url` shares it.
"""

from typing import Any

from sqlbuffer.compat.ding.alternatives import ALTERNATIVES
from sqlbuffer.compat.ding.buffers.advanced import AdvancedReplayBuffer
from sqlbuffer.compat.ding.buffers.elastic import ElasticReplayBuffer
from sqlbuffer.compat.ding.buffers.episode import EpisodeReplayBuffer
from sqlbuffer.compat.ding.buffers.naive import NaiveReplayBuffer
from sqlbuffer.compat.ding.buffers.sequence import SequenceReplayBuffer
from sqlbuffer.compat.ding.errors import (
    ItemError,
    MissingListError,
    PriorityError,
    ReplayConfigError,
    ReplayError,
    UnknownBufferError,
)
from sqlbuffer.compat.ding.interface import IBuffer
from sqlbuffer.compat.ding.registry import create_buffer, get_buffer_cls, register_buffer
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
