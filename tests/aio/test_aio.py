"""`sqlbuffer.aio`: the same calls, from a thread."""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import numpy as np
import pytest

import sqlbuffer
from sqlbuffer import BufferConfig, DataRow, Experience, ExpMeta, QueryBuilder, RateLimiter
from sqlbuffer.aio import AsyncReplayBuffer
from tests.support.processes import run_at_once


def rows(n: int) -> list[DataRow]:
    return [
        DataRow(ExpMeta(f"t{i // 5}", None, "a", i, float(i)), Experience({"i": i}, [i]))
        for i in range(n)
    ]


def test_every_call_does_what_the_buffer_does(database_url: str) -> None:
    async def use() -> None:
        async with await AsyncReplayBuffer.open(
            database_url, max_capacity=40, create=True
        ) as buffer:
            assert (await buffer.store_batch(rows(50), model_version=3)).inserted == 50
            assert (await buffer.store(rows(1)[0])).inserted == 1
            assert (await buffer.add(state=1, actions=[2], task_id="t9")).inserted == 1
            of_t9 = QueryBuilder().eq("exp_meta.task_id", "t9").build()
            assert await buffer.size() == 40
            assert await buffer.size(of_t9) == 6
            assert len(await buffer.sample(8)) == 8
            assert len(await buffer.sample(query_condition=of_t9)) == 6
            assert len(await buffer.sample_tasks(2)) == 2
            assert len(await buffer.sample_task(batch_size=3)) == 3
            assert len([row async for row in buffer.get_all()]) == 40
            assert len(await buffer.get_paginated(2, 30)) == 10
            assert len(await buffer.get_by_task_id("t9")) == 6
            assert list(await buffer.get_batch_by_task_ids(["t9", "no"])) == ["t9", "no"]
            assert "experiences" in await buffer.sql(of_t9)
            assert await buffer.explain(of_t9)
            await buffer.resize(20)
            assert await buffer.config() == BufferConfig.of(max_capacity=20)
            assert await buffer.delete(of_t9) == 6
            assert await buffer.clear() == 14
            assert await AsyncReplayBuffer.list(database_url) == ["default"]
            await AsyncReplayBuffer.drop(database_url, "default")
            assert await AsyncReplayBuffer.list(database_url) == []

    asyncio.run(use())


def test_offers_every_public_call_of_the_buffer() -> None:
    def calls(cls: type) -> set[str]:
        return {
            name
            for name, value in inspect.getmembers(cls)
            if not name.startswith("_") and callable(value)
        }

    # Environments of gymnasium are synchronous, and their steps do not wait for the database;
    # `buffer.sync.record(env)` and `buffer.sync.vector_writer(n)` are there. A mirror draws from
    # memory.
    synchronous = calls(sqlbuffer.ReplayBuffer) - calls(AsyncReplayBuffer)
    assert synchronous == {"record", "vector_writer", "batch_source", "mirror"}


def test_takes_the_same_arguments_as_the_buffer() -> None:
    names = {name for name in vars(sqlbuffer.ReplayBuffer) if not name.startswith("_")}
    shared = sorted(name for name in names if callable(getattr(sqlbuffer.ReplayBuffer, name)))
    assert len(shared) > 40
    for name in shared:
        if name in ("record", "vector_writer", "batch_source", "mirror"):
            continue
        ours = inspect.signature(getattr(AsyncReplayBuffer, name)).parameters
        theirs = inspect.signature(getattr(sqlbuffer.ReplayBuffer, name)).parameters
        assert [str(p) for p in ours.values()] == [str(p) for p in theirs.values()], name


def test_batches_are_taken_listed_and_given_back(database_url: str) -> None:
    async def use() -> None:
        async with await AsyncReplayBuffer.open(
            database_url, create=True, leases=True, max_use=1
        ) as buffer:
            await buffer.add(state=1, actions=[0])
            await buffer.checkpoint("start", consumer="a")
            taken = await buffer.lease(1, consumer="a").take()
            (listed,) = await buffer.leases("a")
            assert listed.rows == taken.rows
            await listed.ack()
            assert await buffer.leases() == []
            assert (await buffer.restore("start", consumer="a")).n_freed == 1
            assert [mark.name for mark in await buffer.checkpoints()] == ["start"]
            assert await buffer.delete_checkpoints("a") == 1

    asyncio.run(use())


