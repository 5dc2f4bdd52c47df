"""AWorld's samplers, and samplers and storages that users wrote for AWorld."""

import inspect
from collections import Counter

import pytest
from scipy.stats import chisquare

from sqlbuffer.compat.aworld import (
    InMemoryStorage,
    QueryBuilder,
    RandomTaskSample,
    ReplayBuffer,
    Sampler,
    SQLStorage,
    Storage,
    TaskSampler,
)
from tests.compat.aworld.aworld_rows import row, rows, steps_of


class ListStorage(Storage):
    """A storage of a user's own, with AWorld's methods alone."""

    def __init__(self):
        self.rows = []

    def add(self, data):
        self.rows.append(data)

    def add_batch(self, data_batch):
        self.rows.extend(data_batch)

    def size(self, query_condition=None):
        return len(self.get_all(query_condition))

    def get_paginated(self, page, page_size, query_condition=None):
        return self.get_all(query_condition)[(page - 1) * page_size : page * page_size]

    def get_all(self, query_condition=None):
        from sqlbuffer.compat.aworld import QueryFilter

        return QueryFilter(query_condition).filter(self.rows)

    def get_by_task_id(self, task_id):
        return [row for row in self.rows if row.exp_meta.task_id == task_id]

    def get_bacth_by_task_ids(self, task_ids):
        return {task_id: self.get_by_task_id(task_id) for task_id in task_ids}


@pytest.fixture(params=["in_memory", "list", "sqlite", "postgresql"])
def storage(request, make_database_url):
    if request.param == "in_memory":
        return InMemoryStorage()
    if request.param == "list":
        return ListStorage()
    return SQLStorage(make_database_url(request.param, schema=True))


def tasks_of(batch):
    return sorted({row.exp_meta.task_id for task in batch for row in task})


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Sampler, "sample"),
        (TaskSampler, "sample"),
        (TaskSampler, "sample_tasks"),
        (TaskSampler, "sample_task_ids"),
        (RandomTaskSample, "sample_task_ids"),
    ],
)
def test_samplers_have_aworlds_arguments(kind, method):
    parameters = inspect.signature(getattr(kind, method)).parameters
    assert list(parameters) == ["self", "storage", "batch_size", "query_condition"]
    assert parameters["query_condition"].default is None


def test_sampler_can_be_made_but_has_no_sample():
    with pytest.raises(NotImplementedError, match=r"Sampler must define sample\(\)"):
        Sampler().sample(InMemoryStorage(), 1)


def test_task_sampler_needs_sample_task_ids():
    with pytest.raises(TypeError, match="sample_task_ids"):
        TaskSampler()


@pytest.mark.parametrize("batch_size", [3, 6, 7, 1000])
def test_all_tasks_come_back_where_there_are_no_more(storage, batch_size):
    storage.add_batch(rows(3, 2))
    ids = RandomTaskSample().sample_task_ids(storage, batch_size)
    assert sorted(ids) == ["task_0", "task_1", "task_2"]
    tasks = RandomTaskSample().sample_tasks(storage, batch_size)
    assert {task_id: len(found) for task_id, found in tasks.items()} == dict.fromkeys(ids, 2)


def test_batch_counts_tasks_and_has_no_task_twice(storage):
    storage.add_batch(rows(20, 3))
    ids = RandomTaskSample().sample_task_ids(storage, 8)
    assert len(ids) == len(set(ids)) == 8
    assert len(RandomTaskSample().sample(storage, 8)) == 8


@pytest.mark.parametrize("filled", [False, True])
def test_batch_of_none_is_empty(storage, filled):
    storage.add_batch(rows(2, 2) if filled else [])
    assert RandomTaskSample().sample(storage, 0) == []
    assert RandomTaskSample().sample_tasks(storage, 0) == {}


def test_negative_batch_is_refused(storage):
    storage.add_batch(rows(2, 2))
    with pytest.raises(ValueError, match=r"negative|n is an integer from 1 on"):
        RandomTaskSample().sample(storage, -1)


def test_empty_storage_has_an_empty_batch(storage):
    assert RandomTaskSample().sample(storage, 5) == []


def test_condition_chooses_tasks_and_all_their_rows_come_back(storage):
    storage.add_batch([row("task_1", 1, "a"), row("task_1", 2, "b"), row("task_2", 1, "b")])
    query = QueryBuilder().eq("exp_meta.agent_id", "a").build()
    (task,) = RandomTaskSample().sample(storage, 10, query)
    assert steps_of(task) == [("task_1", 1), ("task_1", 2)]


