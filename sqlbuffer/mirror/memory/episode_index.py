"""Steps in memory by their place in an episode."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import LIVE, NONE, Flags, Integers
from sqlbuffer.mirror.memory.tables import BlockMap, ChangedSlots

# When a larger share of the slots has changed, all are sorted again: a million take 0.1 s.
MOST_CHANGED = 1 / 16
_BITS = 32


class Memory(Protocol):
    """The steps of a mirror; see `StepMemory`."""

    blocks: BlockMap
    changed: ChangedSlots

    @property
    def links(self) -> NDArray[np.void]: ...


class EpisodeIndex:
    """Finds steps by their place in an episode.

    All steps are sorted at the first use, and later those that have changed since.

    Args:
        memory: The steps.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        none = np.zeros(0, np.int64)
        # Sorted codes of an episode and a place, and the slots of these steps: of all steps as they
        # were after some changes, and of those that have changed since.
        self._all = self._changed = none, none
        self._n_of_all = self._n_of_changed = -1

    def slots_of(self, episodes: Integers, ts: Integers) -> Integers:
        """Return the slots of steps at places of episodes; `NONE` where there is no such step."""
        slots = np.full(len(ts), NONE, np.int64)
        codes = _codes(episodes, ts)
        for known, slots_of_known in self._levels():
            if len(known):
                places = known.searchsorted(codes).clip(max=len(known) - 1)
                are_there = (known[places] == codes) & self._are_at(slots_of_known[places], codes)
                slots[are_there] = slots_of_known[places[are_there]]
        return slots

    def steps_of(self, episode: int) -> Integers:
        """Return the slots of all steps of an episode, in order."""
        ends = np.array([episode, episode + 1], np.int64) << _BITS
        slots, codes = [], []
        for known, slots_of_known in self._levels():
            first, end = known.searchsorted(ends).tolist()
            are_there = self._are_at(slots_of_known[first:end], known[first:end])
            slots.append(slots_of_known[first:end][are_there])
            codes.append(known[first:end][are_there])
        _, first_of_each = np.unique(np.concatenate(codes), return_index=True)
        steps: Integers = np.concatenate(slots)[first_of_each]
        return steps

    def _are_at(self, slots: Integers, codes: Integers) -> Flags:
        """Return which slots have the step of a code now."""
        links = self._memory.links[slots]
        is_live = (links["flags"] & LIVE) != 0
        are_at: Flags = is_live & (_codes(links["episode"], links["t"]) == codes)
        return are_at

    def _levels(self) -> list[tuple[Integers, Integers]]:
        memory, n = self._memory, self._memory.changed.n
        if self._n_of_changed != n:
            n_used, slots = memory.blocks.n_used, None
            if self._n_of_all >= 0:
                slots = memory.changed.since(self._n_of_all)
            if slots is None or len(slots) > MOST_CHANGED * n_used:
                self._all, self._n_of_all = self._sorted(np.arange(n_used)), n
                slots = np.zeros(0, np.int64)
            self._changed, self._n_of_changed = self._sorted(slots), n
        return [self._all, self._changed]

    def _sorted(self, slots: Integers) -> tuple[Integers, Integers]:
        links = self._memory.links
        is_of_episode = ((links["flags"][slots] & LIVE) != 0) & (links["episode"][slots] != NONE)
        slots = slots[is_of_episode]
        codes = _codes(links["episode"][slots], links["t"][slots])
        order = codes.argsort()
        return codes[order], slots[order]


def _codes(episodes: NDArray[np.integer], ts: NDArray[np.integer]) -> Integers:
    codes: Integers = (episodes.astype(np.int64) << _BITS) + ts
    return codes
