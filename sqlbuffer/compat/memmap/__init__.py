"""memmap-replay-buffer on a SQL database: `memmap_replay_buffer` by another name.

Change `from memmap_replay_buffer import ReplayBuffer` to
`from sqlbuffer.compat.memmap import ReplayBuffer`. Some defects are not reproduced: a full buffer
refuses before anything is overwritten, an episode whose block raised or whose process was killed
leaves nothing behind, and several processes may write at once.
"""

from typing import Any

from sqlbuffer.compat.memmap.alternatives import ALTERNATIVES
from sqlbuffer.compat.memmap.concat_replay_buffer import ConcatReplayBuffer
from sqlbuffer.compat.memmap.datasets.loading import DATASETS, dataset_class
from sqlbuffer.compat.memmap.episode_collector import EpisodeCollector
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapIndexError, MemmapTypeError
from sqlbuffer.compat.memmap.replay_buffer import ReplayBuffer

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
    """Return a dataset's class, or say what to use instead of the names that memmap-replay-buffer
    has and this package has not.
    """
    if name in DATASETS:
        return dataset_class(name)
    if name in ALTERNATIVES:
        raise ALTERNATIVES.error(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
