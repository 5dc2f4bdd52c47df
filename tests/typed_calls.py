"""What mypy and pyright, both strict, say of calls as users write them; `make check` asks both.

A wrong call carries the error that it must raise: an ignore that is not needed is an error too.
Nothing here runs.
"""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from sqlbuffer import (
    Batch,
    ColumnsConverter,
    DataRow,
    LeasedBatch,
    Loader,
    RandomSampler,
    RandomTaskSample,
    ReplayBuffer,
    RowList,
    StoreResult,
    TaskList,
    fields_from_env,
    mix,
)
from sqlbuffer.aio import AsyncEpisodeWriter, AsyncReplayBuffer

Columns = dict[str, NDArray[Any]]


def first_reward(rows: list[DataRow]) -> float | None:
    return rows[0].exp_data.reward_t


def opening(env: Any) -> None:
    ReplayBuffer("replay.db", max_capacity=100, evict_by="row", durability="full")
    ReplayBuffer("replay.db", **fields_from_env(env))
    ReplayBuffer("replay.db", evict_by="rows")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ReplayBuffer("replay.db", max_capacty=9)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ReplayBuffer("replay.db", max_use="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def adding(buffer: ReplayBuffer, obs: NDArray[np.float32]) -> None:
    assert_type(buffer.add(state={"x": 1}, actions=[0], reward=1), StoreResult | None)
    buffer.add(obs=obs, reward=np.float32(1), step=np.int64(1), terminated=np.bool_(True))
    buffer.add(obs=obs, reward="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    buffer.add(obs=obs, terminated="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    buffer.add(obs=obs, step=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    buffer.add(obs)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with buffer.episode("task") as episode:
        assert_type(episode.append(obs=obs, action=1, reward=0.5), None)
        episode.append(obs=obs, reward="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    buffer.extend({"obs": obs}, task_id="task", step=np.arange(3), casting="unsafe")
    buffer.extend({"obs": obs}, task="task")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    buffer.extend({"obs": obs}, casting="safe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def sampling(buffer: ReplayBuffer, columns: ColumnsConverter) -> None:
    assert_type(buffer.sample(8), RowList[DataRow])
    assert_type(buffer.sample(8, sampler=RandomSampler(seed=1)), RowList)
    assert_type(buffer.sample(8)[0], DataRow)
    assert_type(buffer.sample(8, sampler=RandomTaskSample()), TaskList)
    assert_type(buffer.sample(8, converter=columns), Columns)
    assert_type(buffer.sample(8, converter=first_reward), float | None)
    assert_type(buffer.sample_tasks(2), TaskList)
    assert_type(buffer.sample_tasks(2, converter=columns), RowList[Columns])
    assert_type(buffer.sample_tasks(2, converter=first_reward), RowList[float | None])
    assert_type(buffer.sample_task(None, None, first_reward), RowList[float | None])
    assert_type(buffer.peek(2), list[DataRow])
    assert_type(buffer.peek(2, sampler=RandomTaskSample()), list[list[DataRow]])
    assert_type(buffer.sample_arrays(8), Batch)
    buffer.sample(8, sampler="random")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    buffer.sample_tasks(8, sampler=RandomSampler())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def loading(buffer: ReplayBuffer, other: ReplayBuffer) -> Loader:
    assert_type(buffer.loader("step", to_named_tuple=("obs",)), Loader[Any])
    buffer.loader("steps")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    buffer.loader("step", epoch=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    mixture = mix({buffer: 1, other: 0.5}, on_empty="redistribute")
    assert_type(mixture.loader("window", length=8), Loader[Batch])
    mixture.loader("step", epoch=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    mix({buffer: 1}, on_empty="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(buffer.loader("window", length=8, mirror=True), Loader[Batch])
    with buffer.mirror() as mirror, buffer.loader("trajectory", mirror=mirror) as loader:
        assert_type(loader, Loader[Batch])
        assert_type(mirror.loader("step", to_named_tuple=("obs",)), Loader[Any])
        mirror.loader("steps")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    for batch in buffer.loader("transition", 32, n_step=3, epochs=1):
        assert_type(batch, Batch)
    return buffer.loader()


def leasing(buffer: ReplayBuffer) -> None:
    with buffer.lease(4, group_by="task_id", on_partial="drop", order="fifo") as leased:
        assert_type(leased, LeasedBatch)
        assert_type(leased[0], DataRow)
        assert_type(leased[:2], list[DataRow])
        assert_type(leased.groups, list[list[DataRow]])
    buffer.lease(4, order="lifo")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    buffer.lease(4, group_by="task")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def awaiting(url: str) -> Counter[str]:
    await AsyncReplayBuffer.open(url, evict_by="rows")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with await AsyncReplayBuffer.open(url, evict_by="task") as buffer:
        assert_type(await buffer.add(state=1, task_id="t"), StoreResult | None)
        assert_type(await buffer.sample(8), RowList[DataRow])
        assert_type(await buffer.sample(8, sampler=RandomTaskSample()), TaskList)
        assert_type(await buffer.sample(8, converter=first_reward), float | None)
        assert_type(await buffer.sample_tasks(2, converter=first_reward), RowList[float | None])
        assert_type(buffer.loader("step"), AsyncIterator[Batch])
        assert_type(buffer.get_all(), AsyncIterator[DataRow])
        await buffer.add(state=1, step=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        buffer.loader("steps")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        buffer.lease(1, order="lifo")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        episode = await buffer.episode("task")
        assert_type(episode, AsyncEpisodeWriter)
        await episode.append(state=1, reward="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        async with buffer.lease(1) as leased:
            assert_type(leased.rows, list[DataRow])
            return Counter(row.exp_meta.task_id for row in leased)
