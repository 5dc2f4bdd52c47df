"""A mirror draws by priority as its buffer does."""

import time
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from scipy.stats import chisquare

from sqlbuffer import PrioritizedSampler, PriorityUpdate, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import (
    BufferConfigError,
    FieldError,
    InsufficientDataError,
    StorageError,
    StorageReadOnlyError,
    StorageUnreachableError,
)
from tests.support.episodes import FIELDS
from tests.support.mirror_priorities import (
    ALPHA,
    STATED,
    assert_same,
    columns,
    opened,
    priorities_of,
    weights_of,
    whole,
)
from tests.support.mirrors import every_row, rows_of
from tests.support.processes import running, wait_until
from tests.support.proxy import Proxy
from tests.support.sql import connected, is_sqlite, run


@pytest.fixture
def buffer(buffer_url):
    with opened(buffer_url) as buffer:
        buffer.store_episode(columns(100), episode_id="first")
        yield buffer


@pytest.fixture
def mirror(buffer):
    # Looks only when it is told to.
    with buffer.mirror(refresh_s=3_600) as mirror:
        yield mirror


@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_weights_and_probabilities_are_those_of_the_buffer(buffer, mirror, normalize):
    rng = np.random.default_rng(0)
    buffer.extend({"obs": rng.random((50, 2)), "action": range(50)}, priority=rng.random(50))
    buffer.update_priorities(np.arange(1, 31), rng.exponential(size=30) ** 3)
    buffer.update_priorities([40, 41], 0.0, eps=0.0)
    assert_same(mirror, buffer, 148, beta=0.6, normalize=normalize)
    with pytest.raises(InsufficientDataError, match=r"149, and 148 match.* have the priority 0"):
        whole(mirror, 149)


def changed(buffer, mirror):
    """Wrap the buffer, delete and update some of it, in the database and in the mirror."""
    rng = np.random.default_rng(1)
    for number in range(12):
        priority = rng.random(60) * 3
        buffer.store_episode(columns(60), episode_id=f"e{number}", priority=priority)
        seqs = mirror.sample_arrays(40, sampler=PrioritizedSampler(seed=number)).seq
        mirror.update_priorities(seqs, rng.exponential(size=40))
        if number % 3 == 0:
            mirror.refresh()
        buffer.update_priorities(seqs[:10], rng.exponential(size=10))
    buffer.delete(QueryBuilder().lt("exp_meta.step", 15).build())
    buffer.annotate(seqs[:5], reward=3.0)
    buffer.update_priorities(seqs[5:8], 0.0, eps=0.0)


def assert_drawn_by(weights, drawn, p=1e-9):
    """Assert that steps were drawn by their weights; a right draw without a seed fails with the
    chance p.
    """
    seqs, counts = np.unique(drawn, return_counts=True)
    assert set(seqs.tolist()) <= set(weights)
    own = np.array([weights[seq] for seq in sorted(weights)])
    found = np.zeros(len(own))
    found[np.searchsorted(sorted(weights), seqs)] = counts
    expected = own / own.sum() * len(drawn)
    # The test needs a few of each; those that are expected less often count together.
    is_few = expected < 5
    found = np.append(found[~is_few], found[is_few].sum())
    expected = np.append(expected[~is_few], expected[is_few].sum())
    are_there = expected > 0
    assert chisquare(found[are_there], expected[are_there]).pvalue > p


