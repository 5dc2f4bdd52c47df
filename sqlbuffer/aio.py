"""The same buffer for asyncio. Each call runs in a thread, so the event loop stays free.

A call that waits for a rate limiter or for rows does not block other calls.
"""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from sqlbuffer import call_threads
from sqlbuffer.arguments import LEASE_S
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.config import RETRY_S, BufferConfig, Connection, OpenerSettings
from sqlbuffer.copying import CopyReport
from sqlbuffer.episode_writer import EpisodeWriter as StepWriter
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.fields import Casting
from sqlbuffer.front.leasing import Lease as SyncLease
from sqlbuffer.front.leasing import LeasedBatch as SyncBatch
from sqlbuffer.front.work import MAX_ATTEMPTS
from sqlbuffer.front.work import Work as SyncWork
from sqlbuffer.front.work import WorkItem as SyncItem
from sqlbuffer.llm import Rollout, TokenBatch
from sqlbuffer.loading.loader import Loader
from sqlbuffer.spaces import Spaces
from sqlbuffer.steps import Batch, DataRow, takes, values_of_step
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.waits import begin_wait

__all__ = [
    "AsyncEpisodeWriter",
    "AsyncLease",
    "AsyncLeasedBatch",
    "AsyncReplayBuffer",
    "AsyncWork",
    "AsyncWorkItem",
]


