"""Transitions before their fields are read."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.steps.n_step import Returns

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TransitionPlan:
    """Transitions before their fields are read; the same words as in `Transitions`.

    Attributes:
        slots: Slots of first steps, shape (b,).
        steps: Slots of all steps, shape (b, n); -1 where one is missing.
        truncated: Whether the episode was cut at the last step, shape (b,).
        returns: Their returns.
        after: Slots of the steps that have the observations after; -1 if there is none.
        is_final: Whether it is the final observation of the episode.
        frames: Slots of the frames up to the first step, the oldest first, shape (b, k).
        next_frames: Slots of those before the observation after.
        accepted: Whether everything that is needed is there and may be sampled.
    """

    slots: Integers
    steps: Integers
    truncated: Flags
    returns: Returns
    after: Integers
    is_final: Flags
    frames: Integers
    next_frames: Integers
    accepted: Flags

    def taken(self, index: Integers | slice) -> "TransitionPlan":
        """Return some of them."""
        own = self.returns
        returns = Returns(
            own.reward[index], own.discount[index], own.m[index], own.ended[index],
            own.terminated[index], own.complete[index],
        )  # fmt: skip
        return TransitionPlan(
            self.slots[index], self.steps[index], self.truncated[index], returns, self.after[index],
            self.is_final[index], self.frames[index], self.next_frames[index], self.accepted[index],
        )  # fmt: skip
