"""n-step returns, from the steps of episodes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Returns:
    """The n-step returns of b first steps, each with up to n successors.

    Attributes:
        reward: sum of gamma^k r_k for k < m, shape (b,), float64.
        discount: gamma^m, or 0 if the episode terminated within these steps, shape (b,).
        m: Number of steps: n, or fewer if the episode ends before, shape (b,).
        ended: True if the episode ended within those steps, shape (b,).
        terminated: True if it terminated there, shape (b,).
        complete: True if all m steps are known, shape (b,).
    """

    reward: NDArray[np.float64]
    discount: NDArray[np.float64]
    m: NDArray[np.int64]
    ended: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    complete: NDArray[np.bool_]


def n_step_returns(
    rewards: NDArray[Any],
    terminated: NDArray[np.bool_],
    ended: NDArray[np.bool_],
    known: NDArray[np.bool_],
    gamma: float,
) -> Returns:
    """Return the n-step returns without their bootstrap (Sutton and Barto 2018, equation 7.1).

    Args:
        rewards: r_k of step t + k, shape (b, n).
        terminated: The episode terminated at step t + k, shape (b, n).
        ended: It ended there, terminated or not, shape (b, n).
        known: There is such a step, shape (b, n).
        gamma: Discount of one step.
    """
    b, n = rewards.shape
    ends = (ended | terminated) & known
    if ends.any():
        return _with_ends(rewards, terminated, ends, known, gamma)
    no = np.zeros(b, bool)
    return Returns(
        (rewards * gamma ** np.arange(n)).sum(axis=1),
        np.full(b, np.float64(gamma) ** n),
        np.full(b, n, np.int64),
        no,
        no,
        np.asarray(known.all(axis=1)),
    )


def _with_ends(
    rewards: NDArray[Any],
    terminated: NDArray[np.bool_],
    ends: NDArray[np.bool_],
    known: NDArray[np.bool_],
    gamma: float,
) -> Returns:
    b, n = rewards.shape
    any_end: NDArray[np.bool_] = np.asarray(ends.any(axis=1))
    m = np.where(any_end, ends.argmax(axis=1) + 1, n)
    within = np.arange(n) < m[:, None]
    stops: NDArray[np.bool_] = np.logical_and(terminated[np.arange(b), m - 1], any_end)
    discounts = np.float64(gamma) ** np.arange(n + 1)
    return Returns(
        (np.where(within, rewards, 0.0) * discounts[:n]).sum(axis=1),
        np.where(stops, 0.0, discounts[m]),
        m.astype(np.int64),
        any_end,
        stops,
        (known | ~within).all(axis=1),
    )
