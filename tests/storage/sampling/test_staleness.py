"""Rows that are too old by the buffer's clock are not sampled."""

import asyncio
import math

import numpy as np
import pytest

from sqlbuffer import (
    FifoSampler,
    LatestSampler,
    QueryBuilder,
    RandomSampler,
    ReplayBuffer,
    aio,
    mix,
)
from sqlbuffer.batches.forms import WindowForm
from sqlbuffer.errors import BufferConfigError, InsufficientDataError
from sqlbuffer.query.tree import check
from sqlbuffer.samplers import TaskSampler
from tests.storage.sampling.readers import reader_of
from tests.support.limited_rows import (
    FIELDS,
    rows_of,
    steps_in,
    store_episodes,
    versions_in,
)

SAMPLERS = {
    "random": RandomSampler,
    "seeded": lambda: RandomSampler(seed=3),
    "replaced": lambda: RandomSampler(replace=True),
    "latest": LatestSampler,
    "fifo": FifoSampler,
}


@pytest.fixture
def buffer(buffer_url):
    """A buffer of rows of the versions 0 to 39, and one of none."""
    with ReplayBuffer(buffer_url, max_staleness=10) as buffer:
        buffer.store_batch(rows_of([*range(40), None]))
        yield buffer


def test_nothing_is_stale_before_the_clock_is_set(buffer):
    assert buffer.clock is None
    assert steps_in(buffer.sample(100)) == list(range(41))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_exactly_the_rows_within_the_limit_are_sampled(buffer, sampler):
    buffer.set_clock(35)
    assert buffer.clock == 35
    drawn = buffer.sample(400, sampler=SAMPLERS[sampler]())
    # Newer ones than the clock are fresh, and those of no version never stale.
    assert versions_in(drawn) == {None, *range(25, 40)}


def test_every_row_is_checked_wherever_it_stands(buffer_url):
    with ReplayBuffer(buffer_url, max_staleness=0) as buffer:
        buffer.store_batch(rows_of([7, 1, 7, None, 2, 7, 8]))
        buffer.set_clock(7)
        assert steps_in(buffer.sample(10)) == [0, 2, 3, 5, 6]


def test_the_clock_may_go_back(buffer):
    buffer.set_clock(1_000)
    assert versions_in(buffer.sample(50)) == {None}
    buffer.set_clock(20)
    assert versions_in(buffer.sample(50)) == {None, *range(10, 40)}


def test_the_clock_is_that_of_every_process_and_outlives_them(buffer, buffer_url):
    buffer.set_clock(np.int64(30))
    with ReplayBuffer(buffer_url) as other:
        assert other.clock == 30
        assert versions_in(other.sample(50)) == {None, *range(20, 40)}
        other.set_clock(45)
    assert versions_in(buffer.sample(50)) == {None, *range(35, 40)}


@pytest.mark.parametrize("clock", [2**63 - 1, -(2**63), 0, -5])
def test_the_clock_takes_any_integer_of_64_bits(buffer, clock):
    buffer.set_clock(clock)
    assert buffer.clock == clock
    assert None in versions_in(buffer.sample(50))


@pytest.mark.parametrize("clock", [None, True, 1.0, math.nan, "3", np.True_])
def test_the_clock_is_an_integer(buffer, clock):
    with pytest.raises(TypeError, match="clock is an integer"):
        buffer.set_clock(clock)
    assert buffer.clock is None


@pytest.mark.parametrize("clock", [2**63, -(2**63) - 1])
def test_the_clock_has_64_bits(buffer, clock):
    with pytest.raises(ValueError, match="64 bits"):
        buffer.set_clock(clock)


def test_the_clock_of_a_dropped_buffer_says_so(buffer, buffer_url):
    ReplayBuffer.drop(buffer_url, "default")
    for call in (lambda: buffer.set_clock(1), lambda: buffer.clock):
        with pytest.raises(KeyError, match="was dropped"):
            call()


def test_only_sampling_goes_by_it(buffer):
    buffer.set_clock(1_000)
    assert len(buffer) == buffer.size() == len(list(buffer.get_all())) == 41
    assert len(buffer.get_paginated(1, 100)) == 41
    assert len(buffer.get_by_task_id("t3")) == 1
    assert buffer.delete(QueryBuilder().lt("exp_meta.step", 5)) == 5


def test_holds_beside_a_condition(buffer):
    buffer.set_clock(35)
    even = QueryBuilder().in_("exp_meta.step", list(range(0, 41, 2))).build()
    assert steps_in(buffer.sample(100, condition=even)) == [26, 28, 30, 32, 34, 36, 38, 40]
    one = QueryBuilder().eq("exp_meta.task_id", "t3").build()
    assert buffer.sample(10, condition=one) == []


