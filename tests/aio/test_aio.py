"""`sqlbuffer.aio`: the same calls, from a thread."""

import asyncio
import inspect
import threading
from typing import Any

import numpy as np
import pytest

import sqlbuffer
from sqlbuffer import BufferConfig, DataRow, Experience, ExpMeta, QueryBuilder
from sqlbuffer.aio import AsyncReplayBuffer


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
    # `buffer.sync.record(env)` is there. A mirror draws from memory.
    synchronous = calls(sqlbuffer.ReplayBuffer) - calls(AsyncReplayBuffer)
    assert synchronous == {"record", "batch_source", "mirror"}


def test_takes_the_same_arguments_as_the_buffer() -> None:
    names = {name for name in vars(sqlbuffer.ReplayBuffer) if not name.startswith("_")}
    shared = sorted(name for name in names if callable(getattr(sqlbuffer.ReplayBuffer, name)))
    assert len(shared) > 40
    for name in shared:
        if name in ("record", "batch_source", "mirror"):
            continue
        ours = inspect.signature(getattr(AsyncReplayBuffer, name)).parameters
        theirs = inspect.signature(getattr(sqlbuffer.ReplayBuffer, name)).parameters
        assert [str(p) for p in ours.values()] == [str(p) for p in theirs.values()], name


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
