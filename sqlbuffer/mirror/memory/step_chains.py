"""Steps that follow each other in memory, many at a time."""

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.mirror.memory.block_map import NONE
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import LIVE

Integers = NDArray[np.int64]

# Number of steps whose links are followed in one go: a run of steps is seldom longer.
MOST_AHEAD = 256


def chains(
    memory: StepMemory, slots: Integers, most: int | None = None, *, back: bool = False
) -> Integers:
    """Return the slots of steps and of those after them in their episodes, shape (b, n); -1 from
    the first on that the buffer does not have. n is the length of the longest.

    Mostly steps that follow each other are next to each other: the links are followed by runs of
    such slots.

    Args:
        memory: The steps.
        slots: Where to begin, shape (b,).
        most: Largest n, with the first one; None: there is no limit.
        back: The steps before, from the newest to the oldest.
    """
    direction, link = (-1, "prev") if back else (1, "next")
    rows, at, starts = np.arange(len(slots)), np.zeros(len(slots), np.int64), slots
    most = memory.n_slots if most is None else most
    runs: list[tuple[Integers, Integers, Integers]] = []
    while len(rows):
        width = min(most - int(at.min()), MOST_AHEAD)
        near = starts[:, None] + direction * np.arange(width)
        links = memory.gathered_links(near.clip(0, memory.n_slots - 1).reshape(-1))
        links = links.reshape(near.shape)
        following = links[link]
        is_reached = ((links["flags"] & LIVE) != 0) & (near >= 0)
        is_reached[:, 1:] &= following[:, :-1] == near[:, 1:]
        is_reached &= at[:, None] + np.arange(width) < most
        is_reached = np.logical_and.accumulate(is_reached, axis=1)
        lens = is_reached.sum(axis=1)
        own, place = np.nonzero(is_reached)
        runs.append((rows[own], at[own] + place, near[own, place]))
        # A run that ends here may continue elsewhere.
        starts = following[np.arange(len(rows)), np.maximum(lens - 1, 0)].astype(np.int64)
        at = at + lens
        goes_on = (lens > 0) & (starts != NONE) & (at < most)
        rows, at, starts = rows[goes_on], at[goes_on], starts[goes_on]
    n = max((int(places.max(initial=-1)) + 1 for _, places, _ in runs), default=0)
    found = np.full((len(slots), n), NONE, np.int64)
    for own, places, steps in runs:
        found[own, places] = steps
    return found
