"""What samplers draw besides being uniform: sizes, order, seeds, conditions, samplers of users."""

import json
import pickle

import numpy as np
import pytest

from sqlbuffer import (
    FifoSampler,
    LatestSampler,
    QueryBuilder,
    RandomSampler,
    RandomTaskSample,
    ReplayBuffer,
    Sampler,
    TaskSampler,
)
from sqlbuffer.errors import ArgumentError, ConditionError, InsufficientDataError
from tests.support.sql import fill
from tests.support.stepped_rows import (
    make_row,
    make_rows,
    seqs_of,
    steps_between,
    steps_of,
    tasks_in,
)

ROW_SAMPLERS = [RandomSampler, lambda: RandomSampler(seed=1), LatestSampler, FifoSampler]
HALF = QueryBuilder().gte("exp_data.state.mod", 50).build()
ONE_PERCENT = QueryBuilder().eq("exp_data.state.mod", 7).build()


@pytest.fixture
def buffer(buffer_url):
    return ReplayBuffer(buffer_url)


@pytest.fixture
def tasks_buffer(buffer):
    """Return a buffer of tasks a to e, whose rows are stored in turn."""
    for step in range(4):
        buffer.store_batch([make_row(step, task=task) for task in "abcde"])
    return buffer


def test_an_empty_buffer_gives_empty_batches(buffer):
    for make in ROW_SAMPLERS:
        assert buffer.sample(5, sampler=make()) == []
    assert buffer.sample(5, sampler=RandomSampler(replace=True)) == []
    assert buffer.sample() == buffer.sample_tasks(5) == buffer.sample_task() == []


def test_when_fewer_match_all_that_match_come_back(buffer):
    buffer.store_batch(make_rows(range(10)))
    for make in ROW_SAMPLERS:
        assert sorted(steps_of(buffer.sample(50, sampler=make()))) == list(range(10))
        few = buffer.sample(50, sampler=make(), condition=steps_between(3, 5))
        assert sorted(steps_of(few)) == [3, 4, 5]
    assert sorted(steps_of(buffer.sample())) == list(range(10))


def test_with_replacement_a_batch_is_full_if_anything_matches(buffer):
    buffer.store_batch(make_rows(range(3)))
    for seed in (None, 1):
        batch = buffer.sample(50, sampler=RandomSampler(replace=True, seed=seed))
        assert len(batch) == 50
        assert set(steps_of(batch)) == {0, 1, 2}
    assert (
        buffer.sample(5, sampler=RandomSampler(replace=True), condition=steps_between(7, 9)) == []
    )


@pytest.mark.parametrize("n", [0, -1])
def test_a_batch_of_less_than_one_is_refused(buffer, n):
    buffer.store_batch(make_rows(range(3)))
    for make in ROW_SAMPLERS:
        with pytest.raises(ArgumentError, match=f"batch_size is an integer from 1 .*{n}"):
            buffer.sample(n, sampler=make())
    with pytest.raises(ArgumentError, match=f"batch_size is an integer from 1 on, got {n}"):
        buffer.sample_task(batch_size=n)
    for draw in (buffer.sample_tasks, buffer.peek):
        with pytest.raises(ArgumentError, match=f"n is an integer from 1 on, got {n}"):
            draw(n)


def test_a_huge_batch_is_everything(buffer):
    buffer.store_batch(make_rows(range(30)))
    for huge in (10**6, 2**63 - 1, 2**63, 10**30):
        for make in ROW_SAMPLERS:
            assert len(buffer.sample(huge, sampler=make())) == 30
        assert len(buffer.sample_tasks(huge)) == 1
        assert len(buffer.sample_tasks(huge, sampler=RandomTaskSample(seed=1))) == 1


def test_a_page_far_away_is_empty_and_a_huge_one_is_everything(buffer):
    buffer.store_batch(make_rows(range(30)))
    for huge in (10**6, 2**63 - 1, 2**63, 10**30):
        assert buffer.get_paginated(huge, huge) == []
        assert len(buffer.get_paginated(1, huge)) == 30


def test_a_batch_size_may_be_a_numpy_integer(buffer):
    buffer.store_batch(make_rows(range(30)))
    for make in ROW_SAMPLERS:
        assert len(buffer.sample(np.int64(7), sampler=make())) == 7
    assert len(buffer.sample_tasks(np.int32(7))) == 1


