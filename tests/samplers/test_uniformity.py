"""Uniform means uniform (I4): chi-square tests over rows and tasks, on both ways to draw.

Each test draws with fixed seeds, so it passes or fails for good; at P_VALUE = 0.001 a sound sampler
fails one seed in a thousand. A sampler without a seed is given one by patching its entropy.
"""

from collections import Counter
from itertools import count

import numpy as np
import pytest
from scipy.stats import chisquare
from sqlalchemy import text

from sqlbuffer import Candidates, QueryBuilder, RandomSampler, RandomTaskSample, ReplayBuffer
from sqlbuffer.samplers import Seeding
from tests.support.draws import chosen_batches
from tests.support.sql import connected, fill, is_sqlite
from tests.support.stepped_rows import make_rows, seqs_of, steps_between

P_VALUE = 0.001
# States of `fill` are {"mod": s % 100}.
ONE_PERCENT = QueryBuilder().eq("exp_data.state.mod", 7).build()
A_TENTH = QueryBuilder().lt("exp_data.state.mod", 10).build()
HALF = QueryBuilder().gte("exp_data.state.mod", 50).build()


WAYS = {
    "probe": "probe",
    "first_of_tasks": "probe",
    "keys": "order",
    "random": "order",
    "tasks": "order",
    "random_tasks": "order",
}


@pytest.fixture
def paths(monkeypatch):
    """Count the ways that samplers choose: by `probe` or by `order`."""
    taken = Counter()

    def spied(name):
        choose = getattr(Candidates, name)

        def spy(*arguments):
            taken[WAYS[name]] += 1
            return choose(*arguments)

        return spy

    for name in WAYS:
        monkeypatch.setattr(Candidates, name, spied(name))
    return taken


@pytest.fixture(params=["seeded", "unseeded"])
def make_sampler(request, monkeypatch):
    """Return a function that makes samplers with a seed, or without one but all the same fixed."""
    if request.param == "seeded":
        return lambda type_, **options: type_(seed=11, **options)
    calls = count(1_000)
    monkeypatch.setattr(Seeding, "generator", lambda self: np.random.default_rng(next(calls)))
    return lambda type_, **options: type_(**options)


def assert_uniform(drawn, expected):
    """Test that each of the expected keys was drawn as often as any other, and nothing else."""
    counts = Counter(drawn)
    assert set(counts) <= set(expected)
    observed = [counts[key] for key in expected]
    mean = sum(observed) / len(observed)
    assert mean >= 10, "too few draws for a chi-square test"
    assert chisquare(observed).pvalue > P_VALUE


def assert_uniform_in_bins(drawn, expected, n_bins=50):
    """Test the same where there are many keys: bins of neighbours get their share."""
    bins = np.array_split(np.array(sorted(expected)), n_bins)
    assert set(drawn) <= set(expected)
    edges = [part[0] for part in bins] + [bins[-1][-1] + 1]
    observed, _ = np.histogram(drawn, edges)
    shares = np.array([len(part) for part in bins]) / len(expected)
    assert chisquare(observed, shares * len(drawn)).pvalue > P_VALUE


def draw(buffer, sampler, n_batches, batch_size, condition=None):
    """Return the keys of all batches: what a sampler chooses is what is fetched, in its order."""
    batches = chosen_batches(buffer, sampler, n_batches, batch_size, condition)
    if not sampler.replace:
        assert all(len(set(batch)) == len(batch) for batch in batches)
    return [seq for batch in batches for seq in batch]


def draw_tasks(buffer, sampler, n_batches, batch_size, condition=None):
    batches = chosen_batches(buffer, sampler, n_batches, batch_size, condition)
    assert all(len(set(batch)) == len(batch) == batch_size for batch in batches)
    return [task for batch in batches for task in batch]


