"""Draw steps uniformly from memory."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sqlbuffer.mirror.choosing.chosen import Chosen, Flags, Integers
from sqlbuffer.mirror.memory.block_map import BLOCK
from sqlbuffer.mirror.memory.step_memory import StepMemory

# Where fewer places than this share hold what may be drawn, all of them are looked up.
LOWEST_SHARE = 1 / 16
MOST_ROUNDS = 64
_BITS = BLOCK.bit_length() - 1


@dataclass(frozen=True)
class UniformChooser:
    """Chooses uniformly.

    Attributes:
        rng: Draws.
        replace: Draw with replacement.
        by_number: Draw by the numbers of steps, so that it does not matter where they are in
            memory.
    """

    rng: np.random.Generator
    replace: bool
    by_number: bool = False

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
    ) -> Chosen:
        """Return n steps; see `Chooser.choose`."""
        order = memory.blocks.in_order if self.by_number else None
        return Chosen(uniform_slots(is_drawable, self.rng, self.replace, n, accepts, order))


def uniform_slots(
    is_drawable: Flags,
    rng: np.random.Generator,
    replace: bool,
    n: int,
    accepts: Callable[[Integers], Flags] | None = None,
    order: Integers | None = None,
) -> Integers:
    """Return n slots, uniform over those that may be drawn and are accepted, or fewer if there are
    fewer.

    Slots are drawn from all slots, and wrong ones are rejected, which is uniform over the rest.

    Args:
        is_drawable: True for slots that may be drawn, shape (n_slots,).
        rng: Draws.
        replace: Draw with replacement.
        n: Number of slots.
        accepts: Function that returns True for accepted slots; all are accepted by default.
        order: Blocks of slots in use, in the order of their numbers. With them, the same numbers
            are drawn, independent of their places in memory.
    """

    def drawable_at(places: Integers) -> Integers:
        slots = places
        if order is not None:
            slots = (order[places >> _BITS] << _BITS) + (places & (BLOCK - 1))
        return slots[is_drawable[slots]]

    n_places = len(is_drawable) if order is None else len(order) * BLOCK
    found = _by_rejection(drawable_at, n_places, rng, replace, n, accepts)
    if found is not None:
        return found
    # Few slots may be drawn, or n is nearly all of them.
    every, rng = _in_order(np.flatnonzero(is_drawable), order), rng.spawn(1)[0]
    if accepts is not None:
        found = _by_rejection(every.__getitem__, len(every), rng, replace, n, accepts)
        if found is not None:
            return found
        every, rng = every[accepts(every)], rng.spawn(1)[0]
    if replace:
        return every[rng.integers(0, len(every), n)] if len(every) else every
    rng.shuffle(every)
    return every[:n]


def _by_rejection(
    slots_at: Callable[[Integers], Integers],
    n_places: int,
    rng: np.random.Generator,
    replace: bool,
    n: int,
    accepts: Callable[[Integers], Flags] | None,
) -> Integers | None:
    """Return n slots at random places; None where too few are accepted."""
    if not n_places or (n > n_places and not replace):
        return None if n else np.zeros(0, np.int64)
    found: Integers | None = None
    # Mostly a few more than wanted are enough, and `accepts` is asked once.
    n_drawn, size = 0, n + n // 8 + 8
    for _ in range(MOST_ROUNDS):
        # Half the time of `integers`.
        slots = slots_at((rng.random(size) * n_places).astype(np.int64))
        n_drawn += size
        if accepts is not None:
            slots = slots[accepts(slots)]
        found = slots if found is None else np.concatenate([found, slots])
        if not replace:
            found = _first_of_each(found)
        if len(found) >= n:
            return found[:n]
        share = len(found) / n_drawn
        if share < LOWEST_SHARE:
            break
        size = int(1.2 * (n - len(found)) / share) + 16
    return None


def _in_order(slots: Integers, order: Integers | None) -> Integers:
    """Return slots in the order of their numbers."""
    if order is None:
        return slots
    ranks = np.zeros(int(order.max(initial=0)) + 1, np.int64)
    ranks[order] = np.arange(len(order))
    found: Integers = slots[np.argsort((ranks[slots >> _BITS] << _BITS) + (slots & (BLOCK - 1)))]
    return found


def _first_of_each(slots: Integers) -> Integers:
    """Return slots without those that came before, in order."""
    _, first = np.unique(slots, return_index=True)
    return slots if len(first) == len(slots) else slots[np.sort(first)]
