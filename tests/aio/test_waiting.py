"""Calls of `sqlbuffer.aio` that wait for others keep no thread from those that do not."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from sqlbuffer import RateLimiter
from sqlbuffer.aio import AsyncReplayBuffer
from tests.support.processes import run_at_once

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


def test_a_forked_child_has_threads_of_its_own(buffer_url: str) -> None:
    assert asyncio.run(count(buffer_url)) == 1
    assert run_at_once([(count_in_child, buffer_url)]) == [2]
