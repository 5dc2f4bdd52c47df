"""A row is sampled so often and no more, by however many learners."""

import os
import random
import signal
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

from sqlbuffer import (
    FifoSampler,
    LatestSampler,
    QueryBuilder,
    RandomSampler,
    RateLimiter,
    ReplayBuffer,
    mix,
)
from sqlbuffer.errors import BufferConfigError, InsufficientDataError
from sqlbuffer.samplers import Sampler
from sqlbuffer.storage import use_counts
from sqlbuffer.storage.use_counts import claim_uses
from tests.support.limited_rows import (
    FIELDS,
    arrays_of,
    rows_of,
    steps_in,
    store_episodes,
    uses_in,
)
from tests.support.processes import run_at_once, running, wait_until
from tests.support.sql import buffer_id, connected, run, scalar, stored_rows
from tests.support.stepped_rows import seqs_of
from tests.support.torch_workers import drain
from tests.support.typed_buffer import both_layouts, table_of


@pytest.fixture
def buffer(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_use=2) as buffer:
        buffer.store_batch(rows_of([None] * 20))
        yield buffer


@pytest.mark.parametrize(
    "sampler", [RandomSampler, LatestSampler, FifoSampler, lambda: RandomSampler(seed=1)]
)
def test_each_row_is_sampled_as_often_as_it_may_be(buffer, buffer_url, sampler):
    drawn = Counter(seq for _ in range(9) for seq in seqs_of(buffer.sample(7, sampler=sampler())))
    assert drawn == uses_in(buffer_url) == dict.fromkeys(range(1, 21), 2)
    assert buffer.sample(7, sampler=sampler()) == []


@both_layouts
def test_the_order_of_a_sampler_is_kept(buffer):
    assert steps_in(buffer.sample(15, sampler=FifoSampler())) == list(range(15))
    assert steps_in(buffer.sample(8, sampler=FifoSampler())) == list(range(8))
    assert [row.exp_meta.step for row in buffer.sample(3, sampler=FifoSampler())] == [8, 9, 10]
    assert [row.exp_meta.step for row in buffer.sample(3, sampler=LatestSampler())] == [19, 18, 17]


def test_a_row_twice_in_a_batch_is_used_twice(buffer, buffer_url):
    batch = buffer.sample(40, sampler=RandomSampler(replace=True))
    assert Counter(seqs_of(batch)) == uses_in(buffer_url) == dict.fromkeys(range(1, 21), 2)


def test_a_seeded_sampler_repeats_its_batches(both_urls):
    drawn = []
    for url in both_urls.values():
        with ReplayBuffer(url, max_use=2) as buffer:
            buffer.store_batch(rows_of([None] * 60))
            sampler = RandomSampler(seed=5)
            drawn.append([seqs_of(buffer.sample(11, sampler=sampler)) for _ in range(9)])
    assert drawn[0] == drawn[1]


@pytest.mark.thorough
def test_what_raises_counts_nothing(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_use=2) as buffer:
        buffer.store_episode(arrays_of(10), final={"obs": [1.0]})
        calls = [
            lambda: buffer.sample_arrays(21),
            lambda: buffer.sample_transitions(21),
            lambda: buffer.sample(11, strict=True),
            lambda: buffer.sample_tasks(2, strict=True),
            lambda: next(iter(buffer.loader("step", 21, replace=True))),
            lambda: next(iter(buffer.loader("window", 4, length=5, stride=5))),
        ]
        for call in calls:
            with pytest.raises(InsufficientDataError, match="asked for"):
                call()
            assert not uses_in(buffer_url)
        assert buffer.sample_arrays(20).n_rows == 20
        assert sum(uses_in(buffer_url).values()) == 20


@both_layouts
def test_only_sampling_counts_and_is_limited(buffer, buffer_url):
    buffer.sample(20)
    buffer.sample(20)
    assert len(buffer) == len(list(buffer)) == len(buffer.get_paginated(1, 50)) == 20
    assert len(buffer.get_by_task_id("t4")) == 1
    assert sum(uses_in(buffer_url).values()) == 40
    buffer.store_batch(rows_of([None]))
    assert seqs_of(buffer.sample(5)) == [21]


