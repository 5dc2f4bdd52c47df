"""memmap-replay-buffer on a SQL database: `memmap_replay_buffer` by another name.

Change `from memmap_replay_buffer import ReplayBuffer` to
`from sqlbuffer.compat.memmap import ReplayBuffer`. What was a defect there is mended here: a full
buffer refuses before anything is overwritten, an episode whose block raised or whose process died
leaves nothing behind, and several processes may write at once.
"""

from typing import Any

from sqlbuffer.compat.memmap.absent import ALTERNATIVES, absent
from sqlbuffer.compat.memmap.buffer import ReplayBuffer
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapIndexError, MemmapTypeError

__all__ = ["MemmapError", "MemmapIndexError", "MemmapTypeError", "ReplayBuffer"]


def __getattr__(name: str) -> Any:
    """Say what to use instead of the names that memmap-replay-buffer has and this package has
    not.
    """
    if name in ALTERNATIVES:
        raise absent(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