def test_draws_follow_the_priorities_after_wraps_deletions_and_updates(buffer, mirror, buffer_url):
    changed(buffer, mirror)
    mirror.refresh()
    weights = weights_of(buffer_url)
    assert_same(mirror, buffer, len(weights))
    for options in ({"seed": 3}, {}, {"seed": 3, "stratified": True}):
        sampler = PrioritizedSampler(**options)
        batch = mirror.sample_arrays(40_000, sampler=sampler)
        if "stratified" not in options:
            assert_drawn_by(weights, batch.seq, 1e-4 if options else 1e-9)
        else:
            # Each part of the sum has one step, so counts hardly differ from what is expected.
            share = np.array([weights[int(seq)] for seq in batch.seq]) / sum(weights.values())
            counts = dict(zip(*np.unique(batch.seq, return_counts=True), strict=True))
            expected = {int(s): p * 40_000 for s, p in zip(batch.seq, share, strict=True)}
            assert all(abs(counts[seq] - n) < 2 for seq, n in expected.items())
            assert (np.diff(batch.seq) >= 0).all()


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("n_draws", [1, 30])
def test_transitions_are_drawn_by_the_priorities_of_first_steps(
    buffer, mirror, buffer_url, n_draws
):
    changed(buffer, mirror)
    mirror.refresh()
    expected, own = every_row(buffer, "transition", n_step=3), weights_of(buffer_url)
    weights = {seq: own[seq] for seq in expected if seq in own}
    assert len(weights) < len(own)
    # Few draws plan their transitions themselves, many look them up.
    sampler = PrioritizedSampler(seed=5)
    for _ in range(n_draws):
        mirror.sample_transitions(8, n_step=3, sampler=sampler)
    for options in ({"seed": 4}, {}, {"seed": 4, "stratified": True}):
        sampler = PrioritizedSampler(**options)
        batches = [mirror.sample_transitions(500, n_step=3, sampler=sampler) for _ in range(40)]
        seqs = np.concatenate([batch.seq for batch in batches])
        if "stratified" not in options:
            assert_drawn_by(weights, seqs, 1e-4 if options else 1e-9)
        assert set(seqs.tolist()) <= set(weights)
        state = rows_of(batches[0])
        assert all(state[seq][name] == expected[seq][name] for seq in state for name in
                   ("obs", "next_obs", "reward", "info.n_steps"))  # fmt: skip
    theirs = buffer.sample_transitions(500, n_step=3, sampler=PrioritizedSampler())
    for batch in (*batches[:1], theirs):
        shares = np.array([own[int(seq)] for seq in batch.seq]) / sum(own.values())
        np.testing.assert_allclose(batch.probabilities, shares, rtol=1e-9)


def test_draws_without_a_seed_follow_weights_of_any_evenness(buffer, mirror):
    rng = np.random.default_rng(7)
    # From all alike to few that count, and back again to less than the largest before.
    for spread in (0.0, 0.3, 5.0, 0.6, 0.3):
        weights = np.exp(spread * rng.standard_normal(100))
        own = dict(zip(range(1, 101), weights, strict=True))
        mirror.update_priorities(np.arange(1, 101), weights ** (1 / ALPHA), eps=0.0)
        for seq in range(1, 101):
            mirror.update_priorities([seq], weights[seq - 1] ** (1 / ALPHA), eps=0.0)
        assert_drawn_by(own, mirror.sample_arrays(100_000, sampler=PrioritizedSampler()).seq)
        sampler = PrioritizedSampler(replace=False)
        pairs = np.array([mirror.sample_arrays(2, sampler=sampler).seq for _ in range(1_000)])
        assert (pairs[:, 0] != pairs[:, 1]).all()
        assert_drawn_by(own, pairs[:, 0])
        first = weights / weights.sum()
        # The second is drawn by the weights left after each first.
        second = first * ((first / (1 - first)).sum() - first / (1 - first))
        assert_drawn_by(dict(zip(own, second, strict=True)), pairs[:, 1])
        assert set(mirror.sample_arrays(100, sampler=sampler).seq.tolist()) == set(own)