def test_nothing_is_counted_without_a_limit(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(rows_of([None] * 5))
        buffer.sample(5)
    assert not uses_in(buffer_url)


@both_layouts
def test_holds_beside_a_condition(buffer, buffer_url):
    low = QueryBuilder().lt("exp_meta.step", 3).build()
    assert [len(buffer.sample(5, condition=low)) for _ in range(3)] == [3, 3, 0]
    assert uses_in(buffer_url) == {1: 2, 2: 2, 3: 2}


@both_layouts
def test_a_task_uses_each_of_its_rows_and_is_drawn_whole(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_use=2) as buffer:
        buffer.store_batch(rows_of([None] * 12, per_task=3))
        first = QueryBuilder().eq("exp_meta.step", 4).build()
        buffer.sample(1, condition=first)
        assert len(buffer.sample_tasks(10)) == 4
        # One row of the second was used twice by now.
        assert [len(task) for task in buffer.sample_tasks(10)] == [3, 3, 3]
        assert buffer.sample_tasks(10) == []
        assert uses_in(buffer_url) == {seq: 1 if seq in (4, 6) else 2 for seq in range(1, 13)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "options", "keys"),
    [
        ("transition", {"n_step": 2}, range(1, 17)),
        ("window", {"length": 4, "stride": 4}, (1, 5, 9, 13)),
        ("trajectory", {}, (1, 9)),
    ],
)
def test_things_of_several_steps_use_their_first_one(buffer_url, mode, options, keys):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_use=1) as buffer:
        store_episodes(buffer, [[1] * 8, [1] * 8])
        batches = iter(buffer.loader(mode, 2, **options))
        seqs = [seq for _ in range(len(keys) // 2) for seq in next(batches).info["seq"].tolist()]
        assert sorted(seqs) == list(keys)
        assert uses_in(buffer_url) == dict.fromkeys(keys, 1)
        with pytest.raises(InsufficientDataError):
            next(iter(buffer.loader(mode, 1, **options)))


def test_passes_and_datasets_are_refused(buffer):
    for options in ({"epochs": 1}, {"shuffle": False}):
        with pytest.raises(BufferConfigError, match="use loader\\(\\) without epochs"):
            buffer.loader("step", 2, **options)
    pytest.importorskip("torch")
    from sqlbuffer import torch

    with pytest.raises(BufferConfigError, match="a dataset of numbers"):
        torch.Dataset(buffer, "step")


@pytest.mark.thorough
def test_workers_share_the_limit(buffer_url):
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from sqlbuffer.torch import IterableDataset

    with ReplayBuffer(buffer_url, fields=FIELDS, max_use=1) as buffer:
        buffer.extend(arrays_of(24))
        loader = DataLoader(
            IterableDataset(buffer.loader("step", 6)), batch_size=None, num_workers=2
        )
        seen = [seq for batch in drain(loader) for seq in batch["info"]["seq"].tolist()]

        def all_used():
            """Sample what a worker left that was ended while it sampled."""
            with suppress(InsufficientDataError):
                seen.extend(next(iter(buffer.loader("step", 6))).info["seq"].tolist())
            return sum(uses_in(buffer_url).values()) == 24

        wait_until(all_used, "every row is used")
        assert len(set(seen)) == len(seen)
        assert set(uses_in(buffer_url).values()) == {1}


def test_a_mixture_counts_what_it_hands_out(make_database_url, buffer_url):
    with (
        ReplayBuffer(buffer_url, name="a", fields=FIELDS, max_use=1) as a,
        ReplayBuffer(buffer_url, name="b", fields=FIELDS, max_use=3) as b,
    ):
        a.extend(arrays_of(4))
        b.extend(arrays_of(4))
        mixed = mix({a: 0.5, b: 0.5})
        assert mixed.sample_arrays(8).n_rows == 8
        for _ in range(3):
            with pytest.raises(InsufficientDataError, match="a: asked for 4, and 0 match"):
                mixed.sample_arrays(8)
        assert (sum(uses_in(buffer_url, "a").values())) == 4
        assert (sum(uses_in(buffer_url, "b").values())) == 4
        either = mix({a: 0.5, b: 0.5}, on_empty="redistribute")
        assert set(either.sample_arrays(8).info["source"]) == {"b"}
        assert sum(uses_in(buffer_url, "b").values()) == 12


@pytest.mark.slow
@pytest.mark.parametrize("on_empty", ["raise", "redistribute"])
def test_what_a_mixture_does_not_hand_out_is_neither_counted_nor_noted(buffer_url, on_empty):
    limiter = RateLimiter(1, error_buffer=100)
    limits = {"max_use": 9, "track_samples": True, "rate_limiter": limiter}
    with (
        ReplayBuffer(buffer_url, name="a", fields=FIELDS, **limits) as a,
        ReplayBuffer(buffer_url, name="b", fields=FIELDS) as b,
    ):
        a.extend(arrays_of(30))
        mixed = mix({a: 0.5, b: 0.5}, on_empty=on_empty)
        n = 0
        if on_empty == "raise":
            with pytest.raises(InsufficientDataError, match="b: asked for 4"):
                mixed.sample_arrays(8)
        else:
            n = mixed.sample_arrays(8).n_rows
        assert sum(uses_in(buffer_url, "a").values()) == a.flow().sampled == n
        assert a.stats().sampled == n
        assert scalar(buffer_url, "SELECT count(*) FROM v_samples") == n


def test_a_source_that_fails_leaves_the_others_unused(buffer_url):
    with (
        ReplayBuffer(buffer_url, name="a", fields=FIELDS, max_use=1) as a,
        ReplayBuffer(buffer_url, name="b", fields=FIELDS, min_size=9) as b,
    ):
        a.extend(arrays_of(4))
        b.extend(arrays_of(8))
        for _ in range(3):
            with pytest.raises(InsufficientDataError, match="min_size"):
                mix({a: 0.5, b: 0.5}).sample_arrays(8)
        assert sum(uses_in(buffer_url, "a").values()) == 0
        b.extend(arrays_of(1))
        assert mix({a: 0.5, b: 0.5}).sample_arrays(8).n_rows == 8


def test_what_another_learner_took_meanwhile_is_drawn_anew(buffer, buffer_url):
    class Raced(Sampler):
        """Another learner takes rows between the choice and the claim."""

        replace = False

        def __init__(self):
            self.chosen = []

        def choose(self, candidates, batch_size):
            found = candidates.oldest(batch_size)
            self.chosen.append(found)
            return found

        def columns(self, candidates, seqs):
            if len(self.chosen) == 1:
                others.append(seqs[:3])
            return {"probabilities": np.array(seqs, float)}

    others: list[list[int]] = []
    sampler = Raced()
    store = buffer._store
    write = store.write

    def write_after_the_other(work):
        while others:
            taken = others.pop()
            for _ in range(2):
                write(lambda c, taken=taken: claim_uses(c, store.info.id, taken, 2))
        return write(work)

    store.write = write_after_the_other
    assert seqs_of(buffer.sample(6, sampler=sampler)) == [4, 5, 6, 7, 8, 9]
    assert len(sampler.chosen) == 2
    assert uses_in(buffer_url) == {
        **dict.fromkeys(range(1, 4), 2),
        **dict.fromkeys(range(4, 10), 1),
    }


def test_a_task_that_another_learner_took_in_part_is_not_counted(buffer_url):
    with ReplayBuffer(buffer_url, max_use=1) as buffer:
        buffer.store_batch(rows_of([None] * 6, per_task=3))
        store = buffer._store
        write = store.write

        def write_after_the_other(work):
            store.write = write
            write(lambda c: claim_uses(c, store.info.id, [2], 1))
            return write(work)

        store.write = write_after_the_other
        assert [steps_in(task) for task in buffer.sample_tasks(2)] == [[3, 4, 5]]
        assert uses_in(buffer_url) == dict.fromkeys((2, 4, 5, 6), 1)


N_ROWS, MAX_USE, BATCH = 300, 3, 8


def learn(url, replaced):
    """Draw until nothing is left, and return what was drawn."""
    drawn = Counter()
    with ReplayBuffer(url) as buffer:
        sampler = RandomSampler(replace=replaced)
        while batch := seqs_of(buffer.sample(BATCH, sampler=sampler)):
            drawn.update(batch)
    return drawn


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_four_learners_use_each_row_exactly_as_often_as_it_may_be(buffer_url, replaced):
    with ReplayBuffer(buffer_url, max_use=MAX_USE) as buffer:
        buffer.store_batch(rows_of([None] * N_ROWS))
    seen = sum(run_at_once([(learn, buffer_url, replaced)] * 4), Counter())
    assert seen == uses_in(buffer_url) == dict.fromkeys(range(1, N_ROWS + 1), MAX_USE)


def learn_forever(url, path):
    """Draw, and note each batch once it has arrived, until killed."""
    with ReplayBuffer(url) as buffer, open(path, "w") as seen:
        while batch := seqs_of(buffer.sample(BATCH)):
            seen.write(f"{' '.join(map(str, batch))}\n")
            seen.flush()
    return True


@pytest.mark.thorough
@pytest.mark.slow
def test_a_killed_learner_leaves_nothing_used_too_often(buffer_url, tmp_path):
    with ReplayBuffer(buffer_url, max_use=MAX_USE) as buffer:
        buffer.store_batch(rows_of([None] * N_ROWS))
    paths = [tmp_path / f"{number}" for number in range(4)]
    with running([(learn_forever, buffer_url, path) for path in paths]) as workers:
        victim = workers.processes[0]
        wait_until(lambda: paths[0].exists() and paths[0].read_text().count("\n") > 2, "a batch")
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        wait_until(lambda: not workers.running, "the others drew what was left")
    whole = [line for path in paths for line in path.read_text().splitlines(keepends=True)]
    seen = Counter(int(seq) for line in whole if line.endswith("\n") for seq in line.split())
    counted = uses_in(buffer_url)
    assert counted == dict.fromkeys(range(1, N_ROWS + 1), MAX_USE)
    # What it had claimed and never got is used.
    assert all(seen[seq] <= n for seq, n in counted.items())
    assert 0 <= counted.total() - seen.total() <= BATCH


@pytest.mark.thorough
@pytest.mark.slow
def test_learners_of_tasks_do_not_share_one(buffer_url):
    with ReplayBuffer(buffer_url, max_use=1) as buffer:
        buffer.store_batch(rows_of([None] * 90, per_task=3))
    seen = sum(run_at_once([(learn_tasks, buffer_url)] * 3), Counter())
    assert seen == uses_in(buffer_url) == dict.fromkeys(range(1, 91), 1)


def learn_tasks(url):
    drawn = Counter()
    with ReplayBuffer(url) as buffer:
        while tasks := buffer.sample_tasks(2):
            drawn.update(row.seq for task in tasks for row in task)
    return drawn


@both_layouts
def test_evicted_and_deleted_rows_are_not_sampled(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_use=1, max_capacity=10) as buffer:
        buffer.store_batch(rows_of([None] * 10))
        buffer.sample(4)
        buffer.store_batch(rows_of([None] * 5))
        buffer.delete(QueryBuilder().eq("seq", 12).build())
        drawn = [seq for _ in range(4) for seq in seqs_of(buffer.sample(4))]
        assert set(drawn) <= {*range(6, 12), 13, 14, 15}
        assert len(drawn) == len(set(drawn))
        assert buffer.sample(4) == []


@pytest.mark.slow
def test_counts_of_rows_that_left_are_forgotten(buffer_url, monkeypatch):
    monkeypatch.setattr(use_counts, "CLEANED_AT_ONCE", 8)
    with ReplayBuffer(buffer_url, max_use=5, max_capacity=20) as buffer:
        number = buffer_id(buffer_url)
        for start in range(1, 30):  # left behind, as eviction leaves them
            statement = "INSERT INTO uses (buffer_id, seq, n_uses) VALUES (:id, :seq, 1)"
            run(buffer_url, statement, id=number, seq=start)
        buffer.store_batch(rows_of([None] * 60))
        buffer.sample(4)
        left = run(buffer_url, "SELECT min(seq) FROM uses WHERE buffer_id = :id", id=number)
        assert left[0][0] > 40


@pytest.mark.parametrize("unit", ["task", "episode"])
def test_whole_eviction_forgets_the_counts(buffer_url, unit):
    limits = {"evict_by": "task", "max_capacity": 8} if unit == "task" else {"max_episodes": 2}
    with ReplayBuffer(buffer_url, fields=FIELDS, max_use=1, **limits) as buffer:
        for number in range(2):
            buffer.store_episode(arrays_of(4), episode_id=f"e{number}", task_id=f"t{number}")
        assert buffer.sample_arrays(8, sampler=RandomSampler()).n_rows == 8
        buffer.store_episode(arrays_of(4), episode_id="e2", task_id="t2")
        assert set(uses_in(buffer_url)) == {5, 6, 7, 8}
        batch = buffer.sample_arrays(4, sampler=RandomSampler())
        assert sorted(batch.info["seq"].tolist()) == [9, 10, 11, 12]


@both_layouts
def test_a_delete_typed_by_hand_forgets_the_counts(buffer, buffer_url):
    buffer.sample(20)
    run(buffer_url, f"DELETE FROM {table_of(buffer)} WHERE seq > 5")
    assert set(uses_in(buffer_url)) == {1, 2, 3, 4, 5}


def test_writers_at_capacity_do_not_wait_for_a_claim(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url, max_use=5, max_capacity=20, retry_s=0) as buffer:
        buffer.store_batch(rows_of([None] * 20))
        buffer.sample(20)
        with connected(url) as learner:
            learner.exec_driver_sql("SELECT 1 FROM uses FOR UPDATE")
            buffer.store_batch(rows_of([None] * 15))
            assert stored_rows(url) == 20


@pytest.mark.thorough
@pytest.mark.slow
def test_numbers_that_were_used_up_are_not_asked_for_again_and_again(buffer_url):
    with ReplayBuffer(buffer_url, max_use=1) as buffer:
        buffer.store_batch(rows_of([None] * 5_000))
        buffer.sample(4_900, sampler=FifoSampler())
        for _ in range(3):
            buffer.sample(8)
        floor = buffer._store.source.restrictions.eligible_low._seq
        assert floor >= 4_890
        assert min(seqs_of(buffer.sample(8))) > floor
        assert len(buffer.sample(200)) == 5_000 - 4_900 - 32


def test_numbers_that_a_server_gives_anew_after_a_crash_are_drawn_at_once(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url, max_use=1) as buffer:
        buffer.store_batch(rows_of([None] * 1_000))
        buffer.sample(990, sampler=FifoSampler())
        buffer.sample(8)
        assert buffer._store.source.restrictions.eligible_low._seq > 900
        # As if nothing from row 501 on had reached the disk.
        run(url, "DELETE FROM experiences WHERE seq > 500")
        run(url, f"SELECT setval('sqlbuffer_seq_{buffer_id(url)}', 500)")
        buffer._store.forget_connections()  # each of them was lost
        buffer.store_batch(rows_of([None] * 100))
        assert len(buffer.sample(200)) == 100


def test_uses_given_back_by_another_learner_are_found_again(buffer, buffer_url, monkeypatch):
    monkeypatch.setattr(use_counts, "LOW_DOUBTED_AFTER_S", 0.0)
    with ReplayBuffer(buffer_url) as other:
        assert len(buffer.sample(40, sampler=RandomSampler(replace=True))) == 40
        assert other.sample(3) == []
        use_counts.give_back(buffer._store.uses, [(4,), (5,)])
        assert sorted(seqs_of(other.sample(3))) == [4, 5]


def test_a_file_that_cannot_be_written_says_why(tmp_path):
    path = tmp_path / "replay.db"
    with ReplayBuffer(f"sqlite:///{path}", max_use=1) as buffer:
        buffer.store_batch(rows_of([None] * 3))
    url = f"sqlite:///file:{path}?immutable=1&uri=true"
    from sqlbuffer.errors import StorageReadOnlyError

    with ReplayBuffer(url) as buffer:
        assert len(buffer) == 3
        with pytest.raises(StorageReadOnlyError, match=r"sampling from buffer 'default' writes"):
            buffer.sample(1)


def test_the_whole_of_a_random_order_of_claims_adds_up(buffer_url):
    rng = random.Random(3)
    with ReplayBuffer(buffer_url, max_use=4) as buffer:
        buffer.store_batch(rows_of([None] * 30))
        seen = Counter()
        for _ in range(12):
            sampler = RandomSampler(replace=rng.random() < 0.5)
            seen.update(seqs_of(buffer.sample(rng.randint(1, 12), sampler=sampler)))
        assert seen == uses_in(buffer_url)
        assert max(seen.values()) <= 4
        assert scalar(buffer_url, "SELECT count(*) FROM samples") == 0
