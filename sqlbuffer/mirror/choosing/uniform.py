"""Draw steps uniformly from memory."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sqlbuffer.mirror.choosing.chosen import Chosen, Flags, Integers
from sqlbuffer.mirror.memory.step_memory import StepMemory

# Where fewer slots than this share hold a step that may be drawn, all of them are looked up.
LOWEST_SHARE = 1 / 16
MOST_ROUNDS = 64


@dataclass(frozen=True)
class UniformChooser:
    """Chooses uniformly.

    Attributes:
        rng: Draws.
        replace: Draw with replacement.
    """

    rng: np.random.Generator
    replace: bool

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
    ) -> Chosen:
        """Return n steps; see `Chooser.choose`."""
        return Chosen(uniform_slots(is_drawable, self.rng, self.replace, n, accepts))


def uniform_slots(
    is_drawable: Flags,
    rng: np.random.Generator,
    replace: bool,
    n: int,
    accepts: Callable[[Integers], Flags] | None = None,
) -> Integers:
    """Return n slots, uniform over those that may be drawn and are accepted; fewer if there are
    too few.

    Slots are drawn from all of them and rejected, which is uniform over the rest.

    Args:
        is_drawable: Which slots may be drawn, shape (n_slots,).
        rng: Draws.
        replace: Draw with replacement.
        n: How many.
        accepts: Returns for slots which are accepted; all by default.
    """
    found = np.zeros(0, np.int64)
    # Mostly a few more than wanted are enough, and `accepts` is asked once.
    n_slots, n_drawn, size = len(is_drawable), 0, n + 8 + (0 if accepts is None else n // 8)
    if not n_slots:
        return found
    for _ in range(MOST_ROUNDS):
        # Half the time of `integers`.
        slots = (rng.random(size) * n_slots).astype(np.int64)
        n_drawn += size
        slots = slots[is_drawable[slots]]
        if accepts is not None:
            slots = slots[accepts(slots)]
        found = np.concatenate([found, slots]) if len(found) else slots
        if not replace:
            found = _first_of_each(found)
        if len(found) >= n:
            return found[:n]
        share = len(found) / n_drawn
        if share < LOWEST_SHARE:
            break
        size = int(1.2 * (n - len(found)) / share) + 16
    # One look at all: few slots may be drawn, or n is nearly all of them.
    every = np.flatnonzero(is_drawable)
    if accepts is not None:
        every = every[accepts(every)]
    if replace:
        return every[rng.integers(0, len(every), n)] if len(every) else every
    rng.shuffle(every)
    return every[:n]


def _first_of_each(slots: Integers) -> Integers:
    """Return slots without those that came before, in order."""
    _, first = np.unique(slots, return_index=True)
    return slots if len(first) == len(slots) else slots[np.sort(first)]