@pytest.mark.parametrize(
    "options", [{}, {"replace": False}, {"stratified": True}, {"exact": True}], ids=str
)
def test_a_seed_repeats_wherever_the_steps_are_in_memory(buffer, mirror, buffer_url, options):
    changed(buffer, mirror)
    for _ in range(10):  # which take the places of those that leave
        buffer.store_episode(columns(70), priority=np.linspace(0.5, 3.0, 70))
        mirror.refresh()
    early = QueryBuilder().lt("exp_meta.step", 20).build()
    with opened(buffer_url) as other, other.mirror(refresh_s=3_600) as fresh:
        for condition, n in ((None, 100), (early, 20), (None, 250)):
            drawn = [
                source.sample_arrays(
                    n, sampler=PrioritizedSampler(seed=5, **options), condition=condition
                )
                for source in (mirror, fresh)
            ]
            assert drawn[0].seq.tolist() == drawn[1].seq.tolist()
        drawn = [
            source.sample_transitions(
                50, n_step=2, sampler=PrioritizedSampler(seed=5, **options), skip_single=True
            )
            for source in (mirror, fresh)
        ]
        assert drawn[0].seq.tolist() == drawn[1].seq.tolist()


@pytest.mark.thorough
def test_draws_without_replacement_follow_the_weights_that_are_left(buffer_url):
    with opened(buffer_url, alpha=1.0) as buffer:
        buffer.extend(columns(3), priority=[1.0, 2.0, 5.0])
        with buffer.mirror() as mirror:
            sampler = PrioritizedSampler(replace=False, seed=2)
            drawn = [tuple(mirror.sample_arrays(2, sampler=sampler).seq) for _ in range(3_000)]
    p = {1: 1 / 8, 2: 2 / 8, 3: 5 / 8}
    pairs = [(a, b) for a in p for b in p if a != b]
    expected = [3_000 * p[a] * p[b] / (1 - p[a]) for a, b in pairs]
    assert chisquare([drawn.count(pair) for pair in pairs], expected).pvalue > 1e-4


def test_new_steps_have_the_largest_priority_or_their_own(buffer, mirror):
    mirror.update_priorities([3], 40.0, eps=0.0)
    mirror.refresh()
    buffer.extend(columns(2))
    buffer.extend(columns(2), priority=[0.25, 80.0])
    found = priorities_of(mirror, 104)
    assert [found[seq] for seq in (101, 102, 103, 104)] == [40.0, 40.0, 0.25, 80.0]


def test_a_buffer_without_priorities_is_refused(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer, buffer.mirror() as mirror:
        buffer.extend(columns(5))
        for source in (buffer, mirror):
            with pytest.raises(BufferConfigError, match="has no priorities; make one with"):
                source.sample_arrays(2, sampler=PrioritizedSampler())
            with pytest.raises(FieldError, match="the buffer has no priorities; make one with"):
                source.update_priorities([1], 2.0)


@pytest.mark.parametrize("exact", [False, True])
def test_quarantine_and_conditions_leave_the_other_weights(buffer, mirror, exact):
    buffer.update_priorities(np.arange(1, 101), np.arange(100) / 10)
    half = QueryBuilder().gte("exp_meta.step", 50).build()

    def compare(n, **options):
        found, expected = (
            {name: np.asarray(batch[name], float)[np.argsort(batch.seq)] for name in STATED}
            for batch in (
                source.sample_arrays(
                    n, sampler=PrioritizedSampler(replace=False, exact=exact), **options
                )
                for source in (mirror, buffer)
            )
        )
        for name in STATED:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)

    if exact:
        compare(50, condition=half)
        strata = mirror.sample_arrays(
            2_000, sampler=PrioritizedSampler(stratified=True), condition=half
        )
        assert strata.seq.min() > 50
        assert (np.diff(strata.seq) >= 0).all()
    else:
        batch = mirror.sample_arrays(50, condition=half, sampler=PrioritizedSampler())
        assert batch.probabilities is None
    buffer.quarantine([100])
    batch = mirror.sample_arrays(4_000, sampler=PrioritizedSampler(exact=exact))
    assert 100 not in batch.seq
    if exact:
        compare(99)
    else:
        assert batch.probabilities is None