def test_task_is_sorted_by_step_then_time(storage):
    storage.add_batch(
        [row("task_1", 2), row("task_1", 1, time=9), row("task_1", 1, time=8), row("task_1", 0)]
    )
    (task,) = RandomTaskSample().sample(storage, 10)
    order = [(row.exp_meta.step, row.exp_meta.execute_time) for row in task]
    assert order == [(0, 0), (1, 8), (1, 9), (2, 2)]


def test_sorted_by_step_takes_none_and_keeps_rollouts_apart():
    mixed = [row("t", step) for step in (2, 1, 0)]
    mixed[1].exp_meta.step = None
    assert [r.exp_meta.step for r in RandomTaskSample().sorted_by_step(mixed)] == [None, 0, 2]
    rollouts = [row("t", step) for step in (0, 0, 1, 1)]
    for number, rollout in enumerate(rollouts):
        rollout.exp_meta.episode_id = "ab"[number % 2]
    sorted_rows = RandomTaskSample().sorted_by_step(rollouts)
    keys = [(r.exp_meta.episode_id, r.exp_meta.step) for r in sorted_rows]
    assert keys == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("make", [InMemoryStorage, ListStorage])
def test_long_tasks_are_drawn_no_more_often_than_short_ones(make):
    storage = make()
    storage.add_batch([row(f"task_{i}", step) for i in range(4) for step in range(1 + 40 * i)])
    drawn = Counter(RandomTaskSample().sample_task_ids(storage, 1)[0] for _ in range(800))
    assert len(drawn) == 4
    # Unseeded, so the bound is one that a right sampler passes all but once in a million runs.
    assert chisquare(list(drawn.values())).pvalue > 1e-6


class NewestTasks(TaskSampler):
    """As a user wrote it for AWorld: it overrides what chooses the ids."""

    def sample_task_ids(self, storage, batch_size, query_condition=None):
        found = [row.exp_meta.task_id for row in storage.get_all(query_condition)]
        return list(dict.fromkeys(reversed(found)))[:batch_size]


class NewestRows(Sampler):
    """As a user wrote it for AWorld: it overrides `sample`."""

    def sample(self, storage, batch_size, query_condition=None):
        return storage.get_all(query_condition)[-batch_size:]


class Reversed(RandomTaskSample):
    """As a user wrote it for AWorld: it builds on the default one."""

    def sample_task_ids(self, storage, batch_size, query_condition=None):
        ids = super().sample_task_ids(storage, batch_size, query_condition)
        return sorted(ids, reverse=True)


def test_task_samplers_written_for_aworld_work(storage):
    buffer = ReplayBuffer(storage)
    buffer.store_batch(rows(3, 2))
    assert tasks_of(buffer.sample(NewestTasks(), batch_size=2)) == ["task_1", "task_2"]
    assert tasks_of(buffer.sample_task(NewestTasks(), batch_size=1)) == ["task_2"]
    found = buffer.sample_task(sampler=Reversed())
    assert [task[0].exp_meta.task_id for task in found] == ["task_2", "task_1", "task_0"]


def test_row_samplers_written_for_aworld_work(storage):
    buffer = ReplayBuffer(storage)
    buffer.store_batch(rows(2, 2))
    assert steps_of(buffer.sample(NewestRows(), batch_size=3)) == [
        ("task_0", 1),
        ("task_1", 0),
        ("task_1", 1),
    ]
    query = QueryBuilder().eq("exp_meta.step", 0).build()
    found = buffer.sample(sampler=NewestRows(), query_condition=query)
    assert steps_of(found) == [("task_0", 0), ("task_1", 0)]


def test_ids_of_tasks_that_are_gone_are_left_out(storage):
    class Hopeful(TaskSampler):
        def sample_task_ids(self, storage, batch_size, query_condition=None):
            return ["gone", "task_0"]

    storage.add_batch(rows(1, 2))
    assert list(Hopeful().sample_tasks(storage, 10)) == ["task_0"]


def test_ids_are_drawn_without_reading_rows(monkeypatch):
    storage = InMemoryStorage()
    storage.add_batch(rows(3, 2))
    monkeypatch.delattr("sqlbuffer.encoding.records.Decoder.rows")
    assert len(storage.random_task_ids(2)) == 2
