"""Choose items of a ring by weight."""

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.weighted_sampling import draw_stratified, strata_of_all, weights_of

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


def draw_by_weight(key: int, candidates: Candidates, n: int, alpha: float) -> list[int]:
    """Return the numbers of n items, one from each of equal parts of all weights."""
    found = draw_stratified(key, candidates.priorities.weights, n)
    if found.is_complete:
        return _listed(found.seqs)
    # The stored sums do not fit: another program has changed them.
    numbers, priorities = candidates.priorities.all(candidates)
    is_part = numbers <= candidates.high
    return draw_of_all(key, numbers[is_part], priorities[is_part], n, alpha)


def draw_of_all(key: int, numbers: Integers, priorities: Reals, n: int, alpha: float) -> list[int]:
    """Return the numbers of n of these items, drawn as in `draw_by_weight`."""
    weights = weights_of(priorities, alpha)
    return _listed(strata_of_all(key, numbers, weights, n))


def _listed(seqs: Integers) -> list[int]:
    found: list[int] = seqs.tolist()
    return found