def test_a_cancelled_call_gives_back_the_work_that_it_gets(database_url: str) -> None:
    async def use() -> None:
        async with await AsyncReplayBuffer.open(database_url, create=True) as buffer:
            waiting = asyncio.create_task(buffer.work.take(2, timeout_s=60))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await buffer.work.put(["t"], group_size=2, max_attempts=1)
            taking = asyncio.create_task(buffer.work.take(2, timeout_s=60))
            await asyncio.sleep(0.0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            first, second = await buffer.work.take(2, worker="w", timeout_s=30)
            assert (first.sibling, second.task_id, first.worker) == (0, "t", "w")
            assert "AsyncWorkItem" in repr(first)
            async with await first.episode(mood="good") as episode:
                await episode.append(state=1, actions=[0])
            await second.heartbeat()
            await second.fail("no luck")
            assert await buffer.work.take() == []

    asyncio.run(use())


@pytest.mark.thorough
def test_many_agents_store_at_once(database_url: str) -> None:
    async def use() -> int:
        buffer = await AsyncReplayBuffer.open(database_url, create=True)
        await asyncio.gather(*(buffer.add(state=i, task_id=f"t{i}") for i in range(40)))
        size = await buffer.size()
        await buffer.close()
        return size

    assert asyncio.run(use()) == 40


def test_the_event_loop_goes_on_while_a_call_runs(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        buffer = await AsyncReplayBuffer.open(sqlite_url)
        released = threading.Event()

        def blocked(*_args: Any, **_options: Any) -> int:
            assert released.wait(30)
            return 7

        monkeypatch.setattr(buffer.sync, "size", blocked)
        waiting = asyncio.create_task(buffer.size())
        await asyncio.sleep(0)
        released.set()  # reached only because the loop is free
        assert await waiting == 7
        await buffer.close()

    asyncio.run(use())


def test_stores_and_draws_arrays(database_url: str) -> None:
    async def main() -> None:
        fields = {"obs": ("float32", (2,))}
        async with await AsyncReplayBuffer.open(database_url, create=True, fields=fields) as buffer:
            obs = np.arange(8, dtype=np.float32).reshape(4, 2)
            assert (await buffer.extend({"obs": obs}, task_id="t")).inserted == 4
            batch = await buffer.sample_arrays(16, fields=["obs"])
            assert set(batch.obs[:, 0]) <= {0.0, 2.0, 4.0, 6.0}
            stored = await buffer.store_episode(
                {"obs": obs, "reward": np.ones(4)}, final={"obs": obs[0]}
            )
            assert stored.inserted == 4
            transitions = await buffer.sample_transitions(16, n_step=4, gamma=1.0, skip_single=True)
            assert transitions.next_obs.shape == (16, 2)
            batches = [batch async for batch in buffer.loader("step", 3, epochs=1, shuffle=False)]
            assert [batch.n_rows for batch in batches] == [3, 3, 2]
            async for batch in buffer.loader("transition", 4, prefetch=2, skip_single=True):
                assert batch.n_rows == 4
                break
            assert buffer.decode(obs[1].tobytes())["obs"].tolist() == [2.0, 3.0]

    asyncio.run(main())


@pytest.mark.thorough
def test_a_buffer_is_copied_into_another_one(database_url: str) -> None:
    async def use() -> tuple[int, int]:
        source = await AsyncReplayBuffer.open(database_url, create=True)
        await source.add(state=1, task_id="t")
        target = await AsyncReplayBuffer.open(database_url, "copy", config=source.sync.config)
        report = await source.copy_to(target)
        size = await target.size()
        await target.close()
        await source.close()
        return report.n_steps, size

    assert asyncio.run(use()) == (1, 1)


# Calls of `sqlbuffer.aio` that wait for others keep no thread from those that do not.


N_WAITING = 64
DEADLINE_S = 25.0
SAMPLES_WAIT = RateLimiter(samples_per_insert=64.0, min_size=2)
INSERTS_WAIT = RateLimiter(samples_per_insert=1.0, min_size=1, error_buffer=4.0)


async def poll(condition: Callable[[], Awaitable[object]], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not await asyncio.wait_for(condition(), DEADLINE_S):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        await asyncio.sleep(0.05)


async def add(buffer: AsyncReplayBuffer, n: int) -> None:
    for step in range(n):
        await buffer.add(state=step, actions=[0], task_id="t", step=step)


class Samples:
    """Samples that wait for a rate limiter; rows release them."""

    options: ClassVar[dict[str, Any]] = {}

    async def prepare(self, buffer: AsyncReplayBuffer) -> None:
        # A number counts before its row can be drawn, so there are others.
        await self.release(buffer)
        await buffer.set_rate_limiter(SAMPLES_WAIT)

    async def call(self, buffer: AsyncReplayBuffer) -> int:
        return len(await buffer.sample(1))

    async def release(self, buffer: AsyncReplayBuffer) -> None:
        await add(buffer, 2)


class Loaders(Samples):
    """Loaders that wait in the same way, with a thread that fetches ahead."""

    options: ClassVar[dict[str, Any]] = {"fields": {"x": "int64"}}

    async def call(self, buffer: AsyncReplayBuffer) -> int:
        async for batch in buffer.loader("step", 1, prefetch=1):
            return len(batch.info["seq"])
        return 0

    async def release(self, buffer: AsyncReplayBuffer) -> None:
        await buffer.extend({"x": [1, 2]})


class Leases:
    """Leases that wait for rows."""

    options: ClassVar[dict[str, Any]] = {"leases": True}

    async def prepare(self, buffer: AsyncReplayBuffer) -> None:
        pass

    async def call(self, buffer: AsyncReplayBuffer) -> int:
        async with buffer.lease(1, timeout_s=DEADLINE_S) as batch:
            return len(batch)

    async def release(self, buffer: AsyncReplayBuffer) -> None:
        await add(buffer, N_WAITING)


class Flushes:
    """Writers of episodes that wait for a rate limiter one behind the other."""

    options: ClassVar[dict[str, Any]] = {"rate_limiter": INSERTS_WAIT}

    async def prepare(self, buffer: AsyncReplayBuffer) -> None:
        pass

    async def call(self, buffer: AsyncReplayBuffer) -> int:
        async with await buffer.episode() as episode:
            await episode.append(state=1, actions=[0], reward=1.0)
        return 1

    async def release(self, buffer: AsyncReplayBuffer) -> None:
        samples: set[asyncio.Task[Any]] = set()
        while (await buffer.flow()).inserted < N_WAITING:
            samples |= {asyncio.create_task(buffer.sample(1)) for _ in range(4 - len(samples))}
            # The last samples may wait for rows that nobody writes any more.
            _, samples = await asyncio.wait(samples, timeout=0.1)
        for sample in samples:
            sample.cancel()
        await asyncio.gather(*samples, return_exceptions=True)


KINDS = [Samples, Loaders, Leases, Flushes]
Waiting = Coroutine[Any, Any, int]


@asynccontextmanager
async def waiting(kind: Any, url: str) -> AsyncIterator[tuple[AsyncReplayBuffer, list[Any]]]:
    """Yield a buffer and calls that have begun to wait."""
    buffer = await AsyncReplayBuffer.open(url, wait_s=DEADLINE_S + 5, **kind.options)
    async with buffer:
        await kind().prepare(buffer)
        tasks = [asyncio.create_task(kind().call(buffer)) for _ in range(N_WAITING)]
        await asyncio.sleep(0)  # they start before what follows
        try:
            yield buffer, tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_they_wait_for_and_unrelated_threads_go_on(kind: Any, buffer_url: str) -> None:
    async def use() -> None:
        async with waiting(kind, buffer_url) as (buffer, tasks):
            assert await asyncio.wait_for(asyncio.to_thread(int), DEADLINE_S) == 0
            await asyncio.wait_for(kind().release(buffer), DEADLINE_S)
            assert await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S) == [1] * N_WAITING

    asyncio.run(use())


@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Samples, Loaders])
def test_cancelled_calls_stop_waiting(kind: Any, buffer_url: str) -> None:
    async def use() -> None:
        async with waiting(kind, buffer_url) as (buffer, tasks):

            async def all_wait() -> bool:
                return len((await buffer.flow()).waiting) == N_WAITING

            async def none_waits() -> bool:
                return not (await buffer.flow()).waiting

            await poll(all_wait, "all calls wait")
            for task in tasks:
                task.cancel()
            await poll(none_waits, "no call waits")

    asyncio.run(use())


async def count(url: str) -> int:
    async with await AsyncReplayBuffer.open(url) as buffer:
        await add(buffer, 1)
        return await buffer.size()


def count_in_child(url: str) -> int:
    return asyncio.run(count(url))


@pytest.mark.thorough
def test_a_forked_child_has_threads_of_its_own(buffer_url: str) -> None:
    assert asyncio.run(count(buffer_url)) == 1
    assert run_at_once([(count_in_child, buffer_url)]) == [2]
