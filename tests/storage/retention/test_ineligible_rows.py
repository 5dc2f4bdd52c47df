"""Rows of other sessions and rows in quarantine are not sampled, in whatever way."""

from contextlib import ExitStack

import pytest

from sqlbuffer import (
    FifoSampler,
    LatestSampler,
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    RandomTaskSample,
    ReplayBuffer,
    mix,
)
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.samplers import TaskSampler
from tests.storage.retention.ineligibility import BARS, OLD
from tests.support.limited_rows import FIELDS, rows_of, steps_in, store_episodes

SAMPLERS = {
    "random": RandomSampler,
    "seeded": lambda: RandomSampler(seed=3),
    "replaced": lambda: RandomSampler(replace=True),
    "latest": LatestSampler,
    "fifo": FifoSampler,
    "prioritized": PrioritizedSampler,
    "exact": lambda: PrioritizedSampler(exact=True, replace=False),
    "stratified": lambda: PrioritizedSampler(stratified=True),
}
VERSIONS = [[3, 3, 3, 3], [3, 3, 1, 3], [1, 3, 3, 3], [None, None, 3, None], [3, 3, 3, 1], [1] * 4]


def made(url, name, **options):
    """Return a buffer, to be barred by a way of that name, and how."""
    settings, bar = BARS[name]
    return ReplayBuffer(url, name=name, **{**settings, **options}), bar


@pytest.fixture
def buffers(buffer_url):
    """Buffers of 40 rows of which every third is barred, and one of no version."""
    rows = rows_of([*(1 if i % 3 == 0 else 3 for i in range(40)), None])
    with ExitStack() as stack:
        found = {}
        for name in BARS:
            buffer, bar = made(buffer_url, name, priorities=True)
            found[name] = stack.enter_context(buffer)
            buffer.store_batch(rows)
            bar(buffer)
        yield found


FREE = [i for i in range(41) if i % 3 or i == 40]


@pytest.mark.thorough
@pytest.mark.slow
def test_exactly_the_rows_that_are_not_barred_are_sampled(buffers):
    for bar, buffer in buffers.items():
        for name, sampler in SAMPLERS.items():
            drawn = buffer.sample(len(FREE) if name == "exact" else 800, sampler=sampler())
            assert sorted(set(steps_in(drawn))) == FREE, (bar, name)


@pytest.mark.thorough
def test_holds_beside_a_condition(buffers):
    early = QueryBuilder().lt("exp_meta.step", 5)
    for buffer in buffers.values():
        assert steps_in(buffer.sample(100, condition=early)) == [1, 2, 4]
        for sampler in (LatestSampler(), PrioritizedSampler(replace=False, exact=True)):
            assert steps_in(buffer.sample(3, condition=early, sampler=sampler)) == [1, 2, 4]


@pytest.mark.thorough
def test_everything_else_sees_all_rows(buffers):
    for buffer in buffers.values():
        assert len(buffer) == buffer.size() == len(list(buffer.get_all())) == 41
        assert buffer.size(OLD) == 14
        assert len(buffer.get_paginated(1, 100)) == 41
        assert len(buffer.get_by_task_id("t3")) == 1
        assert buffer.update_priorities([1, 2], 3.0).updated == 2
        assert buffer.delete(OLD) == 14
        assert steps_in(buffer.sample(100)) == FREE


def test_a_strict_call_raises_where_too_few_are_left(buffers):
    n = len(FREE)
    for buffer in buffers.values():
        assert len(buffer.sample(n, strict=True)) == n
        with pytest.raises(InsufficientDataError, match=r"not drawn: .* (session|quarantine)"):
            buffer.sample(n + 1, strict=True)


class Named(TaskSampler):
    def choose_tasks(self, candidates, batch_size):
        return ["t0", "t1", "t2"]


@pytest.mark.thorough
def test_a_task_with_a_barred_row_is_left_whole(buffer_url):
    for name in BARS:
        buffer, bar = made(buffer_url, name)
        with buffer:
            buffer.store_batch(rows_of([3, 3, 3, 1, 1, 1, None, 3], per_task=2))
            bar(buffer)
            for sampler in (RandomTaskSample(), RandomTaskSample(seed=1)):
                tasks = buffer.sample_tasks(10, sampler=sampler)
                assert sorted(map(steps_in, tasks)) == [[0, 1], [6, 7]]
            named = buffer.sample_tasks(3, sampler=Named())
            assert [steps_in(task) for task in named] == [[0, 1]]


