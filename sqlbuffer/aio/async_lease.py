"""Leases for asyncio."""

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

class AsyncLeasedBatch:
    """`sqlbuffer.LeasedBatch` for asyncio: what talks to the database is awaited.

    Args:
        batch: The batch.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://", leases=True) as buffer:
        ...         await buffer.add(state=1, actions=[0])
        ...         async with buffer.lease(1) as batch:
        ...             await batch.renew()
        ...             return [row.exp_data.state for row in batch]
        >>> asyncio.run(main())
        [1]
    """

    def __init__(self, batch: SyncBatch) -> None:
        self.sync = batch

    async def renew(self, lease_s: float | None = None) -> None:
        """Have the lease run out so many seconds from now; see `sqlbuffer.LeasedBatch.renew`."""
        await in_thread(self.sync.renew, lease_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["sync"], name)

    def __iter__(self) -> Iterator[DataRow]:
        return iter(self.sync)

    def __len__(self) -> int:
        return len(self.sync)


class AsyncLease:
    """What `AsyncReplayBuffer.lease` returns: `async with buffer.lease(n) as batch`.

    A cancelled wait is ended, and a batch that it gets in that moment is given back.

    Args:
        lease: The lease that does the work.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://", leases=True) as buffer:
        ...         await buffer.add(state=1, actions=[0])
        ...         async with buffer.lease(1) as batch:
        ...             return len(batch)
        >>> asyncio.run(main())
        1
    """

    def __init__(self, lease: SyncLease) -> None:
        self.sync = lease

    async def __aenter__(self) -> AsyncLeasedBatch:
        call = call_threads.start(self.sync.__enter__)
        entering = asyncio.wrap_future(call.future)
        try:
            return AsyncLeasedBatch(await asyncio.shield(entering))
        except asyncio.CancelledError:
            call.cancel()
            self.sync.cancel()
            with suppress(SQLBufferError):
                await entering
                await in_thread(
                    self.sync.__exit__, asyncio.CancelledError, asyncio.CancelledError(), None
                )
            raise

    async def __aexit__(self, *exception: Any) -> None:
        await asyncio.shield(in_thread(self.sync.__exit__, *exception))
