"""Stratified draws: one row from each of n equal parts of the sum of all weights."""

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.weighted_sampling.block_weights import Weights
from sqlbuffer.weighted_sampling.race import (
    LIKELY,
    WeightedDraw,
    picked,
    rows_by_weight,
    uniform_rows,
)
from sqlbuffer.weighted_sampling.random_streams import (
    Integers,
    Reals,
    arrivals,
    streams,
    subkey,
    uniforms,
)

# The expected arrivals in the block of a stratum in one round. One of twenty strata needs another
# round; where several strata share a block, half of them may.
STRATUM_ARRIVALS = 3.0
STRATUM_ROUNDS = 32


def draw_stratified(key: int, weights: Weights, n: int) -> WeightedDraw:
    """Draw a row from each of n equal parts of the sum of all weights, in the order of the rows.

    The sums decide in which block each stratum has its row. A stratum that is alone in its block
    draws by weight. k strata of one block draw k distinct rows, each with k times the probability
    of a single draw (Sampford 1967, "On sampling without replacement with unequal probabilities of
    selection"): the first by its weight w, the others by w / (1 - k w / sum), and all again where
    a row repeats. Where that would repeat too often, the block is read and cut into k equal parts.
    """
    found = np.full(n, -1)
    strata = np.arange(n)
    ends = np.cumsum(weights.sums)
    if not n or not ends.size or ends[-1] <= 0:
        return WeightedDraw(found[:0], True)
    targets = (strata + uniforms(streams(key, strata))) / n * ends[-1]
    last = int(np.flatnonzero(weights.sums)[-1])
    places = np.minimum(np.searchsorted(ends, targets, side="right"), last)
    own, starts, counts = np.unique(places, return_index=True, return_counts=True)
    is_cut = _is_cut(weights, own, counts)
    _cut_blocks(
        subkey(key, STRATUM_ROUNDS), weights, own, starts, np.where(is_cut, counts, 0), found
    )
    n_distinct = np.repeat(np.where((counts > 1) & ~is_cut, counts, 0), counts)
    is_distinct = n_distinct > 0
    n_distinct[starts] = 0  # the first of a block draws by weight alone
    for n_round in range(STRATUM_ROUNDS):
        strata = np.flatnonzero(found < 0)
        if not strata.size:
            break
        _run_strata(
            subkey(key, n_round), weights, strata, places[strata], n_distinct[strata], found
        )
        _undo_repeats(weights, places, is_distinct, found)
    found[is_distinct] = np.sort(found[is_distinct])
    return WeightedDraw(found, not (found < 0).any())


def _is_cut(weights: Weights, places: Integers, counts: Integers) -> NDArray[np.bool_]:
    """Return True for blocks with too few rows, or too heavy ones, for that many distinct draws."""
    # Below k^2 two of the k draws are seldom the same; below the other a block is likely.
    least = np.maximum(counts**2, STRATUM_ARRIVALS / LIKELY)
    found: NDArray[np.bool_] = (counts > 1) & (
        least * weights.bounds[places] >= weights.sums[places]
    )
    weights.read(places[found])
    return found & (least * weights.bounds[places] >= weights.sums[places])


def _cut_blocks(
    key: int,
    weights: Weights,
    places: Integers,
    starts: Integers,
    counts: Integers,
    found: Integers,
) -> None:
    """Store in `found` a row from each of k equal parts of the weights of a block."""
    # New numbers: those that chose the blocks are not uniform any more, given that choice.
    fractions = uniforms(streams(key, np.arange(found.size)))
    for place, start, k in zip(places, starts, counts, strict=True):
        if k and (rows := weights.rows(place)).any():  # else its sum was wrong
            parts = (np.arange(k) + fractions[start : start + k]) / k
            slots = picked(rows, parts)
            found[start : start + k] = weights.blocks[place] * weights.size + slots


def _undo_repeats(
    weights: Weights, places: Integers, is_distinct: NDArray[np.bool_], found: Integers
) -> None:
    """Forget what was drawn in blocks where a row that has to be distinct was drawn twice."""
    drawn = np.sort(found[is_distinct & (found >= 0)])
    blocks = drawn[1:][drawn[1:] == drawn[:-1]] // weights.size
    found[is_distinct & np.isin(weights.blocks[places], blocks)] = -1


def _run_strata(
    key: int,
    weights: Weights,
    strata: Integers,
    places: Integers,
    n_distinct: Integers,
    found: Integers,
) -> None:
    """Store in `found` the first arrival in the block of each stratum, if one comes in time.

    Args:
        key: The key of the round.
        weights: The weights.
        strata: The strata.
        places: The place of the block of each.
        n_distinct: k, for strata that draw by w / (1 - k w / sum); 0 for those that draw by w.
        found: The row of each stratum; -1 for those without one yet.
    """
    own = np.unique(places)
    weights.read(own[STRATUM_ARRIVALS * weights.bounds[own] >= LIKELY * weights.sums[own]])
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.where(weights.sums[places] > 0, STRATUM_ARRIVALS / weights.sums[places], 0.0)
    is_likely = ends * weights.bounds[places] >= LIKELY
    seeds = streams(key, strata, weights.blocks[places])
    shares = n_distinct * ends / STRATUM_ARRIVALS
    bounds = _raised(weights.bounds[places], shares)
    # Where rows are drawn by weight, the first arrival is as good as any.
    limits = np.where(is_likely, STRATUM_ARRIVALS, weights.size * ends * bounds)
    come = arrivals(seeds, limits)
    at, direct = places[come.stream], is_likely[come.stream]
    seqs = np.empty(at.size, np.int64)
    seqs[~direct] = uniform_rows(weights, at[~direct], come.place[~direct])
    seqs[direct] = rows_by_weight(weights, at[direct], come.place[direct])
    weight = weights.of(seqs)
    rates = np.where(direct, 1.0, weights.size * _raised(weight, shares[come.stream]))
    times = np.full(seqs.size, np.inf)
    times[weight > 0] = come.clock[weight > 0] / rates[weight > 0]
    limit = np.where(direct, STRATUM_ARRIVALS, ends[come.stream])
    early = np.flatnonzero(times < limit)
    # The first of each stratum is written last.
    order = early[np.argsort(-times[early], kind="stable")]
    found[strata[come.stream[order]]] = seqs[order]


def _raised(weights: Reals, shares: Reals) -> Reals:
    """Return w / (1 - w * share), the weights of Sampford's later draws."""
    found: Reals = weights / (1.0 - weights * shares)
    return found


def strata_of_all(key: int, seqs: Integers, weights: Reals, n: int) -> Integers:
    """Return a row of each of n equal parts of the sum of all weights, in the order of the rows."""
    if not n or not np.any(weights > 0):
        return seqs[:0]
    strata = np.arange(n)
    return seqs[picked(weights, (strata + uniforms(streams(key, strata))) / n)]