P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a call in a thread and return its result; a cancelled call stops waiting for others."""
    call = call_threads.start(partial(function, *args, **kwargs))
    try:
        return await asyncio.wrap_future(call.future)
    except asyncio.CancelledError:
        call.cancel()
        raise


class AsyncEpisodeWriter:
    """`sqlbuffer.EpisodeWriter` for asyncio: `async with await buffer.episode() as episode`.

    Args:
        writer: The writer that does the work.

    Example:
        >>> import asyncio
        >>> from sqlbuffer.aio import AsyncReplayBuffer
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

    @takes(values_of_step)
    async def append(self, /, **step: Any) -> None:
        """Add a step; see `sqlbuffer.EpisodeWriter.append`."""
        await in_thread(lambda: self.sync.append(**step))

    async def end(self, *, reward: float | None = None, **final: Any) -> None:
        """End the episode and store all of it; see `sqlbuffer.EpisodeWriter.end`."""
        await in_thread(lambda: self.sync.end(reward=reward, **final))

    async def abort(self) -> None:
        """End the episode as aborted; see `sqlbuffer.EpisodeWriter.abort`."""
        await in_thread(self.sync.abort)

    async def __aenter__(self) -> AsyncEpisodeWriter:
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await in_thread(self.sync.__exit__, *exception)


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
        ...             await batch.nack()
        ...         batch = await buffer.lease(1).take()
        ...         await batch.ack()
        ...         return [row.exp_data.state for row in batch]
        >>> asyncio.run(main())
        [1]
    """

    # Attributes of the batch that `__getattr__` returns.
    rows: list[DataRow]
    groups: list[list[DataRow]]
    seqs: NDArray[np.int64]
    lease_id: str
    batch_id: int | None
    consumer: str | None
    n_skipped: int
    has_ended: bool
    remaining_s: float
    arrays: Callable[..., Batch]
    rollouts: Callable[..., list[Rollout]]
    padded: Callable[..., TokenBatch]

    def __init__(self, batch: SyncBatch) -> None:
        self.sync = batch

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    async def renew(self, lease_s: float | None = None) -> None:
        """End the lease this many seconds from now; see `sqlbuffer.LeasedBatch.renew`."""
        await in_thread(self.sync.renew, lease_s)

    async def ack(self) -> None:
        """Acknowledge the batch; see `sqlbuffer.LeasedBatch.ack`."""
        await in_thread(self.sync.ack)

    async def nack(self) -> None:
        """Give the batch back; see `sqlbuffer.LeasedBatch.nack`."""
        await in_thread(self.sync.nack)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["sync"], name)

    def __iter__(self) -> Iterator[DataRow]:
        return iter(self.sync)

    def __len__(self) -> int:
        return len(self.sync)


class AsyncLease:
    """A lease for `async with buffer.lease(n) as batch`, or for `await buffer.lease(n).take()`;
    `AsyncReplayBuffer.lease` makes it.

    A cancelled call stops waiting. A batch that it gets at that moment is given back.

    Args:
        lease: The lease that does the work.

    Example:
        >>> import asyncio
        >>> from sqlbuffer.aio import AsyncReplayBuffer
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://", leases=True) as buffer:
        ...         await buffer.add(state=1, actions=[0])
        ...         batch = await buffer.lease(1).take()
        ...         await batch.nack()
        ...         async with buffer.lease(1) as batch:
        ...             return len(batch)
        >>> asyncio.run(main())
        1
    """

    def __init__(self, lease: SyncLease) -> None:
        self.sync = lease

    async def take(self) -> AsyncLeasedBatch:
        """Claim the batch; see `sqlbuffer.front.leasing.Lease.take`."""
        call = call_threads.start(self.sync.take)
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

    async def __aenter__(self) -> AsyncLeasedBatch:
        return await self.take()

    async def __aexit__(self, *exception: Any) -> None:
        await asyncio.shield(in_thread(self.sync.__exit__, *exception))


class AsyncWorkItem:
    """`sqlbuffer.WorkItem` for asyncio: `async with await item.episode() as episode`.

    Args:
        item: The item.

    Example:
        >>> import asyncio
        >>> from sqlbuffer.aio import AsyncReplayBuffer
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://") as buffer:
        ...         await buffer.work.put(["maze"], group_size=2)
        ...         first, second = await buffer.work.take(2)
        ...         await first.heartbeat(lease_s=60)
        ...         async with await first.episode() as episode:
        ...             await episode.append(state=1, actions=[0], reward=1.0)
        ...         await second.fail("the simulator crashed")
        ...         return [item.attempt for item in await buffer.work.take(2)]
        >>> asyncio.run(main())
        [2]
    """

    # Attributes of the item that `__getattr__` returns.
    group_id: str
    sibling: int
    task_id: str
    payload: Any
    attempt: int
    max_attempts: int | None
    worker: str
    episode_id: str
    remaining_s: float

    def __init__(self, item: SyncItem) -> None:
        self.sync = item

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    async def episode(
        self,
        /,
        agent_id: str | None = None,
        *,
        model_version: int | None = None,
        session_id: str | None = None,
        parent_id: str | None = None,
        casting: Casting = "same_kind",
        **meta: Any,
    ) -> AsyncEpisodeWriter:
        """Begin the episode of the item; see `sqlbuffer.WorkItem.episode`."""
        begin = partial(
            self.sync.episode, agent_id, model_version=model_version, session_id=session_id,
            parent_id=parent_id, casting=casting, **meta,
        )  # fmt: skip
        return AsyncEpisodeWriter(await in_thread(begin))

    async def heartbeat(self, lease_s: float | None = None) -> None:
        """Extend the lease; see `sqlbuffer.WorkItem.heartbeat`."""
        await in_thread(self.sync.heartbeat, lease_s)

    async def fail(self, reason: str = "it failed", retry: bool = True) -> None:
        """End this attempt without a rollout; see `sqlbuffer.WorkItem.fail`."""
        await in_thread(self.sync.fail, reason, retry)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["sync"], name)


class AsyncWork:
    """`sqlbuffer.Work` for asyncio; `AsyncReplayBuffer.work` returns it.

    A cancelled call stops waiting. Items that it gets at that moment are given back.

    Args:
        work: The work of a buffer.

    Example:
        >>> import asyncio
        >>> from sqlbuffer.aio import AsyncReplayBuffer
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://") as buffer:
        ...         await buffer.work.put(["maze"], group_size=2)
        ...         return [item.sibling for item in await buffer.work.take(8, timeout_s=1)]
        >>> asyncio.run(main())
        [0, 1]
    """

    def __init__(self, work: SyncWork) -> None:
        self.sync = work

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    async def put(
        self,
        tasks: Iterable[str | Mapping[str, Any]],
        group_size: int = 1,
        *,
        max_attempts: int | None = MAX_ATTEMPTS,
        retry_failed: bool = False,
    ) -> int:
        """Add rollouts to play; see `sqlbuffer.Work.put`."""
        return await in_thread(
            self.sync.put, tasks, group_size, max_attempts=max_attempts, retry_failed=retry_failed
        )

    async def take(
        self,
        n: int = 1,
        *,
        worker: str | None = None,
        lease_s: float = LEASE_S,
        timeout_s: float = 0.0,
        max_ahead: int | None = None,
    ) -> list[AsyncWorkItem]:
        """Take up to n items; see `sqlbuffer.Work.take`."""
        take = partial(
            self.sync.take, n, worker=worker, lease_s=lease_s, timeout_s=timeout_s,
            max_ahead=max_ahead,
        )  # fmt: skip
        call = call_threads.start(take)
        taking = asyncio.wrap_future(call.future)
        try:
            return [AsyncWorkItem(item) for item in await asyncio.shield(taking)]
        except asyncio.CancelledError:
            call.cancel()
            with suppress(SQLBufferError):
                await in_thread(self.sync.give_back, await taking)
            raise


# Rows that one call of a thread takes from a stream.
ROWS_AT_ONCE = 200

Call = Callable[Concatenate["AsyncReplayBuffer", P], Coroutine[Any, Any, T]]


def as_coroutine(method: Callable[Concatenate[ReplayBuffer, P], T]) -> Call[P, T]:
    """Return a method of `ReplayBuffer` as a coroutine with the same arguments."""

    @wraps(method)
    async def call(self: AsyncReplayBuffer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        sync_method: Callable[P, T] = getattr(self.sync, method.__name__)
        return await in_thread(sync_method, *args, **kwargs)

    return call


def arguments_of(
    method: Callable[Concatenate[ReplayBuffer, P], Any],
) -> Callable[[Callable[..., T]], Callable[Concatenate[AsyncReplayBuffer, P], T]]:
    """Give a method the signature and the docstring of one of `ReplayBuffer`."""

    def give(function: Callable[..., T]) -> Callable[Concatenate[AsyncReplayBuffer, P], T]:
        return wraps(method)(function)

    return give


def batches_of(
    method: Callable[Concatenate[ReplayBuffer, P], Loader[T]],
    function: Callable[..., AsyncIterator[Any]],
) -> Callable[Concatenate[AsyncReplayBuffer, P], AsyncIterator[T]]:
    """Return a generator of a loader's batches, with the arguments of the method that opens it."""
    return wraps(method)(function)


