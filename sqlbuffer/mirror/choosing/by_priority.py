"""Draw steps by priority from memory."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sqlbuffer.mirror.choosing.chosen import Chosen, Columns, Flags, Integers
from sqlbuffer.mirror.memory.block_map import BLOCK
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_priorities import Reals, StepPriorities
from sqlbuffer.mirror.memory.step_record import SEQ
from sqlbuffer.mirror.memory.weight_tree import WeightTree
from sqlbuffer.samplers import PrioritizedSampler
from sqlbuffer.storage.sampling.row_priorities import no_priorities

# If less than this share of the drawn slots can be taken, all steps are tested.
LOWEST_SHARE = 1 / 8


@dataclass(frozen=True)
class PrioritizedChooser:
    """Chooses by priority, as a `PrioritizedSampler` does.

    A step is drawn from all by weight, and drawn again if it may not be taken: that is exact for
    the others.

    Attributes:
        sampler: Its options.
        rng: Draws.
        has_condition: The user says which steps may be drawn.
    """

    sampler: PrioritizedSampler
    rng: np.random.Generator
    has_condition: bool

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
    ) -> Chosen:
        """Return n steps; see `Chooser.choose`.

        Raises:
            BufferConfigError: The buffer has no priorities.
        """
        priorities = memory.priorities
        if priorities is None:
            raise no_priorities()
        tree = priorities.weights(memory.is_drawable, memory.changed)

        def takes(slots: Integers) -> Flags:
            taken = is_drawable[slots] & (tree.weights[slots] > 0)
            if accepts is not None:
                at = np.flatnonzero(taken)
                taken[at] = accepts(slots[at])
            return taken

        draw = _Draw(is_drawable, tree, takes, self.rng)
        if not n or not tree.total > 0:
            slots = np.zeros(0, np.int64)
        elif self.sampler.stratified:
            order = priorities.block_order(memory.blocks, memory.changed)
            slots = draw.by_strata(n, order, self.has_condition)
        else:
            slots = draw.with_replacement(n) if self.sampler.replace else draw.distinct(n)
        total = self._total(priorities, is_drawable, tree)
        return Chosen(slots, self._columns(memory, priorities, slots, total))

    def _total(
        self, priorities: StepPriorities, is_drawable: Flags, tree: WeightTree
    ) -> float | None:
        """Return the sum of the weights that steps are drawn by; None if it is unknown."""
        if not self.sampler.exact and (self.has_condition or priorities.is_limited):
            return None
        if self.has_condition:
            return float(tree.weights[: len(is_drawable)].sum(where=is_drawable))
        return tree.total

    def _columns(
        self, memory: StepMemory, priorities: StepPriorities, slots: Integers, total: float | None
    ) -> Columns:
        seqs, own = memory.records[SEQ][slots], priorities.values[slots]
        columns = self.sampler.columns_of(
            seqs,
            own,
            alpha=priorities.alpha,
            total=total,
            least=lambda: priorities.least(memory.links["flags"]),
        )
        return {**columns, **self.sampler.finished(columns, priorities.alpha)}


@dataclass(frozen=True)
class _Draw:
    """Draws slots by weight.

    Attributes:
        is_drawable: True for slots that may be drawn, shape (n_slots,).
        tree: Their weights.
        takes: Function that returns True for slots that can be taken.
        rng: Draws.
    """

    is_drawable: Flags
    tree: WeightTree
    takes: Callable[[Integers], Flags]
    rng: np.random.Generator

    def with_replacement(self, n: int) -> Integers:
        """Return n slots, each drawn on its own; fewer if there is none."""
        found, size = np.zeros(0, np.int64), n + n // 16 + 4
        while len(found) < n:
            slots = self.tree.slots_at(self.rng.random(size))
            slots = slots[self.takes(slots)]
            found = np.concatenate([found, slots]) if len(found) else slots
            share = len(slots) / size
            if len(found) < n and share < LOWEST_SHARE:
                every, weights = self._all()
                more: Integers = every[_at(weights, self.rng.random(n - len(found)))]
                return np.concatenate([found, more])
            size = int(1.2 * (n - len(found)) / max(share, LOWEST_SHARE)) + 16
        return found[:n]

    def distinct(self, n: int) -> Integers:
        """Return n distinct slots; fewer if there are fewer.

        Slots drawn with replacement, without repeats, are drawn by weight from the rest.
        """
        n = min(n, len(self.is_drawable))
        found, size = np.zeros(0, np.int64), n + n // 16 + 4
        while len(found) < n:
            slots = self.tree.slots_at(self.rng.random(size))
            both = np.concatenate([found, slots[self.takes(slots)]])
            _, first = np.unique(both, return_index=True)
            share = (len(first) - len(found)) / size
            found = both[np.sort(first)]
            if len(found) < n and share < LOWEST_SHARE:
                return np.concatenate([found, self._rest(found, n - len(found))])
            size = int(1.2 * (n - len(found)) / max(share, LOWEST_SHARE)) + 16
        return found[:n]

    def _rest(self, found: Integers, n: int) -> Integers:
        """Return n more slots by a race of all others (Efraimidis and Spirakis 2006)."""
        every, weights = self._all()
        is_left = ~np.isin(every, found)
        every, weights = every[is_left], weights[is_left]
        times = self.rng.exponential(size=len(every)) / weights
        rest: Integers = every[np.argsort(times, kind="stable")[:n]]
        return rest

    def by_strata(self, n: int, order: Integers, has_condition: bool) -> Integers:
        """Return a slot of each of n equal parts of the sum of all weights in insert order. Where
        it cannot be taken, one that is drawn from all stands in for it.

        Args:
            n: Number of items.
            order: The blocks of slots in insert order.
            has_condition: The sum is of the slots that may be drawn.
        """
        fractions = (np.arange(n) + self.rng.random(n)) / n
        if has_condition:
            slots = (order[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
            slots = slots[self.is_drawable[slots]]
            found: Integers = slots[_at(self.tree.weights[slots], fractions)]
        else:
            found = self.tree.slots_in_order(fractions, order)
        missing = np.flatnonzero(~self.takes(found))
        if len(missing):
            others = self.with_replacement(len(missing))
            if not len(others):
                return others
            found[missing] = others
        return found

    def _all(self) -> tuple[Integers, Reals]:
        """Return all slots that can be taken, and their weights."""
        every = np.flatnonzero(self.is_drawable)
        every = every[self.takes(every)]
        return every, self.tree.weights[every]


def _at(weights: Reals, fractions: Reals) -> Integers:
    """Return the places that fractions of the sum of weights fall on; none without weights."""
    ends = weights.cumsum()
    if not len(ends) or not ends[-1] > 0:
        return np.zeros(0, np.int64)
    last = int(np.flatnonzero(weights)[-1])
    found: Integers = ends.searchsorted(fractions * ends[-1], side="right")
    return np.minimum(found, last)
