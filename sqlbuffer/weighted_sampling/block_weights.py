"""The weights of rows, made from priorities and kept by blocks of consecutive row numbers."""

from copy import copy
from typing import Protocol

import numpy as np

from sqlbuffer.weighted_sampling.random_streams import Integers, Reals


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
    found: Reals = np.exp(alpha * beta * (np.log(least) - np.log(priorities)))
    return found


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
        own, slots = self._places_of(seqs)
        dense[self._index[own] - n_before, slots] = weights
        self._dense = np.concatenate([self._dense, dense])
        self._add_up(places)

    def has_read(self, place: int) -> bool:
        """Return True if all rows of a block were read."""
        return bool(self._index[place] >= 0)

    def rows(self, place: int) -> Reals:
        """Return the weights of a block that was read, 0 where there is no row."""
        found: Reals = self._dense[self._index[place]]
        return found

    def of(self, seqs: Integers) -> Reals:
        """Return the weights of numbers; 0 of those that are not there or cannot be drawn."""
        own, slots = self._places_of(seqs)
        index = self._index[own]
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
        own, slots = self._places_of(seqs)
        index = self._index[own]
        is_read = index >= 0
        others._dense[index[is_read], slots[is_read]] = 0.0
        np.subtract.at(others.sums, own[~is_read], weights[~is_read])
        np.maximum(others.sums, 0.0, out=others.sums)
        others._add_up(np.unique(own[is_read]))
        return others

    def _places_of(self, seqs: Integers) -> tuple[Integers, Integers]:
        """Return the place of the block of each number, and its place there."""
        blocks = seqs // self.size
        return blocks - self.blocks[0] if seqs.size else blocks, seqs - blocks * self.size

    def _add_up(self, places: Integers) -> None:
        rows = self._dense[self._index[places]]
        self.sums[places] = rows.sum(axis=1)
        self.bounds[places] = rows.max(axis=1, initial=0.0)