def test_stale_steps_and_those_of_other_sessions_are_not_drawn(buffer_url):
    with opened(
        buffer_url, max_staleness=1, current_session_only=True, keep_expired=True
    ) as buffer:
        for session in ("one", "two"):
            buffer.start_session(session)
            for version in (3, 5):
                buffer.extend(columns(10), model_version=version, session_id=session)
        buffer.set_clock(6)
        with buffer.mirror() as mirror:
            batch = mirror.sample_arrays(500, sampler=PrioritizedSampler())
            assert set(batch.seq.tolist()) == set(range(31, 41))
            assert batch.probabilities is None


def test_an_alpha_of_the_opener_counts(buffer, buffer_url):
    buffer.update_priorities(np.arange(1, 101), np.arange(100) / 10)
    with opened(buffer_url, alpha=0.0) as other, other.mirror() as mirror:
        assert_same(mirror, other, 100, beta=1.0)
        batch = mirror.sample_arrays(10_000, sampler=PrioritizedSampler(seed=1))
        assert chisquare(np.unique(batch.seq, return_counts=True)[1]).pvalue > 1e-4


def test_priorities_far_apart_leave_no_rounding_behind(buffer, mirror):
    mirror.update_priorities([5], 1e100, eps=0.0)
    assert set(mirror.sample_arrays(50, sampler=PrioritizedSampler()).seq.tolist()) == {5}
    mirror.update_priorities([5], 1.0, eps=0.0)
    batch = mirror.sample_arrays(20_000, sampler=PrioritizedSampler(seed=1))
    assert chisquare(np.unique(batch.seq, return_counts=True)[1]).pvalue > 1e-4
    np.testing.assert_allclose(batch.probabilities, 0.01, rtol=1e-9)


def test_an_empty_buffer_and_one_without_positive_priorities_say_so(buffer_url):
    with opened(buffer_url) as buffer, buffer.mirror() as mirror:
        for _ in range(2):
            for options in ({}, {"stratified": True}, {"replace": False}):
                sampler = PrioritizedSampler(**options)
                with pytest.raises(InsufficientDataError, match="asked for 8, and 0 match"):
                    mirror.sample_arrays(8, sampler=sampler)
            buffer.extend(columns(20), priority=np.zeros(20))


def test_a_seed_repeats_batches_and_beta_rises_with_each(mirror):
    samplers = [PrioritizedSampler(beta=0.5, beta_anneal_steps=4, seed=6) for _ in range(2)]
    batches = [
        [mirror.sample_arrays(20, sampler=sampler).seq.tolist() for _ in range(2)]
        for sampler in samplers
    ]
    assert batches[0] == batches[1]
    assert batches[0][0] != batches[0][1]
    assert samplers[0].beta == 0.75


@pytest.mark.parametrize(("mode", "options"), [("step", {}), ("transition", {"n_step": 2})])
def test_loaders_draw_by_priority(buffer, mirror, mode, options):
    mirror.update_priorities(np.arange(1, 51), 0.0, eps=0.0)
    expected = every_row(buffer, mode, **options)
    samplers = [PrioritizedSampler(beta_anneal_steps=10, seed=6) for _ in range(2)]
    first, second = (
        list(islice(mirror.loader(mode, 16, sampler=own, **options), 5)) for own in samplers
    )
    assert [batch.seq.tolist() for batch in first] == [batch.seq.tolist() for batch in second]
    for batch in first:
        assert batch.seq.min() > 50
        assert batch.weights.shape == (16,)
        assert all(rows_of(batch)[seq]["obs"] == expected[seq]["obs"] for seq in batch.seq.tolist())
    assert samplers[0].beta == pytest.approx(0.4 + 0.6 * 5 / 10)


def test_a_shared_mirror_refuses_priorities(tmp_path):
    with opened(tmp_path / "shared.db") as buffer:
        buffer.extend(columns(10))
        with buffer.mirror(shared=True) as mirror:
            assert mirror.sample_arrays(4).n_rows == 4
            for call in (
                lambda: mirror.sample_arrays(2, sampler=PrioritizedSampler()),
                lambda: mirror.update_priorities([1], 2.0),
            ):
                with pytest.raises(BufferConfigError, match="without shared=True"):
                    call()


