"""A ring of items that are drawn by priority, in the memory of this process."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.ding.contents.advanced_state import AdvancedState
from sqlbuffer.compat.ding.contents.item_columns import copied_items
from sqlbuffer.compat.ding.rings.cell_weights import BLOCK, CellWeights
from sqlbuffer.compat.ding.rings.private_ring import PrivateRing, values_of
from sqlbuffer.compat.ding.rings.ring import NewItems, SampledItems
from sqlbuffer.rate_limits import RatioWindow
from sqlbuffer.storage.extensions.credit_ledger import CreditLedger
from sqlbuffer.storage.extensions.item_draws import (
    ALL_USED_UP,
    NewPriority,
    Pushed,
    WantedItems,
    no_items_of,
    use_of_each,
)
from sqlbuffer.storage.extensions.item_ids import number_of
from sqlbuffer.storage.extensions.prioritized_ring import EPS
from sqlbuffer.storage.extensions.ring_buffer import Left
from sqlbuffer.weighted_sampling import importance_weights

Integers = NDArray[np.int64]
# The version of an item whose iteration is unknown: it never gets too old.
NEVER_OLD = 2**62


class PrivatePrioritizedRing(PrivateRing):
    """The items of one buffer, with priorities and counts of uses; see `PrioritizedRing`.

    Args:
        size: Largest number of items.
        alpha: Exponent of the priorities.
        limit: Limit that keeps pushes and draws in proportion; None: no limit.
    """

    def __init__(self, size: int, alpha: float, limit: RatioWindow | None = None) -> None:
        # One block more than the window: its two ends are never in the same one.
        n_blocks = -(-size // BLOCK) + 1
        n_cells = n_blocks * BLOCK
        super().__init__(size, n_cells)
        self._alpha, self._limit = alpha, limit
        self._weights = CellWeights(n_blocks, alpha)
        self._ids = np.full(n_cells, None, object)
        self._is_held = np.zeros(n_cells, bool)
        self._uses = np.zeros(n_cells, np.int64)
        self._versions = np.full(n_cells, NEVER_OLD, np.int64)
        self._ledger = CreditLedger()

    def _empty(self, first: int, last: int) -> None:
        super()._empty(first, last)
        for part in self._parts(first, last):
            self._forget(np.arange(part.start, part.stop))

    def _forget(self, cells: Integers) -> None:
        self._weights.set(cells, 0.0)
        self._ids[cells], self._is_held[cells] = None, False
        self._uses[cells], self._versions[cells] = 0, NEVER_OLD

    def _describe(
        self,
        numbers: Integers,
        ids: Sequence[str],
        priorities: Sequence[float | None],
        versions: Sequence[int | None],
    ) -> None:
        """Store what belongs to items that were put in."""
        cells, default = numbers % self._n_cells, self._ledger.max_priority
        own = np.array([default if p is None else p for p in priorities], np.float64)
        self._weights.set(cells, own)
        self._ids[cells], self._is_held[cells] = ids, True
        self._versions[cells] = [NEVER_OLD if version is None else version for version in versions]

    def _place_of(self, number: int) -> int:
        """Return the place in the ring of an item that is held, by its number."""
        return (number - self._push_count + self._tail) % self.size

    def _numbers(self) -> Integers:
        """Return the numbers of all items, in order."""
        numbers = np.arange(self._low, self._push_count)
        found: Integers = numbers[self._is_held[numbers % self._n_cells]]
        return found

    def beta(self) -> float | None:
        """Return the exponent of the importance weights; None: none was set, and nothing drawn."""
        return self._ledger.beta

    def set_beta(self, beta: float) -> None:
        """Set the exponent of the importance weights."""
        with self._mutex:
            self._ledger = replace(self._ledger, beta=beta)

    def push_items(
        self, new: NewItems, n_pushed: int, envstep: Any, name: str, *, track: bool = False
    ) -> Pushed:
        """Put copies of items at the end; see `PrioritizedRing.push_items`."""
        copies, n = copied_items(new.items), len(new.items)
        with self._mutex:
            ledger = self._ledger
            if self._limit is not None:
                ledger = ledger.decayed(self._limit, time.time())
                if (refused := self._limit.refused_insert(ledger.flow, n_pushed)) is not None:
                    return Pushed(refused=refused)
                self._ledger = replace(ledger, pushed=ledger.pushed + n_pushed)
            low = min(self._push_count + n_pushed - self.size, self._push_count)
            left = self._held(self._low, low)
            self._empty(self._low, low)
            self._n -= len(left)
            self._count_pushed(n_pushed)
            numbers = range(self._push_count - n, self._push_count)
            self._write(numbers.start, copies, n)
            ids = [f"{name}_{number}" for number in numbers]
            self._describe(np.array(numbers), ids, new.priorities, new.versions)
            places = [self._place_of(number) for number in numbers]
        items = Left(len(left), values_of(left) if track else ())
        return Pushed(numbers, places, ledger.max_priority, items)

    def sample(self, wanted: WantedItems) -> SampledItems:
        """Draw items by priority; see `PrioritizedRing.sample`."""
        with self._mutex:
            stale = self._stale(wanted.oldest_version)
            done = SampledItems(n_removed=len(stale), left=self._remove(stale, wanted.tracks))
            if (refused := wanted.refused_at(self._n)) is not None:
                return replace(done, refused=refused)
            ledger = self._ledger
            if self._limit is not None:
                ledger = ledger.decayed(self._limit, time.time())
                if (refused := self._limit.refused_sample(ledger.flow, wanted.size)) is not None:
                    return replace(done, refused=refused)
            numbers = self._chosen(wanted)
            if numbers is None:
                return replace(done, refused=no_items_of(self._n), is_empty_range=True)
            if len(numbers) < wanted.size:
                return replace(done, refused=ALL_USED_UP)
            return self._drawn(numbers, wanted, ledger, done)

    def _stale(self, oldest_version: int | None) -> Integers:
        """Return the numbers of the items that are too old."""
        if oldest_version is None:
            return np.empty(0, np.int64)
        cells, newest = np.flatnonzero(self._versions < oldest_version), self._push_count - 1
        return np.sort(newest - (newest - cells) % self._n_cells)

    def _remove(self, numbers: Integers, tracks: bool) -> list[Any]:
        """Remove items; return them where they are tracked."""
        left = values_of(map(self._cell, numbers.tolist())) if tracks else []
        cells = numbers % self._n_cells
        for cell in cells.tolist():
            self._copies[cell] = None
        self._n -= cells.size
        self._forget(cells)
        return left

    def _chosen(self, wanted: WantedItems) -> Integers | None:
        """Return the numbers that are drawn; None where the range has no items."""
        among = None
        if wanted.which is not None:
            among = np.sort(self._numbers()[wanted.which])
            if not among.size:
                return None
        return self._weights.draw(wanted.seed, self._low, self._push_count, wanted.size, among)

    def _drawn(
        self, numbers: Integers, wanted: WantedItems, ledger: CreditLedger, done: SampledItems
    ) -> SampledItems:
        cells = numbers % self._n_cells
        beta = wanted.beta if ledger.beta is None else ledger.beta
        priorities = self._weights.priorities[cells]
        weights = importance_weights(priorities, self._alpha, beta, self._weights.least())
        items = values_of(map(self._cell, numbers.tolist()))
        found = replace(
            done,
            items=items,
            ids=self._ids[cells].tolist(),
            places=[self._place_of(number) for number in numbers.tolist()],
            versions=[None if v == NEVER_OLD else v for v in self._versions[cells].tolist()],
            priorities=priorities.tolist(),
            weights=list(weights),
            beta=min(1.0, beta + wanted.beta_step),
        )
        sampled = 0 if self._limit is None else wanted.size
        self._ledger = replace(ledger, beta=found.beta, sampled=ledger.sampled + sampled)
        return self._used(found, numbers, wanted)

    def _used(self, found: SampledItems, numbers: Integers, wanted: WantedItems) -> SampledItems:
        """Count the uses of drawn items; remove used-up items, or do not draw them any more."""
        counted = Counter(numbers.tolist())
        own = np.array(list(counted))
        cells = own % self._n_cells
        self._uses[cells] += list(counted.values())
        uses = use_of_each(
            numbers.tolist(), counted, dict(zip(counted, self._uses[cells].tolist(), strict=True))
        )
        used_up = np.empty(0, np.int64)
        if wanted.max_use is not None:
            used_up = np.sort(own[self._uses[cells] >= wanted.max_use])
        if wanted.keeps_used:
            self._weights.set(used_up % self._n_cells, 0.0)
            return replace(found, uses=uses)
        left = self._remove(used_up, wanted.tracks)
        n_removed = found.n_removed + used_up.size
        return replace(found, uses=uses, n_removed=n_removed, left=[*found.left, *left])

    def update(self, given: Mapping[str, NewPriority], max_use: float | None = None) -> int:
        """Set the priorities of items that are still where they were; return how many there were.

        Args:
            given: Their new priorities by their ids.
            max_use: Items with that many uses keep theirs; None: all may be set.
        """
        with self._mutex:
            found = {}
            for id_, new in given.items():
                number = number_of(id_)
                cell = number % self._n_cells
                is_there = self._ids[cell] == id_ and self._place_of(number) == new.place
                if is_there and (max_use is None or self._uses[cell] < max_use):
                    found[cell] = new
            if found:
                priorities = np.array([new.priority for new in found.values()])
                self._weights.set(np.array(list(found)), priorities + EPS)
                largest = max(new.largest for new in found.values())
                if largest > self._ledger.max_priority:
                    self._ledger = replace(self._ledger, max_priority=largest)
        return len(found)

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items; the numbering continues."""
        with self._mutex:
            left = self._take_all()
            self._low, self._tail = self._push_count, 0
            self._ledger = replace(self._ledger, max_priority=1.0)
        return Left(len(left), values_of(left) if track else ())

    def held(self, *, encoded: bool = False) -> AdvancedState:
        """Return all that it holds; see `PrioritizedRing.held`."""
        with self._mutex:
            cells = self._held(self._low, self._push_count)
            places = self._numbers() % self._n_cells
            return AdvancedState(
                values_of(cells, encoded=encoded),
                self._ids[places].tolist(),
                self._weights.priorities[places].tolist(),
                self._uses[places].tolist(),
                self._counts(),
                self._ledger,
                None,
            )

    def hold(self, state: AdvancedState, versions: Sequence[int | None]) -> None:
        """Hold copies of these items instead of those that there are."""
        copies = copied_items(state.items)
        with self._mutex:
            self._take_all()
            self._push_count, self._tail = state.counts.push_count, state.counts.tail
            self._low, self._ledger = max(self._push_count - self.size, 0), state.ledger
            numbers = np.array([number_of(id_) for id_ in state.ids], np.int64)
            for i, number in enumerate(numbers.tolist()):
                self._write(number, copies, 1, i)
            self._describe(numbers, state.ids, state.priorities, versions)
            self._uses[numbers % self._n_cells] = state.uses
