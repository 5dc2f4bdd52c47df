"""The steps in memory that may be drawn and match a condition, computed once for each step."""

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.mirror.condition_columns import step_column
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.query.array_filter import matching
from sqlbuffer.query.condition_tree import EVERYTHING, Node

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Results of more conditions than this are forgotten.
MOST_CONDITIONS = 8
# With more changes than this share of the steps, all are looked at again.
MOST_CHANGED = 1 / 2


class MatchingSteps:
    """Says which steps in memory may be drawn by a condition.

    It keeps the results of the last conditions, and tests changed slots again.
    """

    def __init__(self) -> None:
        self._memory: StepMemory | None = None
        self._known: dict[Node, tuple[int, Flags]] = {}

    def of(self, memory: StepMemory, node: Node) -> Flags:
        """Return which slots hold a step that may be drawn and meets a condition.

        Args:
            memory: The steps.
            node: The condition, which names columns in memory only.

        Returns:
            Flags of shape (n,), where n slots have been used.
        """
        n = memory.blocks.n_used
        if node is EVERYTHING:
            return memory.is_drawable[:n]
        if memory is not self._memory:
            self._memory, self._known = memory, {}
        try:
            known = self._known.get(node)
        except TypeError:  # a list in it cannot be hashed
            return _updated(memory, node, np.zeros(n, bool), np.arange(n))
        changed = memory.changed
        if known is not None and known[0] == changed.n:
            return known[1][:n]
        slots, flags = None, np.zeros(memory.n_slots, bool)
        if known is not None and len(known[1]) == memory.n_slots:
            slots, flags = changed.since(known[0]), known[1]
        if slots is None or len(slots) > MOST_CHANGED * n:
            slots = np.arange(n)
        _updated(memory, node, flags, slots)
        if known is None and len(self._known) >= MOST_CONDITIONS:
            del self._known[next(iter(self._known))]
        self._known[node] = changed.n, flags
        return flags[:n]


def _updated(memory: StepMemory, node: Node, flags: Flags, slots: Integers) -> Flags:
    """Look at slots, and return the flags."""
    flags[slots] = False
    own = slots[memory.is_drawable[slots]]
    flags[own] = matching(node, len(own), lambda field: step_column(memory, field, own))
    return flags
