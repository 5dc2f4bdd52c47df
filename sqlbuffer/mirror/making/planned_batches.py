"""Make batches from steps in memory whose neighbours decide whether an item can be made."""

from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.mirror.choosing.chosen import NO_COLUMNS, Chooser, Columns
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.steps.batches import Batch

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Largest number of steps that one plan covers: it takes about 100 bytes for each.
_MOST_STEPS = 2**20
# An open episode may have more; only the memory that a plan takes depends on it.
LIKELY_STEPS = 1_024


class MadePlan(Protocol):
    """The plan of items that are made of steps, before their fields are read."""

    @property
    def slots(self) -> Integers:
        """The keys: mostly first steps; shape (b,)."""

    @property
    def accepted(self) -> Flags:
        """Return True for each key at which an item can be made, shape (b,)."""


P = TypeVar("P", bound=MadePlan)


class PlannedBatches(Generic[P]):
    """Base class of the makers of batches from steps in memory.

    Args:
        memory: The steps.

    Attributes:
        memory: The steps.
    """

    def __init__(self, memory: StepMemory) -> None:
        self.memory = memory

    def draw(self, chooser: Chooser, n: int, wanted: Flags | None = None) -> Batch:
        """Return n items, or fewer if there are fewer.

        Args:
            chooser: Chooses their keys.
            n: Number of items.
            wanted: True for slots whose step may be a key; None: all that may be drawn.
        """
        plans: list[P] = []

        def accepts(slots: Integers) -> Flags:
            size = self._n_at_once(slots)
            if len(slots) > size:
                return self._accepted(slots, size)
            plans.append(self._plan(slots))
            return plans[-1].accepted

        chosen = chooser.choose(self.memory, self.keys(wanted), n, accepts)
        return self._batch(self._planned(chosen.slots, plans), chosen.columns)

    def keys(self, wanted: Flags | None = None) -> Flags:
        """Return which slots have a key that may be drawn, shape (n_used,); see `draw`."""
        return self.memory.is_drawable[: self.memory.blocks.n_used] if wanted is None else wanted

    def accepted(self, slots: Integers, wanted: Flags | None = None) -> Flags:
        """Return of which slots something can be made that may be drawn; see `draw`."""
        found = self.keys(wanted)[slots]
        at = np.flatnonzero(found)
        found[at] = self._accepted(slots[at], self._n_at_once(slots[at]))
        return found

    def read(self, slots: Integers) -> Batch:
        """Return the items made from accepted slots, in their order."""
        return self._batch(self._plan(slots), NO_COLUMNS)

    def _accepted(self, slots: Integers, size: int) -> Flags:
        pages = [
            self._plan(slots[start : start + size]).accepted for start in range(0, len(slots), size)
        ]
        return np.concatenate(pages) if pages else np.zeros(0, bool)

    def _n_at_once(self, slots: Integers) -> int:
        return max(1, _MOST_STEPS // max(1, self._n_steps(slots)))

    def _planned(self, slots: Integers, plans: list[P]) -> P:
        """Return the plan of slots: mostly it was made to find out whether they are accepted."""
        if len(plans) == 1:
            at = np.flatnonzero(plans[0].accepted)[: len(slots)]
            if np.array_equal(plans[0].slots[at], slots):
                return self._taken(plans[0], at)
        return self._plan(slots)

    def _n_steps(self, slots: Integers) -> int:
        """Return how many steps a thing of these slots has at most."""
        raise NotImplementedError

    def _longest(self, slots: Integers) -> int:
        """Return how many steps the episodes of some steps are likely to have at most."""
        length = self.memory.episodes.length
        own = self.memory.gathered_links(slots)["episode"]
        known = int(length[own].max(initial=0)) if len(length) else 0
        return max(known, LIKELY_STEPS)

    def _plan(self, slots: Integers) -> P:
        raise NotImplementedError

    def _taken(self, plan: P, at: Integers) -> P:
        """Return a part of the plan."""
        raise NotImplementedError

    def _batch(self, plan: P, columns: Columns) -> Batch:
        raise NotImplementedError