def test_who_may_only_read_draws_uniformly(tmp_path):
    path = tmp_path / "read.db"
    with opened(path) as buffer:
        buffer.extend(columns(10))
        with ReplayBuffer(f"sqlite:///{path}?mode=ro") as reader, reader.mirror() as mirror:
            assert mirror.sample_arrays(4).n_rows == 4
            for call in (
                lambda: mirror.sample_arrays(2, sampler=PrioritizedSampler()),
                lambda: mirror.update_priorities([1], 2.0),
            ):
                with pytest.raises(StorageReadOnlyError, match="the role of a learner"):
                    call()


def test_windows_and_episodes_are_drawn_by_the_priority_of_their_first_step(buffer, mirror):
    for number in range(3):
        buffer.store_episode(columns(20), episode_id=f"e{number}")
    buffer.update_priorities(np.arange(1, 161), 0.0, eps=0.0)
    buffer.update_priorities([30, 121], 2.0, eps=0.0)
    for mode, options, expected in (
        ("window", {"length": 4}, {30, 121}),
        ("trajectory", {}, {121}),
    ):
        sampler = PrioritizedSampler(seed=1)
        batch = next(iter(mirror.loader(mode, 40, sampler=sampler, **options)))
        assert set(batch.seq.tolist()) == expected
        assert batch.weights.tolist() == [1.0] * 40


def test_a_mirror_of_a_part_draws_that_part_by_priority(buffer, buffer_url):
    buffer.update_priorities(np.arange(1, 101), np.arange(100) / 10)
    part = QueryBuilder().gte("reward", 90.0).build()
    with buffer.mirror(refresh_s=3_600, condition=part) as mirror:
        found = whole(mirror, 10, exact=True)
        batch = buffer.sample_arrays(
            10, condition=part, sampler=PrioritizedSampler(replace=False, exact=True)
        )
        assert sorted(found) == sorted(batch.seq.tolist())
        for i, seq in enumerate(batch.seq.tolist()):
            assert found[seq]["probabilities"] == pytest.approx(batch.probabilities[i])
        assert mirror.sample_arrays(4, sampler=PrioritizedSampler()).probabilities is None
        with pytest.raises(BufferConfigError, match="take normalize='batch'"):
            mirror.sample_arrays(4, sampler=PrioritizedSampler(normalize="buffer"))
        # An older step matches later, and its episode with it.
        buffer.extend(columns(3))
        buffer.update_priorities([101], 7.0, eps=0.0)
        mirror.refresh()
        buffer.annotate([101], reward=95.0)
        assert whole(mirror, 11, exact=True)[101]["priorities"] == 7.0


def test_priorities_stay_when_the_memory_grows(buffer_url):
    rng = np.random.default_rng(0)
    with opened(buffer_url, max_capacity=None, fields={"x": "float32"}) as buffer:
        buffer.extend({"x": np.zeros(100)}, priority=rng.random(100))
        with buffer.mirror(refresh_s=3_600) as mirror:
            mirror.update_priorities(np.arange(1, 11), 500.0, eps=0.0)
            own = rng.random(70_000) + 0.5
            buffer.extend({"x": np.zeros(70_000)}, priority=own)
            batch = mirror.sample_arrays(30_000, sampler=PrioritizedSampler(seed=1))
            expected = dict.fromkeys(range(1, 11), 500.0)
            expected |= dict(zip(range(101, 70_101), own.tolist(), strict=True))
            found = dict(zip(batch.seq.tolist(), batch.priorities.tolist(), strict=True))
            assert all(expected.get(seq, p) == p for seq, p in found.items())
            total = 10 * 500.0**ALPHA + (own**ALPHA).sum()
            assert abs(batch.probabilities[0] * total / batch.priorities[0] ** ALPHA - 1) < 0.01
            places = np.searchsorted([10.5, 100.5, 20_000, 40_000, 55_000], batch.seq)
            weights = np.array([expected.get(seq, 0.0) for seq in range(1, 70_101)]) ** ALPHA
            weights[10:100] = 0.0
            groups = np.searchsorted([10.5, 100.5, 20_000, 40_000, 55_000], np.arange(1, 70_101))
            shares = np.bincount(groups, weights) / weights.sum()
            counts = np.bincount(places)
            kept = [0, 2, 3, 4, 5]
            assert counts[1] < 200
            share = shares[kept] / shares[kept].sum() * counts[kept].sum()
            assert chisquare(counts[kept], share).pvalue > 1e-4


