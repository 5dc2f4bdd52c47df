"""Weighted draws as an exponential race that looks at few of the rows.

Each row has a Poisson process whose rate is its weight. In the order of their times, the arrivals
are independent weighted draws; the first ones of each row are the weighted draw without replacement
(Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir"). The arrivals after any
time are a race of their own, independent of earlier ones. So a draw goes on in rounds, and may
change its method between two rounds.

Rows are numbered, and known by blocks of consecutive numbers: the sum of the weights of a block,
and a bound of each of them. A round is the race up to a time that about as many arrivals come
before as rows are wanted. In a block whose rows are unlikely to be drawn, the arrivals of a
separate process are thinned. Each number of the block has arrivals of one rate, and an arrival at
clock c of a row of weight w is one at time c / w. With a bound of w, few of them need be looked at,
and only the weights of those. A block where rows are likely to come is read whole, and its arrivals
are drawn by the sum of its weights.

The random numbers belong to a key, a round and a block. Therefore a draw depends on the key and the
weights alone, not on the bounds or on blocks that were read before.
"""

import math
from typing import NamedTuple

import numpy as np

from sqlbuffer.weighted_sampling.block_weights import Weights
from sqlbuffer.weighted_sampling.random_streams import (
    Integers,
    Reals,
    arrivals,
    streams,
    subkey,
    uniforms,
)

# A row that comes with this chance in a round has its block read whole: looking up as many of the
# block's rows would cost as much.
LIKELY = 0.5
# A draw gives up and reads all weights if it would look at more arrivals than this many times
# those wanted.
MOST_GROWTH = 32
MOST_ROUNDS = 100


class WeightedDraw(NamedTuple):
    """The result of a draw.

    Attributes:
        seqs: The rows, in their order; -1 for a stratum without a row.
        is_complete: The draw has all rows that were wanted, or all there are.
    """

    seqs: Integers
    is_complete: bool


def draw(key: int, weights: Weights, n: int, *, replace: bool) -> WeightedDraw:
    """Draw rows by weight.

    The draw stops early if reading all weights would cost less. Its rows are then the first ones.
    """
    found = np.empty(0, np.int64)
    if not replace:
        n = min(n, weights.size * weights.blocks.size)
    wanted = _horizon(n)
    budget = MOST_GROWTH * wanted
    n_round = 0
    while found.size < n and (total := weights.total) > 0:
        if wanted > budget or n_round == MOST_ROUNDS:
            return WeightedDraw(found, False)
        seqs, own = _round(subkey(key, n_round), weights, wanted / total)
        share = (seqs.size + 1) / (wanted + 1)
        if not replace:
            _, first = np.unique(seqs, return_index=True)
            first = np.sort(first)
            seqs, own = seqs[first], own[first]
            is_new = ~np.isin(seqs, found)
            seqs, own = seqs[is_new], own[is_new]
        found = np.concatenate([found, seqs[: n - found.size]])
        if not replace and found.size < n:
            weights = weights.without(seqs, own)
        budget -= wanted
        wanted = _horizon(n - found.size) / min(share, 1.0)
        n_round += 1
    return WeightedDraw(found, True)


def _horizon(n: int) -> float:
    """Return an expected number of arrivals with which fewer than n come once in 1,000 times."""
    return n + 3 * math.sqrt(n) + 3


def _round(key: int, weights: Weights, end: float) -> tuple[Integers, Reals]:
    """Return the rows that arrive before a time, in order, and their weights."""
    weights.read(np.flatnonzero(end * weights.bounds >= LIKELY))
    is_likely = end * weights.bounds >= LIKELY
    limits = end * np.where(is_likely, weights.sums, weights.size * weights.bounds)
    found = arrivals(streams(key, weights.blocks), limits)
    direct = is_likely[found.stream]
    seqs = np.empty(found.stream.size, np.int64)
    seqs[~direct] = uniform_rows(weights, found.stream[~direct], found.place[~direct])
    seqs[direct] = rows_by_weight(weights, found.stream[direct], found.place[direct])
    own = weights.of(seqs)
    times = np.full(seqs.size, np.inf)
    there = own > 0
    rates = np.where(direct, weights.sums[found.stream], weights.size * own)
    times[there] = found.clock[there] / rates[there]
    early = np.flatnonzero(times < end)
    order = early[np.argsort(times[early], kind="stable")]
    return seqs[order], own[order]


def uniform_rows(weights: Weights, places: Integers, fractions: Reals) -> Integers:
    """Return a row number of each block, with equal probability for all of its numbers."""
    slots = (fractions * weights.size).astype(np.int64)
    return weights.blocks[places] * weights.size + slots


def rows_by_weight(weights: Weights, places: Integers, fractions: Reals) -> Integers:
    """Return a row number of each block, drawn by the weights of its rows."""
    found = np.empty(places.size, np.int64)
    order = np.argsort(places, kind="stable")
    own, starts = np.unique(places[order], return_index=True)
    for place, mine in zip(own.tolist(), np.split(order, starts[1:]), strict=False):
        slots = picked(weights.rows(place), fractions[mine])
        found[mine] = weights.blocks[place] * weights.size + slots
    return found


def picked(weights: Reals, fractions: Reals) -> Integers:
    """Return the index of the weight that each fraction of their sum falls on; never one of 0."""
    sums = np.cumsum(weights)
    last = int(np.flatnonzero(weights)[-1])
    found: Integers = np.searchsorted(sums, fractions * sums[-1], side="right")
    return np.minimum(found, last)


def draw_of_all(key: int, seqs: Integers, weights: Reals, n: int, *, replace: bool) -> Integers:
    """Return up to n rows by weight, where all weights are known."""
    is_positive = weights > 0
    seqs, weights = seqs[is_positive], weights[is_positive]
    if not seqs.size:
        return seqs
    if replace:
        return seqs[picked(weights, uniforms(streams(key, np.arange(n))))]
    times = -np.log(uniforms(streams(key, seqs))) / weights
    n = min(n, seqs.size)
    first = np.argpartition(times, n - 1)[:n]
    return seqs[first[np.argsort(times[first], kind="stable")]]
