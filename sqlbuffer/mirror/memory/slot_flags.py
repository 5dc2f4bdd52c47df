"""A flag for each slot, computed again where steps have changed."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.mirror.memory.step_memory import StepMemory

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_PAGE = 65_536


class SlotFlags:
    """Flags of the slots of a memory.

    Args:
        memory: The steps.
        judge: Returns the flags of slots.
        reach: Returns also those slots whose flags depend on the slots given.
    """

    def __init__(
        self,
        memory: StepMemory,
        judge: Callable[[Integers], Flags],
        reach: Callable[[Integers], Integers] | None = None,
    ) -> None:
        self._memory, self._judge, self._reach = memory, judge, reach
        self._flags: Flags = np.zeros(0, bool)
        self._n_changes = -1

    def now(self) -> Flags:
        """Return the flags, shape (n_used,)."""
        memory, changed = self._memory, self._memory.changed
        n_used = memory.blocks.n_used
        if self._n_changes != changed.n:
            slots = None
            if len(self._flags) == memory.n_slots and self._n_changes >= 0:
                slots = changed.since(self._n_changes)
            if slots is None:
                self._flags = np.zeros(memory.n_slots, bool)
                slots = np.arange(n_used)
            elif self._reach is not None:
                slots = self._reach(slots)
            for start in range(0, len(slots), _PAGE):
                own = slots[start : start + _PAGE]
                self._flags[own] = self._judge(own)
            self._n_changes = changed.n
        return self._flags[:n_used]
