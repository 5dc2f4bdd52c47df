"""The same buffer for asyncio. Each call runs in a thread, so the event loop stays free.

A call that waits for a rate limiter or for rows does not block other calls.
"""

from sqlbuffer.aio.async_buffer import AsyncReplayBuffer
from sqlbuffer.aio.async_episode import AsyncEpisodeWriter
from sqlbuffer.aio.async_lease import AsyncLease, AsyncLeasedBatch

__all__ = ["AsyncEpisodeWriter", "AsyncLease", "AsyncLeasedBatch", "AsyncReplayBuffer"]