@pytest.mark.thorough
@pytest.mark.slow
def test_uniform_over_the_free_tasks_of_a_large_buffer(buffer_url):
    # More rows than are ranked: numbers are drawn, and kept where a task begins.
    versions = [3 if (i // 8) % 4 or i % 8 else 1 for i in range(6_000)]
    buffer, bar = made(buffer_url, "all")
    with buffer:
        buffer.store_batch(rows_of(versions, per_task=8))
        bar(buffer)
        drawn = [task[0].exp_meta.task_id for task in buffer.sample_tasks(64)]
    assert len(set(drawn)) == 64
    assert all(int(task[1:]) % 4 for task in drawn)


@pytest.fixture
def stored(buffer_url):
    """Buffers of episodes of `VERSIONS`."""
    with ExitStack() as stack:
        found = []
        for name in BARS:
            buffer, bar = made(buffer_url, name, fields=FIELDS, priorities=True)
            found.append(stack.enter_context(buffer))
            store_episodes(buffer, VERSIONS)
            bar(buffer)
        yield found


def places_in(batch):
    return set(zip(batch.info["episode"].tolist(), batch.info["t"].tolist(), strict=True))


def free_runs(before, after):
    """Return (episode, t) of the steps with only free ones from t - before to t + after."""
    return {
        (f"e{number}", t)
        for number, versions in enumerate(VERSIONS)
        for t in range(4)
        if all(version != 1 for version in versions[max(t - before, 0) : t + after + 1])
    }


@pytest.mark.slow
def test_a_transition_has_no_barred_step(stored):
    # The observation after it is a step as well, or the final one.
    for buffer in stored:
        for n_step in (1, 3):
            for sampler in (None, PrioritizedSampler()):
                batch = buffer.sample_transitions(300, n_step=n_step, sampler=sampler)
                assert places_in(batch) == free_runs(0, n_step)
        batch = buffer.sample_transitions(300, stack={"obs": 2})
        assert places_in(batch) == free_runs(1, 1)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_window_has_no_barred_step(stored):
    for buffer in stored:
        for length, burn_in, stack in ((2, 0, None), (2, 1, None), (1, 0, {"obs": 2})):
            loader = buffer.loader(
                "window", 200, length=length, burn_in=burn_in, stack=stack, replace=True
            )
            expected = free_runs(max(burn_in, 1 if stack else 0), length - 1)
            assert places_in(next(iter(loader))) == expected


@pytest.mark.thorough
@pytest.mark.slow
def test_a_trajectory_has_no_barred_step(stored):
    for buffer in stored:
        for include_partial in (False, True):
            loader = buffer.loader("trajectory", 60, replace=True, include_partial=include_partial)
            assert set(next(iter(loader)).info["episode"]) == {"e0", "e3"}


@pytest.mark.thorough
@pytest.mark.slow
def test_arrays_and_mixtures_leave_barred_rows_out(stored):
    free = {4 * int(name[1:]) + t + 1 for name, t in free_runs(0, 0)}
    for buffer in stored:
        assert set(buffer.sample_arrays(300).info["seq"].tolist()) == free
        with ReplayBuffer("sqlite://", name="other", fields=FIELDS) as other:
            store_episodes(other, [[1, 2]])
            batch = mix({buffer: 0.5, other: 0.5}).sample_arrays(600)
            of_it = batch.info["source"] == buffer.name
            assert set(batch.info["seq"][of_it].tolist()) == free


def test_passes_leave_barred_rows_out(buffer_url):
    for name in ("session", "quarantine"):
        buffer, bar = made(buffer_url, name, fields=FIELDS)
        with buffer:
            store_episodes(buffer, VERSIONS)
            bar(buffer)
            for mode, free in (("step", free_runs(0, 0)), ("trajectory", {("e0", 0), ("e3", 0)})):
                loader = buffer.loader(mode, 3, epochs=1, seed=1)
                seqs = [seq for batch in loader for seq in batch.info["seq"].tolist()]
                assert sorted((f"e{(seq - 1) // 4}", (seq - 1) % 4) for seq in seqs) == sorted(free)


def steps_drawn(buffer):
    """Return the steps of a few batches, drawn as one that learns where rows may be drawn from."""
    sampler = RandomSampler(replace=True)
    batches = [buffer.sample(64, sampler=sampler) for _ in range(4)]
    return {step for batch in batches for step in steps_in(batch)}


@pytest.mark.thorough
@pytest.mark.slow
def test_what_is_known_of_barred_rows_ends_with_the_session_and_with_quarantine(buffer_url):
    options = {"current_session_only": True, "keep_expired": True}
    with ReplayBuffer(buffer_url, **options) as buffer:
        rows = rows_of([1] * 3_000)
        buffer.store_batch(rows[:2_900], session_id="a")
        buffer.store_batch(rows[2_900:], session_id="b")
        buffer.start_session("b")
        assert min(steps_drawn(buffer)) >= 2_900
        with buffer._store.source.candidates(EVERYTHING, sampled=True) as candidates:
            assert candidates.low == 2_900
        buffer.start_session("a")
        assert max(steps_drawn(buffer)) < 2_900
        buffer.quarantine(range(1, 2_801))
        assert min(steps_drawn(buffer)) >= 2_800
        buffer.release(range(1, 2_801))
        assert min(steps_drawn(buffer)) < 2_800