class AsyncReplayBuffer:
    """`sqlbuffer.ReplayBuffer` for asyncio: the same calls, as coroutines.

    Make one with `await AsyncReplayBuffer.open(...)`, which takes the same arguments, or wrap an
    open buffer. A cancelled call stops waiting for a rate limiter or for rows. It is not undone:
    its thread ends the statement that it has begun.

    Args:
        buffer: The buffer that does the work.

    Raises:
        ArgumentError: It is not a `ReplayBuffer`.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://") as buffer:
        ...         await buffer.add(state=1, actions=[0])
        ...         await buffer.set_clock(7)
        ...         print(await buffer.size(), await buffer.clock(), await buffer.session_id())
        ...         return await buffer.config()
        >>> asyncio.run(main())
        1 7 None
        BufferConfig.of()
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.sync = checked_buffer(buffer, "buffer")

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    @classmethod
    async def open(
        cls,
        url: Database = None,
        name: str = "default",
        *,
        create: bool | None = None,
        config: BufferConfig | None = None,
        connection: Connection | None = None,
        state_type: Any = None,
        action_type: Any = None,
        **settings: Unpack[OpenerSettings],
    ) -> AsyncReplayBuffer:
        """Open a buffer; arguments and errors are those of `sqlbuffer.ReplayBuffer`."""
        return cls(
            await in_thread(
                ReplayBuffer, url, name, create=create, config=config, connection=connection,
                state_type=state_type, action_type=action_type, **settings,
            )
        )  # fmt: skip

    store = as_coroutine(ReplayBuffer.store)
    store_batch = as_coroutine(ReplayBuffer.store_batch)
    add = as_coroutine(ReplayBuffer.add)
    extend = as_coroutine(ReplayBuffer.extend)
    store_episode = as_coroutine(ReplayBuffer.store_episode)
    flush = as_coroutine(ReplayBuffer.flush)

    sample = as_coroutine(ReplayBuffer.sample)
    sample_tasks = as_coroutine(ReplayBuffer.sample_tasks)
    sample_task = as_coroutine(ReplayBuffer.sample_task)
    sample_arrays = as_coroutine(ReplayBuffer.sample_arrays)
    sample_transitions = as_coroutine(ReplayBuffer.sample_transitions)
    peek = as_coroutine(ReplayBuffer.peek)

    size = as_coroutine(ReplayBuffer.size)
    get_paginated = as_coroutine(ReplayBuffer.get_paginated)
    size_bytes = as_coroutine(ReplayBuffer.size_bytes)
    get_by_ids = as_coroutine(ReplayBuffer.get_by_ids)
    get_by_task_id = as_coroutine(ReplayBuffer.get_by_task_id)
    get_batch_by_task_ids = as_coroutine(ReplayBuffer.get_batch_by_task_ids)
    sql = as_coroutine(ReplayBuffer.sql)
    batch = as_coroutine(ReplayBuffer.batch)
    checkpoint = as_coroutine(ReplayBuffer.checkpoint)
    restore = as_coroutine(ReplayBuffer.restore)
    checkpoints = as_coroutine(ReplayBuffer.checkpoints)
    delete_checkpoints = as_coroutine(ReplayBuffer.delete_checkpoints)
    explain = as_coroutine(ReplayBuffer.explain)

    annotate = as_coroutine(ReplayBuffer.annotate)
    update_priorities = as_coroutine(ReplayBuffer.update_priorities)
    count_uses = as_coroutine(ReplayBuffer.count_uses)
    use_counts = as_coroutine(ReplayBuffer.use_counts)
    quarantine = as_coroutine(ReplayBuffer.quarantine)
    release = as_coroutine(ReplayBuffer.release)
    delete = as_coroutine(ReplayBuffer.delete)
    add_field = as_coroutine(ReplayBuffer.add_field)
    clear = as_coroutine(ReplayBuffer.clear)

    @arguments_of(ReplayBuffer.copy_to)
    async def copy_to(self, other: Any, *args: Any, **kwargs: Any) -> CopyReport:
        sync = other.sync if isinstance(other, AsyncReplayBuffer) else other
        return await in_thread(self.sync.copy_to, sync, *args, **kwargs)

    transaction = as_coroutine(ReplayBuffer.transaction)
    snapshot = as_coroutine(ReplayBuffer.snapshot)
    end_episode = as_coroutine(ReplayBuffer.end_episode)
    end_episodes = as_coroutine(ReplayBuffer.end_episodes)
    annotate_episode = as_coroutine(ReplayBuffer.annotate_episode)
    annotate_episodes = as_coroutine(ReplayBuffer.annotate_episodes)
    delete_episodes = as_coroutine(ReplayBuffer.delete_episodes)
    resize = as_coroutine(ReplayBuffer.resize)
    expire = as_coroutine(ReplayBuffer.expire)

    set_clock = as_coroutine(ReplayBuffer.set_clock)
    start_session = as_coroutine(ReplayBuffer.start_session)
    set_model_version = as_coroutine(ReplayBuffer.set_model_version)
    model_version = as_coroutine(ReplayBuffer.model_version)

    flow = as_coroutine(ReplayBuffer.flow)
    set_rate_limiter = as_coroutine(ReplayBuffer.set_rate_limiter)
    stats = as_coroutine(ReplayBuffer.stats)
    close = as_coroutine(ReplayBuffer.close)

    async def config(self) -> BufferConfig:
        """Return the settings that are stored with the buffer now."""
        return await in_thread(lambda: self.sync.config)

    async def clock(self) -> int | None:
        """Return the last value of `set_clock`, from any process; None before the first."""
        return await in_thread(lambda: self.sync.clock)

    async def session_id(self) -> str | None:
        """Return the key of the buffer's current session; None before the first session."""
        return await in_thread(lambda: self.sync.session_id)

    @property
    def spaces(self) -> Spaces | None:
        """The gymnasium spaces that are stored with the buffer; see
        `sqlbuffer.ReplayBuffer.spaces`.
        """
        return self.sync.spaces

    @property
    def work(self) -> AsyncWork:
        """Rollouts to play, as rows; see `sqlbuffer.ReplayBuffer.work`."""
        return AsyncWork(self.sync.work)

    def decode(
        self, block: bytes | bytearray | memoryview, place: int = 0, layout: int | None = None
    ) -> dict[str, Any]:
        """Return the typed fields of one step; see `sqlbuffer.ReplayBuffer.decode`."""
        return self.sync.decode(block, place, layout)

    @arguments_of(ReplayBuffer.episode)
    async def episode(self, *args: Any, **options: Any) -> AsyncEpisodeWriter:
        return AsyncEpisodeWriter(await in_thread(self.sync.episode, *args, **options))

    @arguments_of(ReplayBuffer.lease)
    def lease(self, *args: Any, **options: Any) -> AsyncLease:
        return AsyncLease(self.sync.lease(*args, **options))

    @arguments_of(ReplayBuffer.leases)
    async def leases(self, *args: Any, **options: Any) -> builtins.list[AsyncLeasedBatch]:
        def read() -> builtins.list[AsyncLeasedBatch]:
            batches = self.sync.leases(*args, **options)
            # Attributes are not awaited, so the rows are read now.
            return [AsyncLeasedBatch(batch) for batch in batches if batch.rows is not None]

        return await in_thread(read)

    async def _batches(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        # A loader that can be resumed is `buffer.sync.loader(...)`.
        loader = await in_thread(self.sync.loader, *args, **options)
        batches = iter(loader)
        turn, cancelled = threading.Lock(), threading.Event()

        def take() -> builtins.list[Any]:
            begin_wait()  # a thread that fetches ahead may wait in its place
            with turn:
                return builtins.list(islice(batches, 1))

        def close() -> None:
            with turn:
                batches.close()
                loader.close()

        try:
            while taken := await asyncio.wrap_future(call_threads.start(take, cancelled).future):
                yield taken[0]
        finally:
            cancelled.set()
            await asyncio.shield(in_thread(close))

    loader = batches_of(ReplayBuffer.loader, _batches)

    @arguments_of(ReplayBuffer.get_all)
    async def get_all(self, *args: Any, **options: Any) -> AsyncIterator[DataRow]:
        rows = await in_thread(self.sync.get_all, *args, **options)
        while some := await in_thread(lambda: builtins.list(islice(rows, ROWS_AT_ONCE))):
            for row in some:
                yield row

    def __aiter__(self) -> AsyncIterator[DataRow]:
        """Iterate over all rows as `get_all` does."""
        return self.get_all()

    async def __aenter__(self) -> AsyncReplayBuffer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    async def list(url: Database = None, *, retry_s: float = RETRY_S) -> builtins.list[str]:
        """Return the names of the buffers of a database; see `sqlbuffer.ReplayBuffer.list`."""
        return await in_thread(ReplayBuffer.list, url, retry_s=retry_s)

    @staticmethod
    async def drop(url: Database, name: str, *, retry_s: float = RETRY_S) -> None:
        """Delete a buffer with everything that belongs to it; see `sqlbuffer.ReplayBuffer.drop`."""
        await in_thread(ReplayBuffer.drop, url, name, retry_s=retry_s)
