"""`memmap_replay_buffer.replay_buffer` by another name: `ReplayBuffer` and its datasets."""

from typing import Any

from sqlbuffer.compat import memmap
from sqlbuffer.compat.memmap.absent import absent
from sqlbuffer.compat.memmap.buffer import ReplayBuffer

_LAZY = [name for name in memmap.__all__ if name.startswith("ReplayDataset")]
__all__ = ["ReplayBuffer", *_LAZY]


def __getattr__(name: str) -> Any:
    """Return a dataset's class, which needs torch; or say what to use instead of the base class."""
    if name in _LAZY:
        return getattr(memmap, name)
    if name == "ReplayBufferBase":
        raise absent(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
