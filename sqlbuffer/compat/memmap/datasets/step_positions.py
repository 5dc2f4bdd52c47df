"""Positions of the steps that items consist of, computed from the lengths of episodes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.datasets.readable import Ints


def counted(counts: Ints) -> tuple[Ints, Ints]:
    """Return 0..n-1 for each n, concatenated, and the place of the n that each belongs to.

    >>> counted(np.array([2, 0, 3]))
    (array([0, 1, 0, 1, 2]), array([0, 0, 2, 2, 2]))
    """
    counts = np.maximum(counts, 0)
    owners = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return np.arange(len(owners)) - starts[owners], owners


def steps_of(slots: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return slot and time of the first steps of each slot, in the order of slots, then of time.

    >>> steps_of(np.array([4, 7]), np.array([1, 2]))
    (array([4, 7, 7]), array([0, 0, 1]))
    """
    ts, owners = counted(counts)
    return slots[owners], ts


def steps_ahead(ts: Ints, lengths: Ints, n_steps: int) -> Ints:
    """Return how many steps ahead transitions reach: n, or as far as the last stored step.

    >>> steps_ahead(np.array([0, 1, 2]), np.array([4, 4, 4]), 2)
    array([2, 2, 1])
    """
    found: Ints = np.minimum(n_steps, lengths - ts - 1)
    return found


def padded(values: NDArray[Any], counts: Ints, width: int) -> NDArray[Any]:
    """Return concatenated values as rows of one width, with zeros on the right.

    Args:
        values: Values of shape (sum of counts, *shape).
        counts: Number of values of each row, at most `width`.
        width: Width of the rows.

    Returns:
        An array of shape (len(counts), width, *shape).

    >>> padded(np.array([1, 2, 3]), np.array([1, 2]), 3)
    array([[1, 0, 0],
           [2, 3, 0]])
    """
    shape = (len(counts), width, *values.shape[1:])
    if len(values) == len(counts) * width:
        return values.reshape(shape)
    found = np.zeros(shape, values.dtype)
    found[np.arange(width) < counts[:, None]] = values
    return found
