"""The number of rows of a batch from each of several sources."""

from collections.abc import Sequence

import numpy as np


def split(
    n: int, weights: Sequence[float], credits: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Return how many of n rows each source gives, and the credits for the next batch.

    Each source gives the whole rows of its share. The remaining rows go to the sources with the
    most credit. A credit is the sum of a share's fractions since the source last got a remaining
    row (the largest remainder, carried on). Over many batches each source gives its exact share.

    Args:
        n: Rows of the batch.
        weights: Shares of the sources, which sum to 1; 0 for one that is left out.
        credits: Credits that the previous batch returned; zeros at first.

    Example:
        >>> counts, credits = split(3, [0.5, 0.5], [0.0, 0.0])
        >>> counts, split(3, [0.5, 0.5], credits)[0]
        ([2, 1], [1, 2])
    """
    # Rounded, for 10 x 0.3 must be 3 rows.
    shares = np.round(n * np.asarray(weights, float), 9)
    counts = np.floor(shares).astype(int)
    due = np.asarray(credits, float) + shares - counts
    may_give = np.flatnonzero(np.asarray(weights) > 0)
    n_left = n - int(counts.sum())
    # Rounded, so that equal credits are equal; the first of them goes first.
    order = may_give[np.argsort(-np.round(due[may_give], 9), kind="stable")]
    counts[order[:n_left]] += 1
    due[order[:n_left]] -= 1.0
    found: list[int] = counts.tolist()
    return found, due.tolist()