@pytest.mark.each_value
@pytest.mark.parametrize("replace", [False, True])
def test_rows_of_a_small_window_are_drawn_alike(buffer_url, make_sampler, paths, replace):
    buffer = ReplayBuffer(buffer_url, max_capacity=60)
    buffer.store_batch(make_rows(range(100)))
    sampler = make_sampler(RandomSampler, replace=replace)
    drawn = draw(buffer, sampler, 100, 16)
    assert len(drawn) == 1_600
    assert_uniform(drawn, range(41, 101))
    assert set(paths) == {"probe"}


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
def test_rows_of_a_large_window_are_drawn_alike(buffer_url, make_sampler, paths, replace):
    buffer = fill(buffer_url, 3_000)
    buffer.delete(steps_between(500, 1_499))
    for step in range(2_000, 2_900, 9):
        buffer.delete(QueryBuilder().eq("exp_meta.step", step))
    live = [*range(1, 500), *range(1_500, 3_001)]
    live = [seq for seq in live if not (2_000 <= seq < 2_900 and (seq - 2_000) % 9 == 0)]
    drawn = draw(buffer, make_sampler(RandomSampler, replace=replace), 80, 256)
    assert len(drawn) == 80 * 256
    assert_uniform(drawn, live)
    assert set(paths) == {"probe"}


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
def test_rows_after_many_turns_of_the_window_are_drawn_alike(buffer_url, make_sampler, paths):
    buffer = ReplayBuffer(buffer_url, max_capacity=1_500)
    rows = make_rows(range(600))
    for turn in range(12):
        for row in rows:
            row.id = f"{turn}_{row.exp_meta.step}"
        buffer.store_batch(rows)
        if turn == 10:
            buffer.delete(steps_between(100, 199))
    live = seqs_of(buffer)
    assert (live[0], live[-1], len(live)) == (5_701, 7_200, len(buffer))
    assert len(live) < 1_500
    drawn = draw(buffer, make_sampler(RandomSampler), 80, 200)
    assert_uniform(drawn, live)
    assert set(paths) == {"probe"}


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
def test_rows_that_an_unselective_filter_leaves_are_drawn_alike(buffer_url, make_sampler, paths):
    buffer = fill(buffer_url, 3_000)
    matching = [seq for seq in range(1, 3_001) if seq % 100 >= 50]
    drawn = draw(buffer, make_sampler(RandomSampler), 80, 200, HALF)
    assert_uniform(drawn, matching)
    assert set(paths) == {"probe"}


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_that_a_selective_filter_leaves_are_drawn_alike(buffer_url, paths):
    buffer = fill(buffer_url, 6_000)
    matching = [seq for seq in range(1, 6_001) if seq % 100 == 7]
    drawn = draw(buffer, RandomSampler(seed=5), 60, 16, ONE_PERCENT)
    assert_uniform(drawn, matching)
    assert paths["order"] == 60


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_of_a_selective_filter_without_a_seed_are_all_reached(buffer_url, paths):
    """The database orders by random numbers of its own: 60 of 60 rows in 60 batches of 16, where
    one is missed with a chance below 1e-6.

    A batch finds its 16 rows by numbers alone with a chance of 7.5e-4 (simulated), so four of 60
    do with one of 1.5e-7.
    """
    buffer = fill(buffer_url, 6_000)
    drawn = draw(buffer, RandomSampler(), 60, 16, ONE_PERCENT)
    assert set(drawn) == {seq for seq in range(1, 6_001) if seq % 100 == 7}
    assert max(Counter(drawn).values()) < 40
    assert paths["order"] > 60 - 4


@pytest.mark.thorough
@pytest.mark.slow
def test_a_few_misses_do_not_make_a_filter_selective(buffer_url, paths):
    """Of 9 numbers none is one of the tenth that match in two batches of five."""
    buffer = fill(buffer_url, 6_000)
    drawn = draw(buffer, RandomSampler(seed=6), 60, 1, A_TENTH)
    assert len(drawn) == 60
    assert paths["order"] == 0


def test_tasks_are_probed_for_until_they_are_found(buffer_url, paths):
    """Every fortieth number begins a task: the tries of the seventh batch find few of them."""
    buffer = fill(buffer_url, 8_000, rows_per_task=40)
    sampler = RandomTaskSample(seed=1)
    assert all(len(buffer.sample_tasks(8, sampler=sampler)) == 8 for _ in range(10))
    assert paths["order"] == 0


@pytest.mark.thorough
def test_a_batch_close_to_the_whole_window_is_drawn_alike(buffer_url, make_sampler):
    buffer = fill(buffer_url, 2_000)
    drawn = draw(buffer, make_sampler(RandomSampler), 20, 1_500)
    assert len(drawn) == 30_000
    counts = Counter(drawn)
    # A row is in a batch or not, so the counts vary less than chi-square expects: by a quarter.
    assert len(counts) == 2_000
    observed = [counts[seq] for seq in range(1, 2_001)]
    statistic = sum((n - 15) ** 2 for n in observed) / (20 * 0.75 * 0.25)
    assert abs(statistic - 2_000) < 4 * (2 * 2_000) ** 0.5


@pytest.mark.thorough
def test_the_places_of_a_batch_are_alike(buffer_url):
    """The first of a batch is as random as the last: learners split batches."""
    buffer = fill(buffer_url, 2_000)
    sampler = RandomSampler(seed=2)
    batches = [seqs_of(buffer.sample(64, sampler=sampler)) for _ in range(100)]
    for half in (slice(0, 32), slice(32, 64)):
        drawn = [seq for batch in batches for seq in batch[half]]
        assert_uniform_in_bins(drawn, range(1, 2_001), 25)


@pytest.fixture
def unequal_tasks(buffer_url):
    """Return a buffer of 60 tasks, two of them very long, and the others of 1 to 20 rows; 5,000
    rows in all, spread over each other.
    """
    buffer = ReplayBuffer(buffer_url)
    lengths = {f"s{i:02}": 1 + i % 20 for i in range(58)}
    lengths |= {"long0": 1_500, "long1": 5_000 - 1_500 - sum(lengths.values())}
    order = [task for task, n in lengths.items() for _ in range(n)]
    np.random.default_rng(0).shuffle(order)
    rows = make_rows(range(5_000))
    for row, task in zip(rows, order, strict=True):
        row.exp_meta.task_id = task
    buffer.store_batch(rows)
    return buffer, list(lengths)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
