"""A ring of items that are drawn by priority, in a database."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlbuffer.compat.ding.contents.advanced_state import AdvancedState
from sqlbuffer.compat.ding.rings.ring import NewItems, SampledItems
from sqlbuffer.compat.ding.rings.shared_ring import SharedRing, decoded_left, items_of
from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.extensions.credit_ledger import CreditLedger
from sqlbuffer.storage.extensions.item_draws import NewPriority, Pushed, WantedItems
from sqlbuffer.storage.extensions.item_ids import number_of
from sqlbuffer.storage.extensions.prioritized_ring import ID, VERSION, PriorityRing
from sqlbuffer.storage.extensions.ring_buffer import Left
from sqlbuffer.storage.extensions.ring_filling import hold_items


class SharedPrioritizedRing(SharedRing):
    """The items of one buffer, with priorities and counts of uses; see `PrioritizedRing`.

    Args:
        ring: The rows.
        source: The names of the buffer and of the experiment that push items.
    """

    _ring: PriorityRing

    def __init__(self, ring: PriorityRing, source: tuple[str, str]) -> None:
        super().__init__(ring, source)

    def beta(self) -> float | None:
        """Return the exponent of the importance weights; None: none was set, and nothing drawn."""
        return CreditLedger.of(self.counts()).beta

    def set_beta(self, beta: float) -> None:
        """Set the exponent of the importance weights, for every process."""
        self._ring.set_beta(beta)

    def push_items(
        self, new: NewItems, n_pushed: int, envstep: Any, name: str, *, track: bool = False
    ) -> Pushed:
        """Put items at the end; see `PrioritizedRing.push_items`."""
        pushed = self._ring.push_items(self._new(new, envstep), n_pushed, name, track=track)
        return replace(pushed, left=decoded_left(pushed.left))

    def _new(self, new: NewItems, envstep: Any) -> list[Record]:
        found = self._records(new.items, envstep)
        for i, record in enumerate(found):
            priority, version = new.priorities[i], new.versions[i]
            if priority is not None or version != record.model_version:
                found[i] = record._replace(initial_priority=priority, model_version=version)
        return found

    def sample(self, wanted: WantedItems) -> SampledItems:
        """Draw items by priority; see `PrioritizedRing.sample`."""
        found = self._ring.sample(wanted)
        ids = [row[ID] for row in found.rows]
        return SampledItems(
            items_of(found.rows),
            ids,
            [self._ring.place_of(number_of(id_), found.counts) for id_ in ids],
            [row[VERSION] for row in found.rows],
            found.priorities,
            found.weights,
            found.uses,
            found.beta,
            found.n_removed,
            items_of(found.left),
            found.refused,
            found.is_empty_range,
        )

    def update(self, given: Mapping[str, NewPriority], max_use: float | None = None) -> int:
        """Set the priorities of items; see `PrioritizedRing.update`."""
        return self._ring.update(given, max_use)

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items; the numbering continues."""
        return decoded_left(self._ring.clear_items(track=track))

    def held(self, *, encoded: bool = False) -> AdvancedState:
        """Return all that it holds; see `PrioritizedRing.held`."""
        held = self._ring.held()
        rows, counts = held.contents.rows, held.contents.counts
        return AdvancedState(
            items_of(rows, encoded=encoded),
            [row[ID] for row in rows],
            held.priorities,
            held.uses,
            counts,
            CreditLedger.of(counts),
            None,
        )

    def hold(self, state: AdvancedState, versions: Sequence[int | None]) -> None:
        """Hold these items instead of those that there are, in one transaction."""
        new = NewItems(state.items, state.priorities, versions)
        records = [
            record._replace(id=id_)
            for record, id_ in zip(self._new(new, 0), state.ids, strict=True)
        ]
        hold_items(self._ring, records, state.uses, state.counts, state.ledger)