# A mirror sets priorities for all who draw from its buffer.


def test_updates_are_used_at_once_and_written_back(buffer, mirror, buffer_url):
    with opened(buffer_url) as other, other.mirror(refresh_s=3_600) as second:
        for each in (mirror, second):
            each.refresh()  # what this process commits is taken by the next draw
        assert mirror.update_priorities(np.arange(1, 101), 0.0, eps=0.0) == PriorityUpdate(100, 0)
        assert mirror.update_priorities([7, 8, 7], [1.0, 2.0, 3.0], eps=0.0).updated == 2
        assert priorities_of(mirror, 2) == {7: 3.0, 8: 2.0}
        with pytest.raises(InsufficientDataError):
            priorities_of(mirror, 3)
        assert set(priorities_of(second, 100).values()) == {1.0}
        mirror.refresh()
        assert priorities_of(buffer, 2) == {7: 3.0, 8: 2.0}
        second.refresh()
        assert priorities_of(second, 2) == {7: 3.0, 8: 2.0}
        assert second.update_priorities([9], 5.0, eps=0.0).updated == 1
    assert priorities_of(buffer, 3) == {7: 3.0, 8: 2.0, 9: 5.0}
    mirror.refresh()
    assert_same(mirror, buffer, 3)


def test_the_thread_writes_updates_back(buffer):
    with buffer.mirror(refresh_s=0.02) as mirror:
        mirror.update_priorities(np.arange(1, 101), 4.0, eps=0.0)
        wait_until(lambda: set(priorities_of(buffer, 100).values()) == {4.0}, "the update")


def test_what_is_set_while_the_thread_writes_is_written_too(buffer_url):
    n, rng = 20_000, np.random.default_rng(0)
    expected = np.ones(n + 1)
    with opened(buffer_url, max_capacity=n) as buffer:
        buffer.store_episode(columns(n))
        with buffer.mirror(refresh_s=0.01) as mirror:
            for _ in range(60):
                seqs = rng.integers(1, n + 1, 2_000)
                expected[seqs] = rng.random(2_000)
                mirror.update_priorities(seqs, expected[seqs], eps=0.0)
                mirror.sample_arrays(16, sampler=PrioritizedSampler())
                if rng.random() < 0.1:
                    buffer.update_priorities([1], expected[1], eps=0.0)  # a draw looks then
        found = dict(run(buffer_url, "SELECT seq, priority FROM v_priorities"))
        assert found == dict(zip(range(1, n + 1), expected[1:].tolist(), strict=True))


def test_the_last_of_two_updates_counts(buffer, mirror, buffer_url):
    with opened(buffer_url) as other:
        mirror.update_priorities([1, 2, 3], 5.0, eps=0.0)
        other.update_priorities([1, 2], 2.0, eps=0.0)
        other.update_priorities([4], 3.0, eps=0.0)
        # A draw reads what this process has written, and keeps what is not written yet.
        assert [priorities_of(mirror, 100)[seq] for seq in (1, 2, 3, 4)] == [5.0, 5.0, 5.0, 3.0]
        assert [priorities_of(buffer, 100)[seq] for seq in (1, 2, 3, 4)] == [2.0, 2.0, 1.0, 3.0]
        mirror.refresh()  # the mirror's own are written last
        assert priorities_of(mirror, 100)[1] == priorities_of(buffer, 100)[1] == 5.0
        mirror.update_priorities([2], 6.0, eps=0.0)
        mirror.refresh()
        other.update_priorities([2, 3], 0.5, eps=0.0)
        mirror.refresh()
        assert [priorities_of(mirror, 100)[seq] for seq in (1, 2, 3)] == [5.0, 0.5, 0.5]
        assert_same(mirror, buffer, 100)


