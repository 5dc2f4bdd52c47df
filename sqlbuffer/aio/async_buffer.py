"""`AsyncReplayBuffer`: each call of a buffer as a coroutine."""

import asyncio
import builtins
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlbuffer import buffer as sync
from sqlbuffer import call_threads
from sqlbuffer.aio.async_episode import AsyncEpisodeWriter
from sqlbuffer.aio.async_lease import AsyncLease
from sqlbuffer.aio.thread_calls import in_thread
from sqlbuffer.arguments import SAME, Condition, Rows, Same
from sqlbuffer.front.draw_calls import AnyConverter
from sqlbuffer.front.prioritising import EPS, PriorityUpdate
from sqlbuffer.front.write_calls import StoreResult
from sqlbuffer.rate_limits import FlowState, Policy
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.stats import Removed, Stats
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.storage.buffers.open_buffer import RETRY_S
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.waits import begin_wait


class AsyncReplayBuffer:
    """`sqlbuffer.ReplayBuffer` for asyncio: the same calls, as coroutines.

    Make one with `await AsyncReplayBuffer.open(...)`, which takes the same arguments, or wrap an
    open buffer. A cancelled call stops waiting for a rate limiter or for rows. It is not undone:
    its thread ends the statement that it has begun.

    Args:
        buffer: The buffer that does the work.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://") as buffer:
        ...         await buffer.add(state=1, actions=[0])
        ...         return await buffer.size()
        >>> asyncio.run(main())
        1
    """

    def __init__(self, buffer: sync.ReplayBuffer) -> None:
        self.sync = buffer

    @classmethod
    async def open(cls, url: Database = None, **options: Any) -> "AsyncReplayBuffer":
        """Open a buffer; arguments and errors are those of `sqlbuffer.ReplayBuffer`."""
        return cls(await in_thread(sync.ReplayBuffer, url, **options))

    async def store(self, data: DataRow, *, priority: float | None = None) -> StoreResult:
        """Store one row; see `sqlbuffer.ReplayBuffer.store`."""
        return await in_thread(self.sync.store, data, priority=priority)

    async def store_batch(
        self,
        data_batch: Iterable[DataRow],
        model_version: int | None = None,
        *,
        session_id: str | None = None,
        priority: Any = None,
    ) -> StoreResult:
        """Store rows in one transaction; see `sqlbuffer.ReplayBuffer.store_batch`."""
        return await in_thread(
            self.sync.store_batch,
            data_batch,
            model_version,
            session_id=session_id,
            priority=priority,
        )

    async def add(self, **fields: Any) -> StoreResult:
        """Store one experience given by its fields; see `sqlbuffer.ReplayBuffer.add`."""
        return await in_thread(lambda: self.sync.add(**fields))

    async def extend(
        self, arrays: Mapping[str, Any], *, casting: str = "same_kind", **keys: Any
    ) -> StoreResult:
        """Store n steps given as columns; see `sqlbuffer.ReplayBuffer.extend`."""
        return await in_thread(lambda: self.sync.extend(arrays, casting=casting, **keys))

    async def store_episode(self, arrays: Mapping[str, Any], **options: Any) -> StoreResult:
        """Store a whole episode; arguments are those of `sqlbuffer.ReplayBuffer.store_episode`."""
        return await in_thread(lambda: self.sync.store_episode(arrays, **options))

    async def episode(
        self, task_id: str | None = None, agent_id: str | None = None, **options: Any
    ) -> "AsyncEpisodeWriter":
        """Begin an episode; arguments are those of `sqlbuffer.ReplayBuffer.episode`."""
        return AsyncEpisodeWriter(
            await in_thread(lambda: self.sync.episode(task_id, agent_id, **options))
        )

    async def flush(self) -> None:
        """Store the steps of open episodes that wait."""
        await in_thread(self.sync.flush)

    async def update_priorities(
        self, seqs: Any, priorities: Any, eps: float = EPS
    ) -> PriorityUpdate:
        """Set the priorities of rows; see `sqlbuffer.ReplayBuffer.update_priorities`."""
        return await in_thread(self.sync.update_priorities, seqs, priorities, eps)

    async def annotate(self, condition_or_seqs: Any, **values: Any) -> int:
        """Give rows values that arrive late; the arguments are those of
        `sqlbuffer.ReplayBuffer.annotate`.
        """
        return await in_thread(lambda: self.sync.annotate(condition_or_seqs, **values))

    async def sample_arrays(self, batch_size: int = 256, **options: Any) -> Batch:
        """Draw rows as arrays; arguments are those of `sqlbuffer.ReplayBuffer.sample_arrays`."""
        return await in_thread(lambda: self.sync.sample_arrays(batch_size, **options))

    async def sample_transitions(self, batch_size: int = 256, **options: Any) -> Batch:
        """Draw transitions; arguments are those of `sqlbuffer.ReplayBuffer.sample_transitions`."""
        return await in_thread(lambda: self.sync.sample_transitions(batch_size, **options))

    async def loader(
        self, mode: str = "transition", batch_size: int = 256, **options: Any
    ) -> AsyncIterator[Any]:
        """Iterate over batches; arguments are those of `sqlbuffer.ReplayBuffer.loader`.

        A loader that can be resumed is `buffer.sync.loader(...)`.
        """
        loader = await in_thread(lambda: self.sync.loader(mode, batch_size, **options))
        batches = iter(loader)
        turn, cancelled = threading.Lock(), threading.Event()

        def take() -> builtins.list[Any]:
            begin_wait()  # a thread that fetches ahead may wait in its place
            with turn:
                return builtins.list(islice(batches, 1))

        def close() -> None:
            with turn:
                batches.close()

        try:
            while taken := await asyncio.wrap_future(call_threads.start(take, cancelled).future):
                yield taken[0]
        finally:
            cancelled.set()
            await asyncio.shield(in_thread(close))

    async def set_clock(self, clock: int) -> None:
        """Set the buffer's clock; see `sqlbuffer.ReplayBuffer.set_clock`."""
        await in_thread(self.sync.set_clock, clock)

    async def clock(self) -> int | None:
        """Return what `set_clock` set last; None before."""
        return await in_thread(lambda: self.sync.clock)

    async def expire(self) -> Removed:
        """Delete rows that can never be sampled again; see `sqlbuffer.ReplayBuffer.expire`."""
        return await in_thread(self.sync.expire)

    async def quarantine(self, condition_or_seqs: Rows, *, reason: str | None = None) -> int:
        """Take rows out of sampling; see `sqlbuffer.ReplayBuffer.quarantine`."""
        return await in_thread(self.sync.quarantine, condition_or_seqs, reason=reason)

    async def release(self, condition_or_seqs: Rows) -> int:
        """Put rows back into sampling; see `sqlbuffer.ReplayBuffer.release`."""
        return await in_thread(self.sync.release, condition_or_seqs)

    async def start_session(self, session_id: str | None = None) -> str:
        """Begin a session, or resume it; see `sqlbuffer.ReplayBuffer.start_session`."""
        return await in_thread(self.sync.start_session, session_id)

    async def session_id(self) -> str | None:
        """Return the key of the buffer's current session; None before any was started."""
        return await in_thread(lambda: self.sync.session_id)

    async def set_model_version(self, version: int, session_id: str | None = None) -> bool:
        """Note a model's version; see `sqlbuffer.ReplayBuffer.set_model_version`."""
        return await in_thread(self.sync.set_model_version, version, session_id)

    async def model_version(self) -> int | None:
        """Return the version of the current session's model; None before it was set."""
        return await in_thread(self.sync.model_version)

    def decode(self, arrays: bytes) -> dict[str, Any]:
        """Return the typed fields of one row; see `sqlbuffer.ReplayBuffer.decode`."""
        return self.sync.decode(arrays)

    async def sample(
        self,
        batch_size: int = 256,
        *,
        sampler: Sampler | TaskSampler | None = None,
        condition: Condition = None,
        converter: AnyConverter | None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> Any:
        """Draw a batch; see `sqlbuffer.ReplayBuffer.sample`."""
        return await in_thread(
            self.sync.sample,
            batch_size,
            sampler=sampler,
            condition=condition,
            converter=converter,
            strict=strict,
            fields=fields,
            query_condition=query_condition,
        )

    async def sample_tasks(
        self,
        n: int,
        *,
        sampler: TaskSampler | None = None,
        condition: Condition = None,
        converter: AnyConverter | None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> builtins.list[Any]:
        """Draw whole tasks; see `sqlbuffer.ReplayBuffer.sample_tasks`."""
        return await in_thread(
            self.sync.sample_tasks,
            n,
            sampler=sampler,
            condition=condition,
            converter=converter,
            strict=strict,
            fields=fields,
            query_condition=query_condition,
        )

    async def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: AnyConverter | None = None,
        batch_size: int = 1000,
    ) -> builtins.list[Any]:
        """Draw whole tasks; see `sqlbuffer.ReplayBuffer.sample_task`."""
        return await in_thread(
            self.sync.sample_task, sampler, query_condition, converter, batch_size
        )

    async def size(self, condition: Condition = None, *, query_condition: Condition = None) -> int:
        """Return how many rows match; without a condition nothing is scanned, as with `len`."""
        return await in_thread(self.sync.size, condition, query_condition=query_condition)

    async def get_all(
        self,
        condition: Condition = None,
        *,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> AsyncIterator[DataRow]:
        """Stream the rows that match; see `sqlbuffer.ReplayBuffer.get_all`."""
        pages = await in_thread(self.sync._pages, condition, query_condition, fields)
        while page := await in_thread(lambda: builtins.list(next(pages, ()))):
            for row in page:
                yield row

    async def get_paginated(
        self,
        page: int,
        page_size: int,
        condition: Condition = None,
        *,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> builtins.list[DataRow]:
        """Return one page of the rows that match; see `sqlbuffer.ReplayBuffer.get_paginated`."""
        return await in_thread(
            self.sync.get_paginated,
            page,
            page_size,
            condition,
            fields=fields,
            query_condition=query_condition,
        )

    async def get_by_task_id(
        self, task_id: str, *, fields: Sequence[str] | None = None
    ) -> builtins.list[DataRow]:
        """Return all rows of a task; see `sqlbuffer.ReplayBuffer.get_by_task_id`."""
        return await in_thread(self.sync.get_by_task_id, task_id, fields=fields)

    async def get_batch_by_task_ids(
        self, task_ids: Iterable[str], *, fields: Sequence[str] | None = None
    ) -> dict[str, builtins.list[DataRow]]:
        """Return the rows of tasks; see `sqlbuffer.ReplayBuffer.get_batch_by_task_ids`."""
        return await in_thread(self.sync.get_batch_by_task_ids, task_ids, fields=fields)

    async def delete(
        self, condition: Condition = None, *, query_condition: Condition = None
    ) -> int:
        """Delete the rows that match and return how many."""
        return await in_thread(self.sync.delete, condition, query_condition=query_condition)

    async def clear(self) -> int:
        """Delete every row and return how many there were."""
        return await in_thread(self.sync.clear)

    async def resize(
        self, max_capacity: "int | Same | None" = SAME, *, max_episodes: "int | Same | None" = SAME
    ) -> None:
        """Change the stored limits; see `sqlbuffer.ReplayBuffer.resize`."""
        await in_thread(self.sync.resize, max_capacity, max_episodes=max_episodes)

    def lease(self, n: int, **options: Any) -> AsyncLease:
        """Claim rows for the time of an `async with` block; see `sqlbuffer.ReplayBuffer.lease`."""
        return AsyncLease(self.sync.lease(n, **options))

    async def flow(self) -> FlowState:
        """Return how collectors and learners keep pace; see `sqlbuffer.ReplayBuffer.flow`."""
        return await in_thread(self.sync.flow)

    async def stats(self, window_s: float = 60.0) -> Stats:
        """Return figures of the buffer now; see `sqlbuffer.ReplayBuffer.stats`."""
        return await in_thread(self.sync.stats, window_s)

    async def set_rate_limiter(self, policy: Policy | None) -> None:
        """Change the rate limiter; see `sqlbuffer.ReplayBuffer.set_rate_limiter`."""
        await in_thread(self.sync.set_rate_limiter, policy)

    async def sql(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the select that a condition becomes."""
        return await in_thread(self.sync.sql, condition, query_condition=query_condition)

    async def explain(
        self, condition: Condition = None, *, query_condition: Condition = None
    ) -> str:
        """Return the database's plan for that select."""
        return await in_thread(self.sync.explain, condition, query_condition=query_condition)

    async def close(self) -> None:
        """Close this process's idle connections to the database."""
        await in_thread(self.sync.close)

    async def __aenter__(self) -> "AsyncReplayBuffer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    async def list(url: Database = None, *, retry_s: float = RETRY_S) -> builtins.list[str]:
        """Return the names of the buffers of a database, in order."""
        return await in_thread(sync.ReplayBuffer.list, url, retry_s=retry_s)

    @staticmethod
    async def drop(url: Database, name: str, *, retry_s: float = RETRY_S) -> None:
        """Delete a buffer and all that belongs to it."""
        await in_thread(sync.ReplayBuffer.drop, url, name, retry_s=retry_s)
