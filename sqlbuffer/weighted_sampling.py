"""Draws whose chances follow weights.

A weighted draw is an exponential race that looks at few of the rows. Each row has a Poisson process
whose rate is its weight. In the order of their times, the arrivals are independent weighted draws;
the first ones of each row are the weighted draw without replacement (Efraimidis and Spirakis 2006,
"Weighted random sampling with a reservoir"). The arrivals after any time are a race of their own,
independent of earlier ones. So a draw goes on in rounds, and may change its method between two
rounds.

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
from copy import copy
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Hashes = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = tuple(np.uint64(shift) for shift in (30, 27, 31, 12))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
# The largest number of random numbers made in one step.
_MOST_AT_ONCE = 2**20


def key_of(rng: np.random.Generator) -> int:
    """Return a key for a draw."""
    return int(rng.integers(2**64, dtype=np.uint64))


def mixed(numbers: Hashes) -> Hashes:
    """Mix the numbers with the finalizer of SplitMix64: every bit depends on every bit
    (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    numbers = (numbers ^ (numbers >> _SHIFTS[0])) * _FACTORS[0]
    numbers = (numbers ^ (numbers >> _SHIFTS[1])) * _FACTORS[1]
    return numbers ^ (numbers >> _SHIFTS[2])


def streams(key: int, *numbers: Integers) -> Hashes:
    """Return the seed of a SplitMix64 generator for each number, or each pair of numbers."""
    seeds = np.full(np.broadcast_shapes(*(n.shape for n in numbers)), key, np.uint64)
    for column in numbers:
        seeds = mixed(seeds + (column.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return seeds


def uniforms(hashes: Hashes) -> Reals:
    """Return numbers above 0 and below 1."""
    return ((hashes >> _SHIFTS[3]).astype(np.float64) + 0.5) * 2.0**-52


def subkey(key: int, number: int) -> int:
    """Return a key that belongs to another one and a number."""
    return int(streams(key, np.array([number]))[0])


class Arrivals(NamedTuple):
    """Arrivals of several streams.

    Attributes:
        stream: The index of the stream of each.
        clock: When it comes.
        place: A number above 0 and below 1 of its own.
    """

    stream: Integers
    clock: Reals
    place: Reals


def arrivals(seeds: Hashes, limits: Reals) -> Arrivals:
    """Return the arrivals at rate 1 in each stream below its limit.

    A larger limit gives the same arrivals and more.
    """
    events = [(np.empty(0, np.int64), np.empty(0), np.empty(0))]
    active = np.flatnonzero(limits > 0)
    clock, n_before, n = np.zeros(active.size), 0, 1
    while active.size:
        n = max(1, min(n, _MOST_AT_ONCE // active.size))
        numbers = np.arange(n_before, n_before + n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        states = seeds[active][:, None] + numbers * _GOLDEN
        gaps = -np.log(uniforms(mixed(states)))
        gaps[:, 0] += clock
        clocks = np.cumsum(gaps, axis=1)
        is_early = clocks < limits[active][:, None]
        places = uniforms(mixed(states[is_early] + _GOLDEN))
        events.append((active[np.nonzero(is_early)[0]], clocks[is_early], places))
        goes_on = is_early[:, -1]
        active, clock = active[goes_on], clocks[goes_on, -1]
        n_before, n = n_before + n, 2 * n
    parts = [np.concatenate(part) for part in zip(*events, strict=True)]
    return Arrivals(*parts)


def weights_of(priorities: Reals, alpha: float) -> Reals:
    """Return priority ^ alpha (Schaul et al. 2016, equation 1); a priority of 0 has the weight 0
    even where alpha is 0.
    """
    return np.where(priorities > 0, priorities**alpha, 0.0)


def importance_weights(priorities: Reals, alpha: float, beta: float, least: float) -> Reals:
    """Return (N P)^-beta, divided by that of a row of the least priority (Schaul et al. 2016,
    section 3.4). N and the sum of the weights cancel out. The formula uses logarithms, since the
    priorities may be far apart.
    """
    weights: Reals = np.exp(alpha * beta * (np.log(least) - np.log(priorities)))
    return weights


class WeightSource(Protocol):
    """Where weights are read."""

    def rows_of(self, blocks: Integers) -> tuple[Integers, Reals]:
        """Return the numbers and weights of all rows of some blocks."""

    def weights_of(self, seqs: Integers) -> Reals:
        """Return the weights of numbers, each once and in order; 0 of what cannot be drawn."""


class Weights:
    """The known weights of rows, by block: sums and bounds, and single weights of blocks read.

    Args:
        size: Number of numbers.
        blocks: The blocks, without a gap and in order: block b has the numbers from b * size on.
        sums: The sum of the weights of each.
        bounds: No weight of a block is larger.
        source: Where weights are read.
        is_filtered: Not all rows can be drawn; those that the source has a weight for.
    """

    def __init__(
        self,
        size: int,
        blocks: Integers,
        sums: Reals,
        bounds: Reals,
        source: WeightSource,
        *,
        is_filtered: bool = False,
    ) -> None:
        self.size, self.blocks = size, blocks
        self.sums, self.bounds = sums.astype(np.float64), bounds.astype(np.float64)
        self._source, self._is_filtered = source, is_filtered
        self._dense = np.empty((0, size))
        self._index = np.full(blocks.size, -1)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self.sums.sum())

    def read(self, places: Integers) -> None:
        """Read all rows of the blocks at some places."""
        places = places[self._index[places] < 0]
        if not places.size:
            return
        seqs, weights = self._source.rows_of(self.blocks[places])
        n_before = len(self._dense)
        self._index[places] = np.arange(n_before, n_before + places.size)
        dense = np.zeros((places.size, self.size))
        block_places, slots = self._places_of(seqs)
        dense[self._index[block_places] - n_before, slots] = weights
        self._dense = np.concatenate([self._dense, dense])
        self._add_up(places)

    def has_read(self, place: int) -> bool:
        """Return True if all rows of a block were read."""
        return bool(self._index[place] >= 0)

    def rows(self, place: int) -> Reals:
        """Return the weights of a block that was read, 0 where there is no row."""
        weights: Reals = self._dense[self._index[place]]
        return weights

    def of(self, seqs: Integers) -> Reals:
        """Return the weights of numbers; 0 of those that are not there or cannot be drawn."""
        block_places, slots = self._places_of(seqs)
        index = self._index[block_places]
        weights = np.zeros(seqs.size)
        is_read = index >= 0
        weights[is_read] = self._dense[index[is_read], slots[is_read]]
        is_unknown = (~is_read | (weights > 0)) if self._is_filtered else ~is_read
        if is_unknown.any():
            asked, inverse = np.unique(seqs[is_unknown], return_inverse=True)
            weights[is_unknown] = self._source.weights_of(asked)[inverse]
        return weights

    def without(self, seqs: Integers, weights: Reals) -> "Weights":
        """Return the weights without some rows; bounds of blocks that were not read stay."""
        others = copy(self)
        others.sums, others.bounds = self.sums.copy(), self.bounds.copy()
        others._dense, others._index = self._dense.copy(), self._index.copy()
        block_places, slots = self._places_of(seqs)
        index = self._index[block_places]
        is_read = index >= 0
        others._dense[index[is_read], slots[is_read]] = 0.0
        np.subtract.at(others.sums, block_places[~is_read], weights[~is_read])
        np.maximum(others.sums, 0.0, out=others.sums)
        others._add_up(np.unique(block_places[is_read]))
        return others

    def _places_of(self, seqs: Integers) -> tuple[Integers, Integers]:
        """Return the place of the block of each number, and its place there."""
        blocks = seqs // self.size
        return blocks - self.blocks[0] if seqs.size else blocks, seqs - blocks * self.size

    def _add_up(self, places: Integers) -> None:
        rows = self._dense[self._index[places]]
        self.sums[places] = rows.sum(axis=1)
        self.bounds[places] = rows.max(axis=1, initial=0.0)


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


def race_of_blocks(key: int, weights: Weights, n: int, *, replace: bool) -> WeightedDraw:
    """Draw rows by weight.

    The draw stops early if reading all weights would cost less. Its rows are then the first ones.
    """
    drawn = np.empty(0, np.int64)
    if not replace:
        n = min(n, weights.size * weights.blocks.size)
    expected = _horizon(n)
    budget = MOST_GROWTH * expected
    n_round = 0
    while drawn.size < n and (total := weights.total) > 0:
        if expected > budget or n_round == MOST_ROUNDS:
            return WeightedDraw(drawn, False)
        seqs, row_weights = _round(subkey(key, n_round), weights, expected / total)
        share = (seqs.size + 1) / (expected + 1)
        if not replace:
            _, first = np.unique(seqs, return_index=True)
            first = np.sort(first)
            seqs, row_weights = seqs[first], row_weights[first]
            is_new = ~np.isin(seqs, drawn)
            seqs, row_weights = seqs[is_new], row_weights[is_new]
        drawn = np.concatenate([drawn, seqs[: n - drawn.size]])
        if not replace and drawn.size < n:
            weights = weights.without(seqs, row_weights)
        budget -= expected
        expected = _horizon(n - drawn.size) / min(share, 1.0)
        n_round += 1
    return WeightedDraw(drawn, True)


def _horizon(n: int) -> float:
    """Return an expected number of arrivals with which fewer than n come once in 1,000 times."""
    return n + 3 * math.sqrt(n) + 3


def _round(key: int, weights: Weights, end: float) -> tuple[Integers, Reals]:
    """Return the rows that arrive before a time, in order, and their weights."""
    weights.read(np.flatnonzero(end * weights.bounds >= LIKELY))
    is_likely = end * weights.bounds >= LIKELY
    limits = end * np.where(is_likely, weights.sums, weights.size * weights.bounds)
    events = arrivals(streams(key, weights.blocks), limits)
    direct = is_likely[events.stream]
    seqs = np.empty(events.stream.size, np.int64)
    seqs[~direct] = uniform_rows(weights, events.stream[~direct], events.place[~direct])
    seqs[direct] = rows_by_weight(weights, events.stream[direct], events.place[direct])
    row_weights = weights.of(seqs)
    times = np.full(seqs.size, np.inf)
    there = row_weights > 0
    rates = np.where(direct, weights.sums[events.stream], weights.size * row_weights)
    times[there] = events.clock[there] / rates[there]
    early = np.flatnonzero(times < end)
    order = early[np.argsort(times[early], kind="stable")]
    return seqs[order], row_weights[order]


def uniform_rows(weights: Weights, places: Integers, fractions: Reals) -> Integers:
    """Return a row number of each block, with equal probability for all of its numbers."""
    slots = (fractions * weights.size).astype(np.int64)
    return weights.blocks[places] * weights.size + slots


def rows_by_weight(weights: Weights, places: Integers, fractions: Reals) -> Integers:
    """Return a row number of each block, drawn by the weights of its rows."""
    drawn = np.empty(places.size, np.int64)
    order = np.argsort(places, kind="stable")
    distinct, starts = np.unique(places[order], return_index=True)
    for place, mine in zip(distinct.tolist(), np.split(order, starts[1:]), strict=False):
        slots = picked(weights.rows(place), fractions[mine])
        drawn[mine] = weights.blocks[place] * weights.size + slots
    return drawn


def picked(weights: Reals, fractions: Reals) -> Integers:
    """Return the index of the weight that each fraction of their sum falls on; never one of 0."""
    sums = np.cumsum(weights)
    last = int(np.flatnonzero(weights)[-1])
    places: Integers = np.searchsorted(sums, fractions * sums[-1], side="right")
    return np.minimum(places, last)


def race_of_all(key: int, seqs: Integers, weights: Reals, n: int, *, replace: bool) -> Integers:
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
    rows = np.full(n, -1)
    strata = np.arange(n)
    ends = np.cumsum(weights.sums)
    if not n or not ends.size or ends[-1] <= 0:
        return WeightedDraw(rows[:0], True)
    targets = (strata + uniforms(streams(key, strata))) / n * ends[-1]
    last = int(np.flatnonzero(weights.sums)[-1])
    places = np.minimum(np.searchsorted(ends, targets, side="right"), last)
    distinct, starts, counts = np.unique(places, return_index=True, return_counts=True)
    is_cut = _is_cut(weights, distinct, counts)
    _cut_blocks(
        subkey(key, STRATUM_ROUNDS), weights, distinct, starts, np.where(is_cut, counts, 0), rows
    )
    n_distinct = np.repeat(np.where((counts > 1) & ~is_cut, counts, 0), counts)
    is_distinct = n_distinct > 0
    n_distinct[starts] = 0  # the first of a block draws by weight alone
    for n_round in range(STRATUM_ROUNDS):
        strata = np.flatnonzero(rows < 0)
        if not strata.size:
            break
        _run_strata(subkey(key, n_round), weights, strata, places[strata], n_distinct[strata], rows)
        _undo_repeats(weights, places, is_distinct, rows)
    rows[is_distinct] = np.sort(rows[is_distinct])
    return WeightedDraw(rows, not (rows < 0).any())


def _is_cut(weights: Weights, places: Integers, counts: Integers) -> NDArray[np.bool_]:
    """Return True for blocks with too few rows, or too heavy ones, for that many distinct draws."""
    # Below k^2 two of the k draws are seldom the same; below the other a block is likely.
    least = np.maximum(counts**2, STRATUM_ARRIVALS / LIKELY)
    is_candidate: NDArray[np.bool_] = (counts > 1) & (
        least * weights.bounds[places] >= weights.sums[places]
    )
    weights.read(places[is_candidate])
    return is_candidate & (least * weights.bounds[places] >= weights.sums[places])


def _cut_blocks(
    key: int,
    weights: Weights,
    places: Integers,
    starts: Integers,
    counts: Integers,
    picked_rows: Integers,
) -> None:
    """Store in `picked_rows` a row from each of k equal parts of the weights of a block."""
    # New numbers: those that chose the blocks are not uniform any more, given that choice.
    fractions = uniforms(streams(key, np.arange(picked_rows.size)))
    for place, start, k in zip(places, starts, counts, strict=True):
        if k and (rows := weights.rows(place)).any():  # else its sum was wrong
            parts = (np.arange(k) + fractions[start : start + k]) / k
            slots = picked(rows, parts)
            picked_rows[start : start + k] = weights.blocks[place] * weights.size + slots


def _undo_repeats(
    weights: Weights, places: Integers, is_distinct: NDArray[np.bool_], rows: Integers
) -> None:
    """Clear the rows of blocks in which a row that must be distinct was drawn twice."""
    drawn = np.sort(rows[is_distinct & (rows >= 0)])
    blocks = drawn[1:][drawn[1:] == drawn[:-1]] // weights.size
    rows[is_distinct & np.isin(weights.blocks[places], blocks)] = -1


def _run_strata(
    key: int,
    weights: Weights,
    strata: Integers,
    places: Integers,
    n_distinct: Integers,
    rows: Integers,
) -> None:
    """Store in `rows` the first arrival in the block of each stratum, if one comes in time.

    Args:
        key: The key of the round.
        weights: The weights.
        strata: The strata.
        places: The place of the block of each.
        n_distinct: k, for strata that draw by w / (1 - k w / sum); 0 for those that draw by w.
        rows: The row of each stratum; -1 for those without one yet.
    """
    distinct = np.unique(places)
    weights.read(
        distinct[STRATUM_ARRIVALS * weights.bounds[distinct] >= LIKELY * weights.sums[distinct]]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.where(weights.sums[places] > 0, STRATUM_ARRIVALS / weights.sums[places], 0.0)
    is_likely = ends * weights.bounds[places] >= LIKELY
    seeds = streams(key, strata, weights.blocks[places])
    shares = n_distinct * ends / STRATUM_ARRIVALS
    bounds = _raised(weights.bounds[places], shares)
    # Where rows are drawn by weight, the first arrival is as good as any.
    limits = np.where(is_likely, STRATUM_ARRIVALS, weights.size * ends * bounds)
    come = arrivals(seeds, limits)
    block_places, direct = places[come.stream], is_likely[come.stream]
    seqs = np.empty(block_places.size, np.int64)
    seqs[~direct] = uniform_rows(weights, block_places[~direct], come.place[~direct])
    seqs[direct] = rows_by_weight(weights, block_places[direct], come.place[direct])
    weight = weights.of(seqs)
    rates = np.where(direct, 1.0, weights.size * _raised(weight, shares[come.stream]))
    times = np.full(seqs.size, np.inf)
    times[weight > 0] = come.clock[weight > 0] / rates[weight > 0]
    limit = np.where(direct, STRATUM_ARRIVALS, ends[come.stream])
    early = np.flatnonzero(times < limit)
    # The first of each stratum is written last.
    order = early[np.argsort(-times[early], kind="stable")]
    rows[strata[come.stream[order]]] = seqs[order]


def _raised(weights: Reals, shares: Reals) -> Reals:
    """Return w / (1 - w * share), the weights of Sampford's later draws."""
    raised: Reals = weights / (1.0 - weights * shares)
    return raised


def strata_of_all(key: int, seqs: Integers, weights: Reals, n: int) -> Integers:
    """Return a row of each of n equal parts of the sum of all weights, in the order of the rows."""
    if not n or not np.any(weights > 0):
        return seqs[:0]
    strata = np.arange(n)
    return seqs[picked(weights, (strata + uniforms(streams(key, strata))) / n)]