def test_updates_of_the_buffer_itself_are_used_at_once(buffer, mirror):
    buffer.update_priorities(np.arange(1, 101), 0.0, eps=0.0)
    buffer.update_priorities([50], 2.0)
    assert set(mirror.sample_arrays(8, sampler=PrioritizedSampler()).seq.tolist()) == {50}


def test_steps_that_are_not_in_the_buffer_are_counted(buffer, mirror, buffer_url):
    buffer.store_episode(columns(290))
    buffer.delete(QueryBuilder().eq("exp_meta.step", 288).build())
    gone = [5, 90, 389, 10_000]
    for source in (mirror, buffer):
        assert source.update_priorities([*gone, 200], 3.0) == PriorityUpdate(1, 4)
    assert mirror.update_priorities([], []) == PriorityUpdate(0, 0)
    with opened(buffer_url) as other:
        other.extend(columns(1))
        assert mirror.update_priorities([391], 3.0) == PriorityUpdate(1, 0)


@pytest.mark.parametrize(
    ("seqs", "priorities", "eps"),
    [
        ([1], np.nan, 1e-6),
        ([1, 2], [1.0, np.inf], 1e-6),
        ([1], -0.5, 1e-6),
        ([1], 1.0, np.nan),
        ([1], 1e100, 1e90),
        ([1, 2], [1.0, 2.0, 3.0], 1e-6),
        ([1.5], 1.0, 1e-6),
        ([[1]], 1.0, 1e-6),
        ([1], "much", 1e-6),
        ([1], None, 1e-6),
        (None, 1.0, 1e-6),
    ],
)
def test_what_the_buffer_refuses_is_refused(buffer, mirror, seqs, priorities, eps):
    with pytest.raises(FieldError) as theirs:
        buffer.update_priorities(seqs, priorities, eps)
    with pytest.raises(FieldError) as ours:
        mirror.update_priorities(seqs, priorities, eps)
    assert str(ours.value) == str(theirs.value)
    assert set(priorities_of(mirror, 100).values()) == {1.0}


