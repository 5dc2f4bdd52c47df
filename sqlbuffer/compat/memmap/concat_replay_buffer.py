"""`memmap_replay_buffer.concat_replay_buffer` by another name."""

from sqlbuffer.compat.memmap.concat import ConcatReplayBuffer

__all__ = ["ConcatReplayBuffer"]
