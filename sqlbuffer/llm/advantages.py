"""Advantages of rollouts over the other rollouts of their groups."""

from collections.abc import Hashable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_choice, checked_iterable, refused
from sqlbuffer.display import shown
from sqlbuffer.errors import ArgumentError

Baseline = Literal["mean", "leave_one_out"]
Scale = Literal["std"]

EPS = 1e-6


def group_advantages(
    rewards: Sequence[float] | NDArray[Any],
    groups: Sequence[Hashable] | NDArray[Any],
    baseline: Baseline = "mean",
    scale: Scale | None = "std",
) -> NDArray[np.float64]:
    """Return how much better each rollout is than the others of its group.

    With the defaults it is the advantage of GRPO: (r - mean) / (std + 1e-6) of the group, where the
    standard deviation has n - 1 as its divisor (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300,
    section 4.1.2). `scale=None` leaves out the division, as in Dr. GRPO (Liu et al. 2025, arXiv
    2503.20783, section 3). `baseline="leave_one_out"` compares each rollout with the mean of the
    others, as in RLOO (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740, section 2.2).

    Args:
        rewards: Reward of each rollout, shape (n,). A rollout without one has NaN: it does not
            count in its group, and its advantage is NaN.
        groups: Group of each rollout, n numbers or texts.
        baseline: What a reward is compared with.
        scale: What the difference is divided by; None for nothing.

    Returns:
        The advantages, float64 of shape (n,); 0 in a group of one reward.

    Raises:
        ArgumentError: The lengths differ, a reward is infinite, or an option is unknown.

    Example:
        >>> group_advantages([1, 0, 0, 5], ["a", "a", "a", "b"]).round(3).tolist()
        [1.155, -0.577, -0.577, 0.0]
        >>> group_advantages([1, 0, 0], [0, 0, 0], "leave_one_out", None).tolist()
        [1.0, -0.5, -0.5]
    """
    checked_choice(baseline, "baseline", get_args(Baseline))
    if scale is not None:
        checked_choice(scale, "scale", get_args(Scale))
    values, numbers = _checked_rewards(rewards), _numbers(groups)
    if len(values) != len(numbers):
        raise ArgumentError(
            f"groups names one group for each reward: {len(values)} rewards, {len(numbers)} groups"
        )
    advantages, known = np.full(len(values), np.nan), ~np.isnan(values)
    advantages[known] = _advantages(values[known], numbers[known], baseline, scale)
    return advantages


def _advantages(
    rewards: NDArray[np.float64], groups: NDArray[np.int64], baseline: Baseline, scale: Scale | None
) -> NDArray[np.float64]:
    n_groups = int(groups.max()) + 1 if len(groups) else 0

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        totals = np.zeros(n_groups)
        np.add.at(totals, groups, values)
        return np.asarray(totals[groups])

    least = np.full(n_groups, np.inf)
    np.minimum.at(least, groups, rewards)
    above = rewards - least[groups]  # equal rewards are exactly 0 from here on
    n = total(np.ones(len(rewards)))
    difference = above - total(above) / n
    deviation = np.sqrt(total(difference**2) / np.maximum(n - 1, 1))
    if baseline == "leave_one_out":
        difference = difference * n / np.maximum(n - 1, 1)
    advantages: NDArray[np.float64] = (
        difference / (deviation + EPS) if scale == "std" else difference
    )
    return advantages


def _checked_rewards(rewards: Any) -> NDArray[np.float64]:
    try:
        listed = rewards.tolist() if hasattr(rewards, "tolist") else rewards
        values = np.asarray([np.nan if reward is None else reward for reward in listed], np.float64)
    except (TypeError, ValueError):
        raise refused(rewards, "rewards", "a list of numbers, one a rollout") from None
    if values.ndim != 1:
        raise ArgumentError(f"rewards has one number for each rollout, got shape {values.shape}")
    if np.isinf(values).any():
        raise ArgumentError(f"rewards are finite, or NaN where there is none, got {shown(rewards)}")
    return values


def _numbers(groups: Any) -> NDArray[np.int64]:
    """Return a number from 0 on for each group, by the order of their first rollouts."""
    known: dict[Hashable, int] = {}
    what = "a list of numbers or texts, one a rollout"
    listed = groups.tolist() if hasattr(groups, "tolist") else groups  # items of numpy or torch
    named = list(checked_iterable(listed, "groups", what))
    try:
        return np.array([known.setdefault(name, len(known)) for name in named], np.int64)
    except TypeError:
        raise refused(groups, "groups", what) from None