def test_a_strict_call_raises_where_too_few_are_fresh(buffer):
    buffer.set_clock(45)
    with pytest.raises(InsufficientDataError, match="asked for 7, and 6 match"):
        buffer.sample(7, strict=True)
    assert len(buffer.sample(6, strict=True)) == 6


def test_a_task_is_as_old_as_its_oldest_row(buffer_url):
    with ReplayBuffer(buffer_url, max_staleness=2) as buffer:
        buffer.store_batch(rows_of([5, 5, 5, 2, 9, 9, None, None, 1, 9], per_task=2))
        buffer.set_clock(6)
        for _ in range(3):
            tasks = buffer.sample_tasks(10)
            assert sorted(steps_in(task) for task in tasks) == [[0, 1], [4, 5], [6, 7]]
        of_last = QueryBuilder().eq("exp_meta.step", 9).build()
        assert buffer.sample_tasks(10, condition=of_last) == []
        of_third = QueryBuilder().eq("exp_meta.step", 5).build()
        assert steps_in(buffer.sample_tasks(10, condition=of_third)[0]) == [4, 5]


def test_a_stale_task_is_not_drawn_whatever_names_it(buffer_url):
    class Named(TaskSampler):
        def choose_tasks(self, candidates, batch_size):
            return ["t0", "t1"]

    with ReplayBuffer(buffer_url, max_staleness=2) as buffer:
        buffer.store_batch(rows_of([5, 1, 5, 5], per_task=2))
        buffer.set_clock(6)
        assert [steps_in(task) for task in buffer.sample_tasks(2, sampler=Named())] == [[2, 3]]


