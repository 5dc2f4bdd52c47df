"""`AsyncLease` and `AsyncLeasedBatch`: claim rows from a coroutine."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer import call_threads
from sqlbuffer.aio.thread_calls import in_thread
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.front.leasing import Lease as SyncLease
from sqlbuffer.front.leasing import LeasedBatch as SyncBatch
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.data_rows import DataRow


class AsyncLeasedBatch:
    """`sqlbuffer.LeasedBatch` for asyncio: await the calls that talk to the database.

    Args:
        batch: The batch.

    Example:
        >>> import asyncio
        >>> from sqlbuffer.aio import AsyncReplayBuffer
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://", leases=True) as buffer:
        ...         await buffer.add(state=1, actions=[0])
        ...         async with buffer.lease(1) as batch:
        ...             await batch.renew()
        ...             return [row.exp_data.state for row in batch]
        >>> asyncio.run(main())
        [1]
    """

    # Attributes of the batch that `__getattr__` returns.
    rows: list[DataRow]
    groups: list[list[DataRow]]
    seqs: NDArray[np.int64]
    lease_id: str
    batch_id: int | None
    remaining_s: float
    arrays: Callable[..., Batch]

    def __init__(self, batch: SyncBatch) -> None:
        self.sync = batch

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    async def renew(self, lease_s: float | None = None) -> None:
        """End the lease this many seconds from now; see `sqlbuffer.LeasedBatch.renew`."""
        await in_thread(self.sync.renew, lease_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["sync"], name)

    def __iter__(self) -> Iterator[DataRow]:
        return iter(self.sync)

    def __len__(self) -> int:
        return len(self.sync)


class AsyncLease:
    """A lease for `async with buffer.lease(n) as batch`; `AsyncReplayBuffer.lease` makes it.

    A cancelled call stops waiting. A batch that it gets at that moment is given back.

    Args:
        lease: The lease that does the work.

    Example:
        >>> import asyncio
        >>> from sqlbuffer.aio import AsyncReplayBuffer
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
