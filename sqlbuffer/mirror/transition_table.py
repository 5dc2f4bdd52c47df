"""The plans of all transitions in memory, computed once for each step instead of in each draw."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import NONE, as_float32, as_records, bytes_of
from sqlbuffer.batches.transitions import TransitionPlan
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.steps.n_step import Returns

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# It is made when that share of the steps was planned in draws: for a million steps it takes 0.4 s,
# and saves 0.3 ms a draw.
WORTH_IT = 1 / 256
# With more changes than this share of the steps, each draw makes its own plans again.
MOST_CHANGED = 1 / 8
_PAGE = 65_536
_ROW: np.dtype[Any] = np.dtype(
    [
        ("reward", np.float32),
        ("discount", np.float32),
        ("after", np.int32),
        ("m", np.int32),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("is_final", np.bool_),
    ],
    align=True,
)


class TransitionTable:
    """Plans of transitions, by the slot of their first step.

    Args:
        memory: The steps.
        n_step: Largest number of steps that a transition spans.
        plan: Makes the plans of slots.
        n_at_once: Returns how many slots it may plan at once.
    """

    def __init__(
        self,
        memory: StepMemory,
        n_step: int,
        plan: Callable[[Integers], TransitionPlan],
        n_at_once: Callable[[Integers], int],
    ) -> None:
        self._memory, self._n_step, self._plan = memory, n_step, plan
        self._n_at_once = n_at_once
        self._n_planned, self._n_changes = 0, -1
        self._rows = np.zeros(0, _ROW)
        self._is_accepted: Flags = np.zeros(0, bool)

    def accepted(self, n: int) -> Flags | None:
        """Return which steps a transition can be made of, for a draw of n; None while it is cheaper
        to plan what is drawn.
        """
        changed = self._memory.changed
        if self._n_changes == changed.n:
            return self._is_accepted
        slots = None
        if self._n_changes >= 0 and len(self._is_accepted) == self._memory.n_slots:
            slots = changed.since(self._n_changes)
        n_used = self._memory.blocks.n_used
        if slots is not None and len(slots) * (self._n_step + 1) <= MOST_CHANGED * n_used + 1:
            self._update(self._with_steps_before(slots))
        else:
            self._n_changes = -1
            self._n_planned += n
            if self._n_planned < WORTH_IT * n_used:
                return None
            self._rows = np.zeros(self._memory.n_slots, _ROW)
            self._is_accepted = np.zeros(self._memory.n_slots, bool)
            self._update(np.arange(n_used))
        self._n_planned, self._n_changes = 0, changed.n
        return self._is_accepted

    def _with_steps_before(self, slots: Integers) -> Integers:
        """Return slots and those of the steps whose transitions reach them."""
        prev, found = self._memory.links["prev"], [slots]
        for _ in range(self._n_step):
            before = prev[found[-1]].astype(np.int64)
            found.append(before[before != NONE])
            if not len(found[-1]):
                break
        return np.unique(np.concatenate(found))

    def _update(self, slots: Integers) -> None:
        table, is_drawable = self._rows, self._memory.is_drawable
        size = min(_PAGE, self._n_at_once(slots))
        for start in range(0, len(slots), size):
            own = slots[start : start + size]
            plan = self._plan(own)
            rows = np.zeros(len(own), _ROW)
            rows["reward"] = as_float32(plan.returns.reward)
            rows["discount"] = plan.returns.discount
            rows["m"], rows["terminated"] = plan.returns.m, plan.returns.terminated
            rows["after"], rows["is_final"] = plan.after, plan.is_final
            rows["truncated"] = plan.truncated
            table[own] = rows
            self._is_accepted[own] = plan.accepted & is_drawable[own]

    def plan(self, slots: Integers) -> TransitionPlan:
        """Return the plan of steps that are accepted."""
        # numpy copies a structured record part by part; as plain bytes it is copied whole.
        plain = as_records(self._rows, bytes_of(_ROW))
        rows = as_records(plain.take(slots), _ROW)
        nothing = np.zeros((len(slots), 0), np.int64)
        yes = np.ones(len(slots), bool)
        returns = Returns(
            rows["reward"], rows["discount"], rows["m"].astype(np.int64), yes,
            rows["terminated"].copy(), yes,
        )  # fmt: skip
        return TransitionPlan(
            slots, nothing, rows["truncated"].copy(), returns, rows["after"].astype(np.int64),
            rows["is_final"], nothing, nothing, yes,
        )  # fmt: skip