def test_strict_raises_when_fewer_match(tasks_buffer):
    for make in ROW_SAMPLERS:
        assert len(tasks_buffer.sample(20, sampler=make(), strict=True)) == 20
        with pytest.raises(InsufficientDataError, match=r"asked for 21, and 20 match"):
            tasks_buffer.sample(21, sampler=make(), strict=True)
    assert len(tasks_buffer.sample_tasks(5, strict=True)) == 5
    with pytest.raises(InsufficientDataError, match=r"asked for 6, and 5 match"):
        tasks_buffer.sample_tasks(6, strict=True)
    with pytest.raises(InsufficientDataError):
        tasks_buffer.sample(1, condition=steps_between(90, 99), strict=True)


def test_latest_gives_the_newest_first(buffer):
    buffer.store_batch(make_rows(range(20)))
    assert steps_of(buffer.sample(4, sampler=LatestSampler())) == [19, 18, 17, 16]
    some = buffer.sample(2, sampler=LatestSampler(), condition=steps_between(3, 8))
    assert steps_of(some) == [8, 7]


def test_fifo_gives_the_oldest_first_and_leaves_them(buffer):
    buffer.store_batch(make_rows(range(20)))
    for _ in range(2):
        assert steps_of(buffer.sample(4, sampler=FifoSampler())) == [0, 1, 2, 3]
    some = buffer.sample(2, sampler=FifoSampler(), condition=steps_between(3, 8))
    assert steps_of(some) == [3, 4]


@pytest.mark.thorough
def test_evicted_rows_are_never_drawn(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=50)
    for start in range(0, 300, 20):
        buffer.store_batch(make_rows(range(start, start + 20)))
        low = max(0, start + 20 - 50)
        for make in ROW_SAMPLERS:
            assert all(step >= low for step in steps_of(buffer.sample(30, sampler=make())))
    assert steps_of(buffer.sample(1, sampler=FifoSampler())) == [250]


def build(url):
    """Return a buffer with a history: filled, with holes, and evicted from."""
    buffer = fill(url, 5_000, rows_per_task=30)
    buffer.delete(steps_between(1_000, 1_300))
    buffer.delete(QueryBuilder().eq("exp_data.state.mod", 13))
    buffer.resize(4_500)
    buffer.store_batch(make_rows(range(9_000, 9_200), prefix="late", task="late"))
    return buffer


SEEDED = {
    "a window probed": lambda b, s: seqs_of(b.sample(32, sampler=s)),
    "a batch as large as the window": lambda b, s: seqs_of(b.sample(1_500, sampler=s)),
    "half match": lambda b, s: seqs_of(b.sample(32, sampler=s, condition=HALF)),
    "few match": lambda b, s: seqs_of(b.sample(8, sampler=s, condition=ONE_PERCENT)),
    "one task": lambda b, s: seqs_of(
        b.sample(8, sampler=s, condition=QueryBuilder().eq("exp_meta.task_id", "late"))
    ),
}


@pytest.fixture
def twins(both_urls):
    """Return a buffer on each database, both with the same history."""
    return [build(url) for url in both_urls.values()]


@pytest.mark.thorough
def test_a_seed_repeats_its_batches_on_both_databases(twins):
    for case, draw in SEEDED.items():
        for replace in (False, True):
            samplers = [RandomSampler(replace=replace, seed=123) for _ in range(3)]
            one, again, other = (
                [draw(buffer, sampler) for _ in range(3)]
                for buffer, sampler in zip([*twins, twins[0]], samplers, strict=True)
            )
            assert one == again == other, case
            assert len(set(map(tuple, one))) == 3, case  # it advances from call to call


@pytest.mark.thorough
def test_a_seed_repeats_its_tasks_on_both_databases(twins):
    for condition in (None, HALF, steps_between(2_000, 2_050)):
        samplers = [RandomTaskSample(seed=123) for _ in range(3)]
        one, again, other = (
            [
                tasks_in(buffer.sample_tasks(2, sampler=sampler, condition=condition))
                for _ in range(4)
            ]
            for buffer, sampler in zip([*twins, twins[0]], samplers, strict=True)
        )
        assert one == again == other, condition
        assert len(set(map(tuple, one))) > 1


def test_other_seeds_draw_otherwise(buffer_url):
    buffer = fill(buffer_url, 3_000)
    drawn = {tuple(seqs_of(buffer.sample(8, sampler=RandomSampler(seed=s)))) for s in range(10)}
    drawn |= {tuple(seqs_of(buffer.sample(8))) for _ in range(10)}
    assert len(drawn) == 20


