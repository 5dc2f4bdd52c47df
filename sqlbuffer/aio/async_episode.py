"""Episode writers for asyncio."""

import asyncio
import builtins
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from sqlbuffer import buffer as sync
from sqlbuffer import call_threads
from sqlbuffer.arguments import SAME, Condition, Rows, Same
from sqlbuffer.buffer import StoreResult
from sqlbuffer.episode_writer import EpisodeWriter as StepWriter
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.front.draw_calls import AnyConverter
from sqlbuffer.front.leasing import Lease as SyncLease
from sqlbuffer.front.leasing import LeasedBatch as SyncBatch
from sqlbuffer.front.prioritising import EPS, PriorityUpdate
from sqlbuffer.rate_limits import FlowState, Policy
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.stats import Removed, Stats
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.storage.buffers.open_buffer import RETRY_S
from sqlbuffer.waits import begin_wait
if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL
from sqlbuffer.aio.thread_calls import in_thread

class AsyncEpisodeWriter:
    """`sqlbuffer.EpisodeWriter` for asyncio: `async with await buffer.episode() as episode`.

    Args:
        writer: The writer that does the work.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://") as buffer:
        ...         async with await buffer.episode("task-1") as episode:
        ...             await episode.append(state="hello", actions=["say"], reward=1.0)
        ...         return await buffer.size()
        >>> asyncio.run(main())
        1
    """

    def __init__(self, writer: StepWriter) -> None:
        self.sync = writer

    async def append(self, **step: Any) -> None:
        """Add a step; see `sqlbuffer.EpisodeWriter.append`."""
        await in_thread(lambda: self.sync.append(**step))

    async def end(self, **final: Any) -> None:
        """End the episode and store all of it; see `sqlbuffer.EpisodeWriter.end`."""
        await in_thread(lambda: self.sync.end(**final))

    async def abort(self) -> None:
        """End the episode as one that went wrong."""
        await in_thread(self.sync.abort)

    async def __aenter__(self) -> "AsyncEpisodeWriter":
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await in_thread(self.sync.__exit__, *exception)
