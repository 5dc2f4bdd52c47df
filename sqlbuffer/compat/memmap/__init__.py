"""The calls of memmap-replay-buffer on a SQL database.

Change `from memmap_replay_buffer import ReplayBuffer` to
`from sqlbuffer.compat.memmap import ReplayBuffer`. Some defects are not reproduced. A full buffer
refuses an episode before it overwrites anything. An episode whose block raises, or whose process is
killed, leaves nothing behind. Several processes may write at the same time.
"""

from typing import Any

from sqlbuffer.compat.memmap.concat_replay_buffer import ConcatReplayBuffer
from sqlbuffer.compat.memmap.episode_collector import EpisodeCollector
from sqlbuffer.compat.memmap.errors import (
    ALTERNATIVES,
    MemmapError,
    MemmapIndexError,
    MemmapTypeError,
)
from sqlbuffer.compat.memmap.replay_buffer import DATASETS, ReplayBuffer, dataset_class

__all__ = [
    "ConcatReplayBuffer",
    "EpisodeCollector",
    "MemmapError",
    "MemmapIndexError",
    "MemmapTypeError",
    "ReplayBuffer",
    *DATASETS,
]


def __getattr__(name: str) -> Any:
    """Return the class of a dataset; raise for names that this package does not have."""
    if name in DATASETS:
        return dataset_class(name)
    raise ALTERNATIVES.missing(__name__, name)
