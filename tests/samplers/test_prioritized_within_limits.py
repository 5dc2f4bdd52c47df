"""Draws by priority on buffers that limit what may be sampled, note it, pace it and evict."""

from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from torch.utils.data import DataLoader

from sqlbuffer import PrioritizedSampler, RandomSampler, RateLimiter, ReplayBuffer, mix
from sqlbuffer.errors import FlowControlError, InsufficientDataError
from sqlbuffer.torch import IterableDataset
from tests.support.limited_rows import FIELDS, rows_of, store_episodes, uses_in
from tests.support.priorities import assert_shares, filled, set_priorities, summarize_all
from tests.support.processes import run_at_once
from tests.support.sql import run, scalar
from tests.support.torch_workers import drain

ALPHA, BETA = 0.6, 0.4


def weights_of(priorities):
    return {seq: float(p) ** ALPHA for seq, p in priorities.items() if p > 0}


def versions_1_to_5(url, **settings):
    """Return a buffer of 100 rows whose priorities are their numbers, 20 of each version."""
    with ReplayBuffer(url, priorities=True, max_staleness=2, **settings) as buffer:
        buffer.store_batch(rows_of([1 + i // 20 for i in range(100)]))
        set_priorities(url, {seq: float(seq) for seq in range(1, 101)})
    return ReplayBuffer(url)


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_rows_that_are_too_old_are_not_drawn_and_the_others_keep_their_shares(
    buffer_url, exact, replace
):
    buffer = versions_1_to_5(buffer_url)
    buffer.set_clock(6)
    sampler = PrioritizedSampler(seed=3, exact=exact, replace=replace)
    left = {seq: float(seq) for seq in range(61, 101)}
    total = sum(weights_of(left).values())
    drawn = []
    for _ in range(20 if replace else 300):
        rows = buffer.sample(64 if replace else 1, sampler=sampler)
        drawn += rows.seq.tolist()
        if exact:
            np.testing.assert_allclose(rows.probabilities, rows.priorities**ALPHA / total)
        else:
            assert rows.probabilities is None
    assert_shares(drawn, weights_of(left))


@pytest.mark.slow
def test_the_clock_bars_rows_at_once_and_lets_them_in_again(buffer_url):
    buffer = versions_1_to_5(buffer_url)
    sampler = PrioritizedSampler(seed=1, exact=True)
    lowest = []
    for clock in (1, 5, 6, 4):
        buffer.set_clock(clock)
        lowest.append(min(buffer.sample(2_000, sampler=sampler).seq))
    assert lowest == [min(lowest[:1]), 41, 61, 21]
    assert lowest[0] < 21
    buffer.set_clock(99)
    assert buffer.sample(8, sampler=sampler) == []


def test_too_few_rows_are_said_to_be_too_few(buffer_url):
    with ReplayBuffer(buffer_url, priorities=True, min_size=3, fields={"x": "int64"}) as buffer:
        sampler = PrioritizedSampler()
        buffer.extend({"x": [1, 2]})
        for draw in (buffer.sample, buffer.sample_arrays):
            with pytest.raises(InsufficientDataError, match="holds 2 rows"):
                draw(1, sampler=sampler)
        buffer.extend({"x": [3]})
        assert buffer.sample_arrays(3, sampler=sampler).n_rows == 3
        assert sampler.beta == BETA


def claim(url, seed, n):
    """Draw until nothing is left; return every row that was handed out."""
    handed_out = []
    with ReplayBuffer(url) as buffer:
        sampler = PrioritizedSampler(seed=seed, replace=False)
        while rows := buffer.sample(n, sampler=sampler):
            handed_out += rows.seq.tolist()
            expected = (rows.priorities / rows.priorities.min()) ** (-BETA * ALPHA)
            np.testing.assert_allclose(rows.weights, expected, rtol=1e-6)
            buffer.update_priorities(rows.seq, rows.priorities + 1.0)
    return handed_out


@pytest.mark.thorough
@pytest.mark.slow
def test_learners_at_once_use_each_row_as_often_as_it_may_be(buffer_url):
    """Whose claims meet, so that batches are put together of several draws."""
    priorities = 1.0 + np.arange(200) % 7
    filled(buffer_url, priorities, max_use=2, track_samples=True).close()
    calls = [(claim, buffer_url, seed, 17) for seed in range(3)]
    handed_out = [seq for seqs in run_at_once(calls) for seq in seqs]
    assert Counter(handed_out) == dict.fromkeys(range(1, 201), 2)
    assert uses_in(buffer_url) == Counter(handed_out)
    noted = Counter(seq for (seq,) in run(buffer_url, "SELECT seq FROM v_samples"))
    assert noted == Counter(handed_out)


class Interrupting(PrioritizedSampler):
    """Has another learner take the first rows of its first draw."""

    def __init__(self, other, **options):
        super().__init__(**options)
        self.other, self.taken = other, []

    def choose(self, candidates, batch_size):
        found = super().choose(candidates, batch_size)
        if not self.taken:
            self.taken = found[:4]
            for _ in range(self.other.max_use):
                self.other.take(self.taken)
        return found


class Other:
    def __init__(self, url, max_use):
        self.url, self.max_use = url, max_use

    def take(self, seqs):
        for seq in seqs:
            run(
                self.url,
                "INSERT INTO uses (buffer_id, seq, n_uses) VALUES (1, :s, 1) "
                "ON CONFLICT (buffer_id, seq) DO UPDATE SET n_uses = uses.n_uses + 1",
                s=seq,
            )


@pytest.mark.parametrize("call", ["sample", "sample_arrays"])
@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_a_batch_of_two_draws_has_the_weights_of_one(make_database_url, call, normalize):
    """Where another learner took rows of it meanwhile; SQLite lets none in between."""
    url = make_database_url("postgresql", schema=True)
    buffer = filled(url, 1.0 + np.arange(64.0), max_use=2, track_samples=True)
    summarize_all(buffer)
    options = {"beta_anneal_steps": 4, "replace": False, "normalize": normalize, "seed": 5}
    sampler = Interrupting(Other(url, 2), **options)
    batch = getattr(buffer, call)(16, sampler=sampler)
    assert not set(sampler.taken) & set(batch.seq.tolist())
    assert len(set(batch.seq.tolist())) == 16
    np.testing.assert_array_equal(batch.priorities, batch.seq)
    least = batch.priorities.min() if normalize == "batch" else 1.0
    expected = (batch.priorities / least) ** (-BETA * ALPHA)
    np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)
    assert sampler.beta == pytest.approx(BETA + 0.6 / 4)
    assert scalar(url, "SELECT count(*) FROM samples") == 1


@pytest.mark.thorough
@pytest.mark.slow
def test_used_up_rows_leave_the_others_their_shares(buffer_url):
    priorities = dict(enumerate(1.0 + np.arange(120.0) % 11, 1))
    buffer = filled(buffer_url, list(priorities.values()), max_use=10_000)
    used_up = range(1, 121, 3)
    for seq in used_up:
        run(buffer_url, f"INSERT INTO uses (buffer_id, seq, n_uses) VALUES (1, {seq}, 10000)")
    left = weights_of({seq: p for seq, p in priorities.items() if seq not in used_up})
    for exact in (False, True):
        sampler = PrioritizedSampler(seed=2, exact=exact)
        drawn, total = [], sum(left.values())
        for _ in range(12):
            batch = buffer.sample_arrays(256, sampler=sampler)
            drawn += batch.seq.tolist()
            if exact:
                expected = batch.priorities**ALPHA / total
                np.testing.assert_allclose(batch.probabilities, expected)
        assert_shares(drawn, left)


def test_the_ledger_has_the_probabilities_and_the_number_of_the_batch(buffer_url):
    buffer = filled(buffer_url, [1.0, 2.0, 4.0, 0.0], track_samples=True)
    buffer.set_clock(7)
    sampler = PrioritizedSampler(seed=11)
    rows = buffer.sample(5, sampler=sampler)
    batch = buffer.sample_arrays(4, sampler=sampler)
    numbers = [rows.batch_id, batch.info["batch_id"][0]]
    for number, drawn in zip(numbers, (rows, batch), strict=True):
        found = run(
            buffer_url,
            "SELECT seq, probability, clock, sampler, seed FROM v_samples WHERE batch_id = :id "
            "ORDER BY position",
            id=int(number),
        )
        assert [row[0] for row in found] == drawn.seq.tolist()
        np.testing.assert_allclose([row[1] for row in found], drawn.probabilities)
        assert {row[2:] for row in found} == {(7, "PrioritizedSampler", "11")}


MODES = {
    "step": {},
    "transition": {},
    "n_step": {"n_step": 3},
    "window": {"length": 4},
    "trajectory": {},
}
LIMITED = {"max_use": 50, "max_staleness": 1, "track_samples": True}


def limited_episodes(url, n_episodes=12, **more):
    """Return 12 episodes of 10 steps: those of every third have a step that is too old."""
    settings = {**LIMITED, **more}
    with ReplayBuffer(url, fields=FIELDS, priorities=True, **settings) as buffer:
        versions = [[5] * 5 + [1 if i % 3 == 0 else 5] + [5] * 4 for i in range(n_episodes)]
        store_episodes(buffer, versions)
        n = 10 * n_episodes
        set_priorities(url, {seq: float(seq) for seq in range(1, n + 1)})
        buffer.set_clock(5)
    return ReplayBuffer(url)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_what_is_made_of_several_rows_is_drawn_whole(buffer_url, mode):
    buffer = limited_episodes(buffer_url)
    sampler = PrioritizedSampler(seed=2)
    loader = buffer.loader(mode, 16, sampler=sampler, **MODES[mode])
    stale = {seq for seq in range(1, 121) if (seq - 1) // 10 % 3 == 0 and (seq - 1) % 10 == 5}
    drawn = Counter()
    for batch, _ in zip(loader, range(12), strict=False):
        seqs = batch.seq.tolist()
        drawn.update(seqs)
        np.testing.assert_array_equal(batch.priorities, seqs)
        assert batch.probabilities is None
        expected = (batch.priorities / batch.priorities.min()) ** (-BETA * ALPHA)
        np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)
        assert len(set(batch.info["batch_id"].tolist())) == 1
    assert not stale & set(drawn)
    if mode == "trajectory":
        assert {(seq - 1) // 10 % 3 for seq in drawn} == {1, 2}
    if mode in ("n_step", "window"):
        # One that would reach the old step is not made.
        assert not {seq for seq in drawn if {seq + 1, seq + 2} & stale}
    assert scalar(buffer_url, "SELECT count(*) FROM samples") >= 12


def test_a_trajectory_uses_its_steps_and_is_not_drawn_once_one_is_used_up(buffer_url):
    buffer = limited_episodes(buffer_url, 3, max_use=2, max_staleness=None)
    sampler = PrioritizedSampler(replace=False, seed=1)
    drawn = Counter()
    batches = iter(buffer.loader("trajectory", 3, sampler=sampler))
    for _ in range(2):
        drawn.update(next(batches).seq.tolist())
    assert drawn == {1: 2, 11: 2, 21: 2}
    with pytest.raises(InsufficientDataError):
        next(batches)


@pytest.mark.thorough
def test_workers_of_torch_share_the_uses(buffer_url):
    filled(buffer_url, 1.0 + np.arange(128.0), max_use=2, track_samples=True).close()
    buffer = ReplayBuffer(buffer_url)
    loader = buffer.loader("step", 8, sampler=PrioritizedSampler(replace=False, seed=1))
    drawn = Counter()
    for batch in drain(DataLoader(IterableDataset(loader), batch_size=None, num_workers=2)):
        drawn.update(batch["seq"].tolist())
    used = uses_in(buffer_url)
    assert set(used.values()) <= {1, 2}
    n_used = sum(used.values())
    assert n_used % 8 == 0
    assert 256 - n_used < 2 * 8  # whatever is left is less than 8 different rows
    assert not drawn - used


def test_a_mixture_draws_from_each_source_by_its_own_priorities(buffer_url):
    options = {"fields": {"x": "int64"}, "priorities": True, "max_use": 3, "track_samples": True}
    one = ReplayBuffer(buffer_url, name="one", **options)
    other = ReplayBuffer(buffer_url, name="other", **options)
    one.extend({"x": [1, 2, 3]}, priority=[1.0, 2.0, 0.0])
    other.extend({"x": [10, 20]}, priority=[0.0, 3.0])
    batch = mix({one: 0.5, other: 0.5}).sample_arrays(4, sampler=PrioritizedSampler(seed=1))
    assert set(batch.x[:2].tolist()) <= {1, 2}
    assert batch.x[2:].tolist() == [20, 20]
    assert batch.probabilities is None
    assert len(set(batch.info["batch_id"].tolist())) == 2
    assert uses_in(buffer_url, "other") == {2: 2}


def test_a_limiter_counts_batches_by_priority_and_holds_them(buffer_url):
    limiter = RateLimiter(2.0, min_size=4, error_buffer=16)
    settings = {"rate_limiter": limiter, "max_use": 100, "wait_s": 0}
    with ReplayBuffer(buffer_url, fields={"x": "int64"}, priorities=True, **settings) as buffer:
        buffer.extend({"x": range(8)})
        sampler = PrioritizedSampler(seed=1)
        sampled = 0
        with suppress(FlowControlError):
            for _ in range(20):
                sampled += buffer.sample_arrays(4, sampler=sampler).n_rows
        assert 16 <= sampled <= 32
        assert buffer.flow().sampled == sampled
        assert sum(uses_in(buffer_url).values()) == sampled


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("unit", ["task", "episode"])
def test_what_leaves_whole_leaves_the_others_their_shares(buffer_url, unit):
    limits = {"max_capacity": 60, "evict_by": "task"} if unit == "task" else {"max_episodes": 6}
    options = {"fields": FIELDS, "priorities": True, "max_use": 10_000, **limits}
    with ReplayBuffer(buffer_url, **options) as buffer:
        run(buffer_url, "UPDATE buffers SET block_size = 16")
    buffer = ReplayBuffer(buffer_url)
    sampler = PrioritizedSampler(seed=4)
    for i in range(12):
        columns = {"obs": np.zeros((10, 1)), "reward": np.ones(10)}
        buffer.store_episode(columns, task_id=f"t{i}", episode_id=f"e{i}", priority=1.0 + i)
        batch = buffer.sample_arrays(8, sampler=sampler)
        buffer.update_priorities(batch.seq, 1.0 + batch.seq % 5)
        summarize_all(buffer, 20)
    held = dict(run(buffer_url, "SELECT seq, priority FROM v_priorities"))
    assert sorted(held) == list(range(61, 121))
    assert set(uses_in(buffer_url)) <= set(held)
    drawn = [seq for _ in range(10) for seq in buffer.sample_arrays(256, sampler=sampler).seq]
    assert_shares(drawn, weights_of(held))


def test_stats_tell_of_what_was_really_done(buffer_url):
    settings = {"max_use": 9, "max_staleness": 9, "track_samples": True, "max_capacity": 40}
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True, **settings) as buffer:
        store_episodes(buffer, [[1] * 30, [2] * 30])
        buffer.set_clock(3)
        batch = buffer.sample_arrays(10, sampler=PrioritizedSampler(replace=False, seed=1))
        buffer.update_priorities(batch.seq, 5.0, eps=0)
        buffer.sample(4, sampler=RandomSampler(seed=1))
        stats = buffer.stats()
    assert (stats.rows, stats.inserted, stats.evicted) == (40, 60, 20)
    assert (stats.sampled, stats.batches) == (14, 2)
    held = dict(run(buffer_url, "SELECT seq, priority FROM v_priorities"))
    used = uses_in(buffer_url)
    assert stats.priorities.max == 5.0
    assert stats.priorities.mean == pytest.approx(np.mean(list(held.values())))
    assert stats.uses.mean == pytest.approx(14 / 40)
    assert stats.uses.max == max(used.values())
    assert (stats.staleness.min, stats.staleness.max) == (1, 2)
