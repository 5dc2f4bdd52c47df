"""Weighted draws without a database: exact, repeatable, and looking at few weights.

Chi-square tests are at fixed keys, so they pass or fail for good; at P_VALUE a sound draw fails one
key in a thousand.
"""

import math
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from sqlbuffer import weighted_sampling
from sqlbuffer.weighted_sampling import (
    Weights,
    arrivals,
    draw_stratified,
    importance_weights,
    race_of_all,
    race_of_blocks,
    strata_of_all,
    streams,
    subkey,
    uniforms,
    weights_of,
)

P_VALUE = 0.001
SIZE = 16


class Table:
    """Weights by number, and what was asked of them."""

    def __init__(self, weights, matching=None):
        self.weights = np.asarray(weights, float)
        self.matching = np.ones(self.weights.size, bool) if matching is None else matching
        self.n_looked_up, self.n_read = 0, 0

    def rows_of(self, blocks):
        seqs = np.concatenate([np.arange(b * SIZE, (b + 1) * SIZE) for b in blocks])
        seqs = seqs[seqs < self.weights.size]
        self.n_read += seqs.size
        return seqs, self.weights[seqs]

    def weights_of(self, seqs):
        self.n_looked_up += seqs.size
        there = seqs < self.weights.size
        found = np.zeros(seqs.size)
        found[there] = (self.weights * self.matching)[seqs[there]]
        return found

    def blocks(self, looseness=1.0, read=()):
        n = -(-self.weights.size // SIZE)
        padded = np.zeros(n * SIZE)
        padded[: self.weights.size] = self.weights
        rows = padded.reshape(n, SIZE)
        made = Weights(
            SIZE,
            np.arange(n),
            rows.sum(axis=1),
            rows.max(axis=1) * looseness,
            self,
            is_filtered=not self.matching.all(),
        )
        made.read(np.array(list(read), np.int64))
        return made


def skewed(n, seed=0):
    """Return weights from 1e-6 to 1e6, some of them 0."""
    rng = np.random.default_rng(seed)
    weights = 10.0 ** rng.uniform(-6, 6, n)
    weights[rng.random(n) < 0.1] = 0.0
    return weights


def normal(n, seed=0):
    return np.abs(np.random.default_rng(seed).standard_normal(n)) ** 0.6


def counted(drawn, n):
    return np.bincount(np.concatenate(drawn), minlength=n)


def assert_shares(counts, weights, n_drawn):
    """Test that rows were drawn by their weights; those expected less than 5 times together."""
    assert not counts[weights == 0].any()
    expected = weights / weights.sum() * n_drawn
    rare = expected < 5
    observed, wanted = counts[~rare], expected[~rare]
    if rare.any():
        observed = np.append(observed, counts[rare].sum())
        wanted = np.append(wanted, expected[rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    if observed.size > 1:
        assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > P_VALUE


WEIGHTS = {
    "like errors": normal(300),
    "equal": np.ones(100),
    "one dominates": np.append(np.full(99, 0.01), 50.0),
    "1e-6 to 1e6": skewed(400),
    "in one block": np.append(np.zeros(200), normal(16)),
    "one row": np.array([0.0, 3.0]),
}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(("batch_size", "looseness"), [(1, 1.0), (8, 20.0), (200, 1.0)])
def test_draws_with_replacement_have_their_probabilities(name, looseness, batch_size):
    weights = WEIGHTS[name]
    n = max(30, 800 // batch_size)
    table = Table(weights)
    drawn = [
        race_of_blocks(key, table.blocks(looseness), batch_size, replace=True) for key in range(n)
    ]
    assert all(each.is_complete and each.seqs.size == batch_size for each in drawn)
    assert_shares(counted([each.seqs for each in drawn], weights.size), weights, n * batch_size)


def test_draws_follow_each_other_without_memory():
    """Pairs of neighbours in a batch are as likely as the product of their probabilities."""
    weights = np.array([1.0, 2.0, 0.0, 5.0] + [0.0] * 30 + [2.0])
    table = Table(weights)
    rows = np.flatnonzero(weights)
    pairs = np.zeros((rows.size, rows.size))
    for key in range(100):
        index = np.searchsorted(rows, race_of_blocks(key, table.blocks(), 41, replace=True).seqs)
        np.add.at(pairs, (index[0:40:2], index[1:41:2]), 1)
    shares = weights[rows] / weights.sum()
    expected = np.outer(shares, shares) * pairs.sum()
    assert chisquare(pairs.ravel(), expected.ravel()).pvalue > P_VALUE


def ordered_probabilities(weights, n):
    """Return the probability of each order in which n of the rows may be drawn."""
    found = {}
    for order in permutations(np.flatnonzero(weights).tolist(), n):
        probability, left = 1.0, weights.sum()
        for row in order:
            probability *= weights[row] / left
            left -= weights[row]
        found[order] = probability
    return found


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("looseness", "read"), [(1.0, (0, 2)), (30.0, ())])
@pytest.mark.parametrize(
    "own", [(1.0, 2.0, 4.0, 3.0), (1.0, 1.0, 300.0, 2.0), (1e-6, 1.0, 1e-6, 1e6)]
)
def test_draws_without_replacement_have_the_probability_of_their_order(own, read, looseness):
    weights = np.zeros(48)
    weights[[1, 3, 20, 40]] = own
    expected = ordered_probabilities(weights, 3)
    table, counts = Table(weights), dict.fromkeys(expected, 0)
    n_drawn = 400
    for key in range(n_drawn):
        found = race_of_blocks(key, table.blocks(looseness, read), 3, replace=False)
        counts[tuple(found.seqs.tolist())] += 1
    often = [order for order in expected if expected[order] * n_drawn >= 5]
    observed = np.array([counts[order] for order in often])
    wanted = np.array([expected[order] for order in often])
    assert n_drawn - observed.sum() <= 5 + 6 * n_drawn * (1 - wanted.sum())
    if len(often) > 1:
        assert chisquare(observed, wanted / wanted.sum() * observed.sum()).pvalue > P_VALUE


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5, 60])
def test_large_draws_without_replacement_include_rows_as_a_full_race_does(n):
    weights = normal(120, 3)
    table = Table(weights)
    sparse = [race_of_blocks(key, table.blocks(3.0), n, replace=False).seqs for key in range(300)]
    assert all(len(set(found.tolist())) == n for found in sparse)
    rng = np.random.default_rng(1)
    whole = [np.argsort(rng.exponential(size=120) / weights)[:n] for _ in range(300)]
    a, b = counted(sparse, 120), counted(whole, 120)
    share = (a + b) / 600
    spread = np.sqrt(2 * 300 * share * (1 - share))
    often = spread > 1.5
    z = (a - b)[often] / spread[often]
    assert kstest(z, "norm").pvalue > P_VALUE


def test_a_row_of_weight_0_is_never_drawn():
    weights = np.zeros(64)
    weights[5] = 1e-9
    for replace in (True, False):
        found = race_of_blocks(1, Table(weights).blocks(), 8, replace=replace)
        assert set(found.seqs.tolist()) == {5}
        assert found.is_complete
        assert found.seqs.size == (8 if replace else 1)
    found = race_of_blocks(1, Table(np.zeros(64)).blocks(), 8, replace=True)
    assert found.is_complete
    assert not found.seqs.size


def test_more_rows_than_there_are_come_once_each_without_replacement():
    weights = skewed(90)
    found = race_of_blocks(3, Table(weights).blocks(), 500, replace=False)
    assert found.is_complete
    assert sorted(found.seqs.tolist()) == np.flatnonzero(weights).tolist()


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weights", [normal(400), skewed(400)], ids=["like errors", "skewed"])
def test_what_is_drawn_does_not_depend_on_what_is_known(weights, replace):
    for key in range(8):
        expected = race_of_blocks(key, Table(weights).blocks(), 32, replace=replace).seqs.tolist()
        for looseness, read in ((1.0, range(25)), (1.5, [0, 24]), (5.0, range(7)), (40.0, [])):
            weighed = Table(weights).blocks(looseness, read)
            assert race_of_blocks(key, weighed, 32, replace=replace).seqs.tolist() == expected


def test_a_round_has_the_arrivals_before_its_end_whatever_is_known():
    """As many as are expected: the sum of the weights times the end."""
    weights, end = normal(400), 0.1
    counts = []
    for key in range(60):
        tight, *_ = expected = weighted_sampling._round(key, Table(weights).blocks(), end)
        for looseness, read in ((1.5, range(9)), (4.0, [])):
            found = weighted_sampling._round(key, Table(weights).blocks(looseness, read), end)
            assert found[0].tolist() == tight.tolist()
            assert found[1].tolist() == expected[1].tolist()
        counts.append(tight.size)
    mean = end * weights.sum()
    assert abs(np.mean(counts) - mean) < 4 * math.sqrt(mean / 60)


def test_other_keys_draw_other_rows():
    weights = np.ones(1_000)
    drawn = {
        tuple(race_of_blocks(key, Table(weights).blocks(), 8, replace=True).seqs)
        for key in range(99)
    }
    assert len(drawn) == 99


def test_few_weights_are_looked_at():
    """256 of a million: a few times the rows drawn, and no more than of a tenth of them."""
    asked = []
    for n in (100_000, 1_000_000):
        table = Table(normal(n))
        blocks = table.blocks()
        found = race_of_blocks(0, blocks, 256, replace=True)
        assert found.seqs.size == 256
        asked.append(table.n_looked_up + table.n_read)
    assert max(asked) < 1_200
    assert asked[1] < 1.3 * asked[0]


def test_a_row_that_dominates_is_found_without_reading_the_others():
    weights = np.ones(200_000)
    weights[777] = 1e9
    table = Table(weights)
    found = race_of_blocks(0, table.blocks(), 64, replace=False)
    assert found.seqs[0] == 777
    assert found.seqs.size == 64
    assert table.n_looked_up + table.n_read < 2_000


def test_rows_that_do_not_match_are_not_drawn():
    weights = normal(2_000, 5)
    matching = np.arange(2_000) % 3 == 0
    for read in ((), range(125)):
        table = Table(weights, matching)
        drawn = [
            race_of_blocks(key, table.blocks(1.5, read), 50, replace=True) for key in range(60)
        ]
        assert all(each.is_complete and each.seqs.size == 50 for each in drawn)
        counts = counted([each.seqs for each in drawn], 2_000)
        assert_shares(counts, weights * matching, 3_000)


@pytest.mark.thorough
@pytest.mark.parametrize("replace", [True, False])
def test_a_draw_that_few_rows_match_stops_and_goes_on_over_all(replace):
    weights = np.ones(20_000)
    matching = np.zeros(20_000, bool)
    matching[[5, 9_000, 17_000, 17_001]] = True
    weights[17_001] = 4.0
    counts = np.zeros(20_000, int)
    n_stopped = 0
    for key in range(150):
        found = race_of_blocks(key, Table(weights, matching).blocks(), 2, replace=replace)
        seqs = np.flatnonzero(matching)
        left = np.where(np.isin(seqs, found.seqs) & (not replace), 0.0, weights[seqs])
        n_stopped += not found.is_complete
        rest = race_of_all(subkey(key, 9), seqs, left, 2 - found.seqs.size, replace=replace)
        whole = np.concatenate([found.seqs, rest])
        assert whole.size == 2
        assert replace or whole[0] != whole[1]
        counts[whole[0]] += 1
    assert n_stopped > 75
    assert_shares(counts, weights * matching, 150)


@pytest.mark.parametrize("n", [1, 5, 200])
def test_all_weights_known_are_drawn_by(n):
    weights = skewed(60)
    seqs = np.arange(60) * 7
    for replace in (True, False):
        drawn = [race_of_all(key, seqs, weights, n, replace=replace) for key in range(800)]
        first = np.bincount([found[0] // 7 for found in drawn], minlength=60)
        assert_shares(first, weights, 800)
        n_positive = int((weights > 0).sum())
        assert {found.size for found in drawn} == {n if replace else min(n, n_positive)}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", WEIGHTS)
def test_each_stratum_gives_a_row_and_rows_have_their_probabilities(name, whole):
    weights = WEIGHTS[name]
    n, n_batches = 10, 120
    table, seqs = Table(weights), np.arange(weights.size)
    drawn = []
    for key in range(n_batches):
        if whole:
            found = strata_of_all(key, seqs, weights, n)
        else:
            result = draw_stratified(key, table.blocks(), n)
            assert result.is_complete
            found = result.seqs
        assert found.size == n
        drawn.append(found)
    counts = counted(drawn, weights.size)
    assert not counts[weights == 0].any()
    # A row's count varies less than when drawn alone, so chi-square is at most what it may be.
    expected = weights / weights.sum() * n * n_batches
    often = expected >= 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    n_often = int(often.sum())
    assert statistic < n_often + 4 * math.sqrt(2 * n_often) + 4
    # The stratum decides the block to the row: so many have come before as the sums say.
    ends = np.cumsum(weights) / weights.sum() * n
    size = 1 if whole else SIZE
    first = np.concatenate([[0.0], ends])
    for found in drawn:
        low = first[found // size * size]
        high = first[np.minimum((found // size + 1) * size, weights.size)]
        assert (low <= np.arange(1, n + 1) + 1e-9).all()
        assert (high >= np.arange(n) - 1e-9).all()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "n"),
    [(np.ones(160), 40), (normal(160) + 0.05, 30), (normal(300), 100), (np.ones(40), 24)],
    ids=["a few a block", "unequal", "most of a block", "blocks that are read"],
)
def test_strata_that_share_a_block_draw_its_rows_by_weight(weights, n):
    n_batches = 1_500
    counts, squares, n_repeated = np.zeros(weights.size), np.zeros(weights.size), 0
    for key in range(n_batches):
        found = draw_stratified(key, Table(weights).blocks(), n)
        assert found.is_complete
        assert (np.diff(found.seqs) >= 0).all()
        drawn = np.bincount(found.seqs, minlength=weights.size)
        counts, squares = counts + drawn, squares + drawn**2
        n_repeated += int((drawn > 1).sum())
    expected = weights / weights.sum() * n
    assert (expected < 1).all() or n_repeated
    # Each count is near a normal one; together their squares are near chi-square.
    variance = squares / n_batches - (counts / n_batches) ** 2
    often = (expected * n_batches >= 20) & (variance > 0)
    z = (counts / n_batches - expected)[often] / np.sqrt(variance[often] / n_batches)
    assert (z**2).mean() < 1 + 4 * math.sqrt(2 / often.sum())
    assert n_repeated < 0.08 * n * n_batches


def test_strata_do_not_depend_on_what_is_known():
    weights = normal(400)
    for key in range(8):
        expected = draw_stratified(key, Table(weights).blocks(), 40).seqs.tolist()
        for looseness, read in ((3.0, []), (30.0, [1, 2]), (1.0, range(25))):
            weighed = Table(weights).blocks(looseness, read)
            assert draw_stratified(key, weighed, 40).seqs.tolist() == expected


def test_strata_of_sums_that_are_wrong_are_left_open():
    table = Table(np.zeros(32))
    blocks = Weights(SIZE, np.arange(2), np.array([1e-9, 0.0]), np.array([1.0, 0.0]), table)
    found = draw_stratified(0, blocks, 4)
    assert not found.is_complete
    assert (found.seqs == -1).all()


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_importance_weights_are_those_of_the_paper(alpha, beta):
    priorities = 10.0 ** np.random.default_rng(0).uniform(-2, 2, 50)
    weights = weights_of(priorities, alpha)
    plain = (50 * weights / weights.sum()) ** -beta
    found = importance_weights(priorities, alpha, beta, priorities.min())
    np.testing.assert_allclose(found, plain / plain.max(), rtol=1e-12)


def test_importance_weights_of_priorities_far_apart_are_finite():
    found = importance_weights(np.array([1e-100, 1e100]), 1.0, 1.0, 1e-100)
    assert found.tolist() == [1.0, pytest.approx(1e-200)]


def test_a_priority_of_0_has_no_weight_whatever_alpha_is():
    for alpha in (0.0, 0.6, 1.0):
        assert weights_of(np.array([0.0, 2.0]), alpha).tolist() == [0.0, 2.0**alpha]


def test_random_numbers_are_uniform_and_arrivals_have_their_rate():
    seeds = streams(7, np.arange(20_000))
    assert kstest(uniforms(seeds), "uniform").pvalue > P_VALUE
    found = arrivals(seeds, np.full(20_000, 3.0))
    counts = np.bincount(found.stream, minlength=20_000)
    # Poisson: the mean is the variance.
    assert abs(counts.mean() - 3) < 4 * math.sqrt(3 / 20_000)
    assert abs(counts.var() - 3) < 4 * math.sqrt(21 / 20_000)
    assert kstest(found.clock / 3, "uniform").pvalue > P_VALUE
    assert kstest(found.place, "uniform").pvalue > P_VALUE


def test_arrivals_below_a_larger_limit_are_the_same_and_more():
    seeds = streams(7, np.arange(50))
    few, many = (arrivals(seeds, np.full(50, limit)) for limit in (2.0, 40.0))
    early = many.clock < 2.0
    assert early.sum() == few.clock.size
    kept = {(s, c, p) for s, c, p in zip(*(part[early] for part in many), strict=True)}
    assert kept == set(zip(*few, strict=True))