def test_a_seed_draws_the_same_whatever_was_drawn_before_it(buffer_url):
    """The third call depends on the seed and its being the third, not on the sizes before."""
    buffer = fill(buffer_url, 3_000)
    one, other = RandomSampler(seed=5), RandomSampler(seed=5)
    for size in (8, 500):
        buffer.sample(size, sampler=one)
        buffer.sample(4, sampler=other, condition=HALF)
    assert seqs_of(buffer.sample(16, sampler=one)) == seqs_of(buffer.sample(16, sampler=other))


@pytest.mark.parametrize("type_", [RandomSampler, RandomTaskSample])
def test_a_pickled_sampler_goes_on_where_it_was(buffer_url, type_):
    buffer = fill(buffer_url, 6_000)
    sampler = type_(seed=9)

    def draw(sampler):
        batch = buffer.sample(4, sampler=sampler)
        return seqs_of(batch) if type_ is RandomSampler else tasks_in(batch)

    draw(sampler)
    copy = pickle.loads(pickle.dumps(sampler))
    assert [draw(sampler) for _ in range(3)] == [draw(copy) for _ in range(3)]


@pytest.mark.parametrize("type_", [RandomSampler, RandomTaskSample])
@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_a_seed_that_is_no_natural_number_is_refused(type_, seed):
    with pytest.raises(ValueError, match="seed"):
        type_(seed=seed)


def test_a_task_sampler_gives_whole_tasks_in_order(tasks_buffer):
    for batch in (
        tasks_buffer.sample_tasks(3),
        tasks_buffer.sample(3, sampler=RandomTaskSample()),
        tasks_buffer.sample_task(batch_size=3),
    ):
        assert len(set(tasks_in(batch))) == 3
        assert [steps_of(task) for task in batch] == [[0, 1, 2, 3]] * 3


def test_a_condition_selects_tasks_and_all_their_rows_come_back(tasks_buffer):
    tasks_buffer.store(make_row(9, task="b"))
    condition = QueryBuilder().eq("exp_meta.step", 9).build()
    assert list(map(steps_of, tasks_buffer.sample_tasks(5, condition=condition))) == [
        [0, 1, 2, 3, 9]
    ]
    batch = tasks_buffer.sample(5, sampler=RandomTaskSample(seed=1), query_condition=condition)
    assert tasks_in(batch) == ["b"]
    two = QueryBuilder().in_("exp_meta.task_id", ["a", "e", "zz"]).build()
    assert sorted(tasks_in(tasks_buffer.sample_task(query_condition=two))) == ["a", "e"]
    assert tasks_buffer.sample_tasks(5, condition=steps_between(50, 60)) == []


def test_samplers_of_the_wrong_kind_are_refused(tasks_buffer):
    with pytest.raises(TypeError, match="takes a Sampler of rows"):
        tasks_buffer.sample_tasks(1, sampler=RandomSampler())
    with pytest.raises(TypeError, match=r"sampler is a Sampler of rows, .* got 'random'"):
        tasks_buffer.sample(1, sampler="random")
    with pytest.raises(TypeError):
        tasks_buffer.sample(1, sampler=RandomSampler)


def test_a_malformed_condition_is_refused_before_anything_is_read(tasks_buffer):
    for call in (tasks_buffer.sample, tasks_buffer.sample_tasks):
        with pytest.raises(ConditionError):
            call(1, condition={"field": "nonsense", "op": "eq", "value": 1})


def test_converters_are_called_once_a_batch_or_once_a_task(tasks_buffer):
    assert tasks_buffer.sample(4, converter=len) == 4
    assert tasks_buffer.sample(3, sampler=RandomTaskSample(), converter=len) == 3
    assert tasks_buffer.sample_tasks(3, converter=len) == [4, 4, 4]
    assert tasks_buffer.sample_task(converter=len, batch_size=2) == [4, 4]


class EveryOther(Sampler):
    def choose(self, candidates, batch_size):
        return candidates.keys()[::2][:batch_size]


class HighestStepFirst(Sampler):
    def choose(self, candidates, batch_size):
        keys = candidates.select()
        return keys.order_by(keys.selected_columns.seq.desc()).limit(batch_size)


class TwiceTheSame(Sampler):
    def choose(self, candidates, batch_size):
        return [int(candidates.keys()[0])] * batch_size