def test_long_and_short_tasks_are_drawn_alike(unequal_tasks, make_sampler, paths):
    buffer, tasks = unequal_tasks
    assert_uniform(draw_tasks(buffer, make_sampler(RandomTaskSample), 300, 3), tasks)
    assert paths["probe"] > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_tasks_whose_rows_match_are_drawn_alike_when_few_match(unequal_tasks, paths):
    buffer, _ = unequal_tasks
    condition = steps_between(0, 150)
    tasks = sorted({row.exp_meta.task_id for row in buffer.get_all(condition)})
    assert 5 < len(tasks) < 40
    assert_uniform(draw_tasks(buffer, RandomTaskSample(seed=4), 200, 2, condition), tasks)
    assert paths["order"] > 0


def spread(url, n_rows, width, task_of):
    """Return a buffer with a row at each number that `width` divides, as if others had left."""
    buffer = fill(url, n_rows)
    tasks = [{"seq": seq, "task": task_of(seq)} for seq in range(n_rows, 0, -1)]
    key = f"key = (buffer_id << 40) + seq * {width}, " if is_sqlite(url) else ""
    with connected(url) as connection:
        move = f"{key}seq = seq * {width}, task_id = :task WHERE seq = :seq"
        connection.execute(text(f"UPDATE experiences SET {move}"), tasks)
        if is_sqlite(url):
            connection.execute(text(f"UPDATE buffers SET next_seq = {n_rows * width} + 1"))
    return buffer


@pytest.mark.thorough
@pytest.mark.slow
def test_long_tasks_of_a_large_window_are_probed_for(buffer_url, paths):
    """Every thousandth of 300,000 numbers begins a task."""
    buffer = spread(buffer_url, 3_000, 100, lambda seq: f"t{seq // 10}")
    for seed in range(8):
        assert len(draw_tasks(buffer, RandomTaskSample(seed=seed), 1, 1)) == 1
    assert set(paths) == {"probe"}


@pytest.mark.thorough
@pytest.mark.slow
def test_long_tasks_that_are_probed_for_are_drawn_alike(buffer_url, paths):
    buffer = spread(buffer_url, 2_400, 5, lambda seq: f"t{int(seq**0.47)}")
    lengths = Counter(row.exp_meta.task_id for row in buffer)
    assert min(lengths.values()) < 10
    assert max(lengths.values()) > 90
    drawn = draw_tasks(buffer, RandomTaskSample(seed=5), 200, 2)
    assert_uniform(drawn, sorted(lengths))
    assert paths["probe"] > 5 * paths["order"]


@pytest.mark.thorough
@pytest.mark.slow
def test_tasks_of_a_small_window_are_drawn_alike(buffer_url, paths):
    buffer = ReplayBuffer(buffer_url, max_capacity=300)
    for task in range(40):
        buffer.store_batch(make_rows(range(1 + task % 15), task=f"t{task}"))
    live = sorted({row.exp_meta.task_id for row in buffer})
    assert_uniform(draw_tasks(buffer, RandomTaskSample(seed=6), 200, 4), live)
    assert set(paths) == {"order"}


@pytest.mark.thorough
@pytest.mark.slow
def test_tasks_cut_by_the_window_are_drawn_like_whole_ones(buffer_url, paths):
    buffer = fill(buffer_url, 6_000, rows_per_task=150)
    buffer.resize(4_200)  # 28 tasks
    buffer.store_batch(make_rows(range(50), task="new"))  # one is cut by 50 rows, one has 50
    live = [*(f"t{i}" for i in range(12, 40)), "new"]
    assert_uniform(draw_tasks(buffer, RandomTaskSample(seed=8), 150, 3), live)
    assert paths["probe"] > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_tasks_that_leave_whole_leave_the_others_alike(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=4_400, evict_by="task")
    for start in range(0, 90, 10):
        tasks = range(start, start + 10)
        batches = [make_rows(range(20 + task % 5 * 40), task=f"t{task:02}") for task in tasks]
        buffer.store_batch([row for batch in batches for row in batch])
    live = sorted({row.exp_meta.task_id for row in buffer})
    assert len(live) < 60
    assert_uniform(draw_tasks(buffer, RandomTaskSample(seed=9), 150, 4), live)
    drawn = draw(buffer, RandomSampler(seed=3), 20, 256)
    assert_uniform_in_bins(drawn, seqs_of(buffer), 40)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_buffer_that_evicts_by_task_is_still_probed_after_many_turns(buffer_url, paths):
    """Else each batch reads all keys: the window does not begin at the first number ever given."""
    buffer = fill(buffer_url, 44_000, rows_per_task=50, max_capacity=1_100, evict_by="task")
    assert 1_000 < len(buffer) <= 1_100
    assert_uniform_in_bins(draw(buffer, RandomSampler(seed=1), 40, 64), seqs_of(buffer))
    assert set(paths) == {"probe"}
