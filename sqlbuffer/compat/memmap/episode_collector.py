"""`memmap_replay_buffer.episode_collector` by another name."""

from sqlbuffer.compat.memmap.collector import EpisodeCollector

__all__ = ["EpisodeCollector"]