class LastTasks(TaskSampler):
    def choose_tasks(self, candidates, batch_size):
        return candidates.tasks()[::-1][:batch_size]


class KeysOfNobody(Sampler):
    def choose(self, candidates, batch_size):
        return [candidates.high + 10, 0, -1, *candidates.keys()[:1]]


def test_samplers_of_users_choose_in_python_or_by_select(tasks_buffer):
    even = seqs_of(tasks_buffer.sample(4, sampler=EveryOther()))
    assert even == [1, 3, 5, 7]
    assert seqs_of(tasks_buffer.sample(3, sampler=HighestStepFirst())) == [20, 19, 18]
    assert seqs_of(tasks_buffer.sample(3, sampler=TwiceTheSame())) == [1, 1, 1]
    assert tasks_in(tasks_buffer.sample_tasks(2, sampler=LastTasks())) == ["e", "d"]


def test_samplers_of_users_see_what_matches_only(tasks_buffer):
    condition = QueryBuilder().eq("exp_meta.task_id", "b").build()
    found = tasks_buffer.sample(9, sampler=EveryOther(), condition=condition)
    assert seqs_of(found) == [2, 12]
    found = tasks_buffer.sample(9, sampler=HighestStepFirst(), condition=condition)
    assert seqs_of(found) == [17, 12, 7, 2]
    assert tasks_in(tasks_buffer.sample_tasks(9, sampler=LastTasks(), condition=condition)) == ["b"]


def test_keys_that_are_no_rows_are_left_out(tasks_buffer):
    assert seqs_of(tasks_buffer.sample(4, sampler=KeysOfNobody())) == [1]


class BrokenSampler(Sampler):
    def choose(self, candidates, batch_size):
        raise ZeroDivisionError


def test_an_error_in_a_sampler_of_a_user_passes_and_harms_nothing(tasks_buffer):
    for _ in range(12):
        with pytest.raises(ZeroDivisionError):
            tasks_buffer.sample(1, sampler=BrokenSampler())
    assert len(tasks_buffer.sample(5)) == 5


class Reader(Sampler):
    """Reads the encoded rows of given numbers; returns no number, unless it is told to."""

    def __init__(self, seqs, *, reads_encoded, returned=()):
        self.seqs, self.reads_encoded, self.returned = seqs, reads_encoded, returned

    def choose(self, candidates, batch_size):
        rows = candidates.encoded(self.seqs)
        self.rows = [
            row._replace(
                state=decoded(row.state),
                extra=decoded(row.extra),
                arrays=bytes(row.arrays or b""),
            )
            for row in rows
        ]
        return self.returned


def decoded(text):
    """Return what a JSON text says: PostgreSQL writes blanks into it."""
    return None if text is None else json.loads(text)


@pytest.mark.parametrize("fields", [None, {"x": "float32"}], ids=["rows", "typed"])
def test_encoded_rows_are_the_same_whatever_else_is_read(buffer_url, fields):
    states = [None, {"é": "\0"}, {"a": np.arange(3)}, {"large": np.arange(300_000)}, 5]
    with ReplayBuffer(buffer_url, "encoded", fields=fields, max_capacity=5) as buffer:
        for i, state in enumerate(states * 2):
            typed = {} if fields is None else {"x": i}
            extra = {"k": np.float32(i)} if i % 2 else None
            buffer.add(state=state, extra=extra, reward=float(i), **typed)
        buffer.annotate([7, 8], extra={"late": [1, -0.0]})
        buffer.delete([9])
        kept = [10, 7, 6, 8, 7]
        for names in (["state", "extra"], ["extra"], ["state"]):
            few = Reader(kept, reads_encoded=True)
            whole = Reader(kept, reads_encoded=False)
            assert buffer.sample(1, sampler=few, fields=names) == []
            assert buffer.sample(1, sampler=whole, fields=names) == []
            assert [row.seq for row in few.rows] == kept
            assert few.rows == whole.rows
        assert [row.extra for row in few.rows] == [None] * 5


def test_a_sampler_of_encoded_rows_that_returns_a_number_is_refused(buffer):
    buffer.store_batch(make_rows(range(3)))
    for names in (None, ["state"]):
        sampler = Reader([2], reads_encoded=True, returned=[1])
        with pytest.raises(ArgumentError, match="Reader has reads_encoded"):
            buffer.sample(1, sampler=sampler, fields=names)
    assert len(buffer.sample(3)) == 3