def test_updates_are_kept_while_the_database_is_away(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with closing(Proxy(url)) as proxy, opened(proxy.url, retry_s=0) as buffer:
        buffer.extend(columns(50))
        with buffer.mirror(refresh_s=3_600) as mirror:
            proxy.closed = True
            proxy.cut_all()
            mirror.update_priorities(np.arange(1, 51), 0.0, eps=0.0)
            mirror.update_priorities([4], 3.0, eps=0.0)
            with pytest.raises(StorageUnreachableError):
                mirror.refresh()
            assert priorities_of(mirror, 1) == {4: 3.0}
            proxy.closed = False
            mirror.refresh()
            assert priorities_of(buffer, 1) == {4: 3.0}


REFUSE = {
    "sqlite": (
        "CREATE TRIGGER refuse BEFORE INSERT ON priorities "
        "BEGIN SELECT RAISE(ABORT, 'no more of them'); END",
        "DROP TRIGGER refuse",
    ),
    "postgresql": (
        "ALTER TABLE priorities ADD CONSTRAINT refuse CHECK (priority < 0) NOT VALID",
        "ALTER TABLE priorities DROP CONSTRAINT refuse",
    ),
}


def test_updates_that_could_not_be_written_are_not_lost_in_silence(buffer, mirror, buffer_url):
    refuse, allow = REFUSE["sqlite" if is_sqlite(buffer_url) else "postgresql"]
    run(buffer_url, refuse)
    mirror.update_priorities([4], 3.0, eps=0.0)
    buffer.extend(columns(1))
    with pytest.raises(StorageError):
        mirror.refresh()
    assert mirror.lag().high == 101
    assert priorities_of(mirror, 101)[4] == 3.0
    run(buffer_url, allow)
    mirror.refresh()
    assert priorities_of(buffer, 101)[4] == 3.0
    run(buffer_url, refuse)
    mirror.update_priorities([5], 3.0, eps=0.0)
    with pytest.raises(StorageError):
        mirror.close()
    with pytest.raises(BufferConfigError, match="the mirror is closed"):
        mirror.sample_arrays(4)


def test_a_mirror_that_starts_again_keeps_what_was_set(buffer, mirror, buffer_url):
    mirror.update_priorities([4], 3.0, eps=0.0)
    with connected(buffer_url) as connection:
        connection.exec_driver_sql("DELETE FROM followers")
    mirror.refresh()
    with buffer.mirror(refresh_s=3_600) as other:
        for source in (mirror, other, buffer):
            assert priorities_of(source, 100)[4] == 3.0


def test_a_closed_mirror_sets_no_priorities(buffer):
    with buffer.mirror() as mirror:
        mirror.update_priorities([1], 9.0, eps=0.0)
    for call in (
        lambda: mirror.update_priorities([1], 2.0),
        lambda: mirror.sample_arrays(2, sampler=PrioritizedSampler()),
    ):
        with pytest.raises(BufferConfigError, match="the mirror is closed"):
            call()
    assert priorities_of(buffer, 100)[1] == 9.0


def update(url, worker, until):
    """Draw by priority, and set what was drawn to numbers of this worker."""
    rng = np.random.default_rng(worker)
    with opened(url) as buffer, buffer.mirror(refresh_s=0.01) as mirror:
        while time.time() < until:
            batch = mirror.sample_arrays(32, sampler=PrioritizedSampler())
            mirror.update_priorities(batch.seq, worker + rng.random(32), eps=0.0)
    return True


@pytest.mark.thorough
def test_learners_that_update_the_same_steps_agree_in_the_end(buffer, mirror, buffer_url):
    with running([(update, buffer_url, worker, time.time() + 1.0) for worker in (1, 2)]) as workers:
        assert all(workers.results(60))
    mirror.refresh()
    assert_same(mirror, buffer, 100)
    assert set(map(int, priorities_of(buffer, 100).values())) <= {1, 2}


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_changes_leaves_the_priorities_of_the_buffer(buffer, mirror, buffer_url, seed):
    rng = np.random.default_rng(seed)
    with opened(buffer_url) as other:
        for _ in range(40):
            high = mirror.lag().high
            seqs = rng.integers(max(high - 300, 1), high + 2, 12)
            values = rng.exponential(size=12) * (rng.random(12) > 0.2)
            match rng.integers(8):
                case 0 | 1:
                    mirror.update_priorities(seqs, values, eps=0.0)
                case 2:
                    other.update_priorities(seqs, values, eps=0.0)
                case 3:
                    other.extend(columns(30), priority=rng.random(30))
                case 4:
                    buffer.delete(QueryBuilder().in_("seq", seqs[:3].tolist()).build())
                case 5:
                    buffer.quarantine(seqs[:2])
                case 6:
                    buffer.release(seqs)
                case 7:
                    mirror.refresh()
            mirror.sample_arrays(4, sampler=PrioritizedSampler())
    mirror.refresh()
    weights = weights_of(buffer_url)
    barred = {seq for (seq,) in run(buffer_url, "SELECT seq FROM v_quarantine")}
    weights = {seq: weight for seq, weight in weights.items() if seq not in barred}
    batch = mirror.sample_arrays(
        len(weights), sampler=PrioritizedSampler(replace=False, exact=True)
    )
    total = sum(weights.values())
    assert sorted(batch.seq.tolist()) == sorted(weights)
    expected = [weights[seq] / total for seq in batch.seq.tolist()]
    np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)