@pytest.mark.slow
def test_uniform_over_the_fresh_tasks_of_a_large_buffer(buffer_url):
    # More rows than are ranked: numbers are drawn, and kept where a task begins.
    with ReplayBuffer(buffer_url, max_staleness=0) as buffer:
        versions = [1 if (i // 8) % 4 else (1 if i % 8 else 0) for i in range(6_000)]
        buffer.store_batch(rows_of(versions, per_task=8))
        buffer.set_clock(1)
        drawn = [task[0].exp_meta.task_id for task in buffer.sample_tasks(64)]
        assert len(set(drawn)) == 64
        assert all(int(task[1:]) % 4 for task in drawn)


VERSIONS = [[3, 3, 3, 3], [3, 3, 1, 3], [1, 3, 3, 3], [None, None, 3, None], [3, 3, 3, 1], [1] * 4]


@pytest.fixture
def episodes(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_staleness=1) as buffer:
        store_episodes(buffer, VERSIONS)
        buffer.set_clock(3)
        yield buffer


def places_in(batch):
    return set(zip(batch.info["episode"].tolist(), batch.info["t"].tolist(), strict=True))


def fresh_runs(before, after):
    """Return (episode, t) of the steps with only fresh ones from t - before to t + after."""
    return {
        (f"e{number}", t)
        for number, versions in enumerate(VERSIONS)
        for t in range(4)
        if all(v is None or v >= 2 for v in versions[max(t - before, 0) : t + after + 1])
    }


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_a_transition_is_as_old_as_its_oldest_step(episodes, n_step):
    # The observation after it is a step as well, or the final one.
    batch = episodes.sample_transitions(300, n_step=n_step)
    assert places_in(batch) == fresh_runs(0, n_step)


def test_frames_before_a_transition_count(episodes):
    batch = episodes.sample_transitions(300, stack={"obs": 2})
    assert places_in(batch) == fresh_runs(1, 1)


def test_a_window_is_as_old_as_its_oldest_step(episodes):
    for length, burn_in, stack in ((2, 0, None), (2, 1, None), (1, 0, {"obs": 2})):
        loader = episodes.loader(
            "window", 200, length=length, burn_in=burn_in, stack=stack, replace=True
        )
        batch = next(iter(loader))
        assert places_in(batch) == fresh_runs(max(burn_in, 1 if stack else 0), length - 1)


@pytest.mark.parametrize("include_partial", [False, True])
def test_a_trajectory_is_as_old_as_its_oldest_step(episodes, include_partial):
    loader = episodes.loader("trajectory", 60, replace=True, include_partial=include_partial)
    assert set(next(iter(loader)).info["episode"]) == {"e0", "e3"}


def test_passes_leave_stale_rows_out(episodes):
    for mode, expected in (("step", fresh_runs(0, 0)), ("trajectory", {("e0", 0), ("e3", 0)})):
        loader = episodes.loader(mode, 3, epochs=1, seed=1)
        seqs = [seq for batch in loader for seq in batch.info["seq"].tolist()]
        places = {(f"e{(seq - 1) // 4}", (seq - 1) % 4) for seq in seqs}
        assert places == expected
        assert len(seqs) == len(expected)


def test_a_dataset_holds_what_is_fresh(episodes):
    pytest.importorskip("torch")
    from sqlbuffer import torch

    dataset = torch.Dataset(episodes, "step", info=["seq"])
    assert len(dataset) == len(fresh_runs(0, 0))
    episodes.set_clock(10)
    with pytest.raises(InsufficientDataError, match="make a new dataset"):
        dataset[0]


def test_a_mixture_goes_by_the_clock_of_each(make_database_url, episodes):
    with ReplayBuffer("sqlite://", name="other", fields=FIELDS, max_staleness=0) as other:
        store_episodes(other, [[1, 2]])
        other.set_clock(2)
        batch = mix({episodes: 0.5, other: 0.5}).sample_arrays(80)
        obs = batch.obs[batch.info["source"] == "other", 0]
        assert obs.tolist() == [1.0] * 40


def test_asyncio_sets_it_too(buffer_url):
    async def use():
        async with await aio.AsyncReplayBuffer.open(buffer_url, max_staleness=0) as buffer:
            assert await buffer.clock() is None
            await buffer.store_batch(rows_of([1, 2]))
            await buffer.set_clock(2)
            assert await buffer.clock() == 2
            return steps_in(await buffer.sample(5))

    assert asyncio.run(use()) == [1]


def test_the_limits_are_stored(buffer, buffer_url):
    with pytest.raises(BufferConfigError, match="stored with max_staleness=10"):
        ReplayBuffer(buffer_url, max_staleness=11)
    with pytest.raises(BufferConfigError, match="stored with max_use=unlimited"):
        ReplayBuffer(buffer_url, max_use=1)
    with pytest.raises(BufferConfigError, match="stored with min_size=0"):
        ReplayBuffer(buffer_url, min_size=3)


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_nothing_is_sampled_below_the_least_size(buffer_url, evict_by):
    with ReplayBuffer(buffer_url, min_size=10, evict_by=evict_by, max_capacity=50) as buffer:
        calls = [
            lambda: buffer.sample(1),
            lambda: buffer.sample_tasks(1),
            lambda: next(iter(buffer.loader("step", 1))),
            lambda: next(iter(buffer.loader("step", 1, epochs=1))),
        ]
        buffer.store_batch(rows_of([None] * 9))
        for call in calls:
            with pytest.raises(InsufficientDataError, match=r"holds 9 rows.*from 10 on"):
                call()
        assert len(list(buffer)) == 9
        buffer.store_batch(rows_of([None]))
        for call in calls:
            assert call()
        assert buffer.delete(QueryBuilder().eq("exp_meta.step", 4)) == 1
        for call in calls:  # its numbers span ten still
            with pytest.raises(InsufficientDataError, match="holds 9 rows"):
                call()


@pytest.mark.slow
def test_old_rows_are_not_asked_for_again_and_again(buffer_url):
    with ReplayBuffer(buffer_url, max_staleness=0) as buffer:
        buffer.store_batch(rows_of([0] * 4_000 + [1] * 40))
        buffer.set_clock(1)
        probed = []

        def draw():
            def choose(candidates):
                chosen = RandomSampler(replace=True).choose(candidates, 32)
                rows = candidates.rows(chosen)
                probed.append(candidates.n_probed)
                assert not candidates.has_read_keys or len(probed) == 1
                return rows

            return buffer._store.draws.draw(check(None), choose)

        for _ in range(4):
            assert {row[0] for row in draw()} <= set(range(4_001, 4_041))
        assert max(probed[1:]) <= 40
        # It holds while the clock does not go back.
        buffer.set_clock(0)
        assert min(row.exp_meta.step for row in buffer.sample(2_000)) < 4_000


def test_steps_before_the_first_that_may_be_sampled_are_read_still(buffer_url):
    # What is known to be barred bounds keys, not the steps that are read along with them.
    with ReplayBuffer(buffer_url, fields=FIELDS, max_staleness=1) as buffer:
        reader = reader_of(buffer, WindowForm, 2, 1)
        store_episodes(buffer, [[1] * 300, [1, 1, 1, 3, 3, 3]])
        buffer.set_clock(3)
        for _ in range(4):
            batch = buffer._store.draws.draw(
                check(None),
                lambda candidates: reader.draw(candidates, RandomSampler(replace=True), 16),
                reader.columns,
            )
            # The window at 3 has a stale step to warm up with.
            assert set(batch.info["t"].tolist()) == {4, 5}
