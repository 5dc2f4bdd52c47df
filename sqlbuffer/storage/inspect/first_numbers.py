"""Search many ordered ranges of numbers together, in few statements."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Looked at in each range by one statement: a round trip takes as long as some 20 lookups. In many
# ranges together fewer are looked at, and more statements sent.
POINTS, POINTS_IN_ALL = 15, 300

Numbers = NDArray[np.int64]


def first_numbers(
    low: Numbers, high: Numbers, is_before: Callable[[Numbers, Numbers], NDArray[np.bool_]]
) -> Numbers:
    """Return the first number of each range that is not before what is searched.

    Args:
        low: First number of each range, of shape (n,).
        high: Last number of each range, of shape (n,); it is returned if all lower ones are before.
        is_before: Function of places of ranges and numbers in them, both of shape (m,). It returns
            True for numbers before the searched one. In a range these come first.

    Returns:
        One number for each range, of shape (n,).
    """
    low, high = low.copy(), high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        n = max(1, min(POINTS, POINTS_IN_ALL // open_.size))
        span = (high - low)[open_, None]
        points = low[open_, None] + span * np.arange(1, n + 1) // (n + 1)
        before = is_before(open_.repeat(n), points.ravel()).reshape(points.shape)
        n_before = np.where(before.all(axis=1), n, before.argmin(axis=1))
        moved, cut = n_before > 0, n_before < n
        low[open_[moved]] = points[moved, n_before[moved] - 1] + 1
        high[open_[cut]] = points[cut, n_before[cut]]
    return low
