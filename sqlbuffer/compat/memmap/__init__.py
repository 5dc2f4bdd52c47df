"""memmap-replay-buffer on a SQL database: `memmap_replay_buffer` by another name.

Change `from memmap_replay_buffer import ReplayBuffer` to
`from sqlbuffer.compat.memmap import ReplayBuffer`. Some defects are not reproduced: a full buffer
refuses before anything is overwritten, an episode whose block raised or whose process was killed
leaves nothing behind, and several processes may write at once.
"""

from typing import Any

from sqlbuffer.compat.memmap.absent import ALTERNATIVES, absent
from sqlbuffer.compat.memmap.buffer import ReplayBuffer
from sqlbuffer.compat.memmap.collector import EpisodeCollector
from sqlbuffer.compat.memmap.concat import ConcatReplayBuffer
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapIndexError, MemmapTypeError

# These need torch, which writing does not: they are imported when they are named.
_DATASETS = [
    "ReplayDataset",
    "ReplayDatasetNStep",
    "ReplayDatasetTimeWindow",
    "ReplayDatasetTimestep",
    "ReplayDatasetTrajectory",
]
__all__ = [
    "ConcatReplayBuffer",
    "EpisodeCollector",
    "MemmapError",
    "MemmapIndexError",
    "MemmapTypeError",
    "ReplayBuffer",
    *_DATASETS,
]


def __getattr__(name: str) -> Any:
    """Return a dataset's class, or say what to use instead of the names that memmap-replay-buffer
    has and this package has not.
    """
    if name in _DATASETS:
        from sqlbuffer.compat.memmap import datasets

        return getattr(datasets, name)
    if name in ALTERNATIVES:
        raise absent(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
