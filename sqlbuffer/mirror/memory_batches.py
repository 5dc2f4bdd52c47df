"""Batches of steps in memory: what may be drawn now is remembered from draw to draw."""

from typing import Any

import numpy as np

from sqlbuffer.batches.forms import (
    Form,
    TrajectoryForm,
    TransitionForm,
    no_successor,
    warn_of_single_steps,
)
from sqlbuffer.batches.makers import Maker, Plan, maker_of
from sqlbuffer.batches.step_table import NONE, Flags, Integers
from sqlbuffer.batches.transitions import TransitionMaker
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.mirror.choosing.chosen import NO_COLUMNS, Chooser
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import SEQ
from sqlbuffer.mirror.transition_table import TransitionTable
from sqlbuffer.steps.batches import Batch

# Largest number of steps that one plan covers: it takes about 100 bytes for each.
_MOST_STEPS = 2**20
_PAGE = 65_536


class MemoryBatches:
    """Draws batches of one form from steps in memory.

    Args:
        memory: The steps.
        form: The form.
        observation: Layout of the bytes of final observations.
        buffer: The URL of the database and the id of the buffer.

    Attributes:
        memory: The steps.
    """

    def __init__(
        self, memory: StepMemory, form: Form, observation: Layout, buffer: tuple[str, int]
    ) -> None:
        self.memory, self._buffer = memory, buffer
        maker: Maker[Any] = maker_of(memory, form, observation)
        self._maker = maker
        self._is_key = _SlotFlags(memory, maker)
        # Of transitions alone.
        self._table: TransitionTable | None = None
        self._refused: _StepsWithoutEpisode | None = None
        self._notes_single = False
        if isinstance(maker, TransitionMaker) and isinstance(form, TransitionForm):
            memory.check_kept(form.names)
            if not (form.stack or form.sequence_fields or maker.checks_ends):
                self._table = TransitionTable(memory, form.n_step, maker.plan, self._n_at_once)
            if not (form.has_next or form.skip_single):
                self._refused = _StepsWithoutEpisode(memory)
            self._notes_single = form.n_step > 1 and not form.needs_episodes
            self._n_step = form.n_step
        # Of partial trajectories alone.
        self._first_runs = (
            _FirstRuns(memory)
            if isinstance(form, TrajectoryForm) and form.include_partial
            else None
        )

    def draw(self, chooser: Chooser, n: int, wanted: Flags | None = None) -> Batch:
        """Return n items, or fewer if there are fewer.

        Args:
            chooser: Chooses their keys.
            n: Number of items.
            wanted: True for slots whose step may be a key; None: all that may be drawn.
        """
        memory, table = self.memory, self._table
        if n:
            self._refuse_single(wanted)
        if table is not None and not memory.episodes.n_aborted:
            accepted = table.accepted(n)
            if accepted is not None:
                # As without the table: a seed draws the same steps either way.
                chosen = chooser.choose(memory, self.keys(wanted), n, accepted.__getitem__)
                return self._batch(table.plan(chosen.slots), chosen.columns)
        if self._maker.accepts_all:
            chosen = chooser.choose(memory, self.keys(wanted), n)
            return self._batch(self._maker.plan(chosen.slots), chosen.columns)
        plans: list[Plan] = []

        def accepts(slots: Integers) -> Flags:
            size = self._n_at_once(slots)
            if len(slots) > size:
                return self._accepted(slots, size)
            plans.append(self._maker.plan(slots))
            return plans[-1].accepted

        chosen = chooser.choose(memory, self.keys(wanted), n, accepts)
        return self._batch(self._planned(chosen.slots, plans), chosen.columns)

    def keys(self, wanted: Flags | None = None) -> Flags:
        """Return which slots have a key that may be drawn, shape (n_used,); see `draw`."""
        memory = self.memory
        keys = memory.is_drawable[: memory.blocks.n_used] if wanted is None else wanted
        are_keys = self._is_key.now()
        if are_keys is not None:
            keys = keys & are_keys
            if self._first_runs is not None:
                keys &= self._first_runs.of(are_keys)
        return keys

    def accepted(self, slots: Integers, wanted: Flags | None = None) -> Flags:
        """Return of which slots an item can be made that may be drawn; see `draw`."""
        self._refuse_single(wanted)
        accepted = self.keys(wanted)[slots]
        if self._maker.accepts_all:
            return accepted
        at = np.flatnonzero(accepted)
        accepted[at] = self._accepted(slots[at], self._n_at_once(slots[at]))
        return accepted

    def read(self, slots: Integers) -> Batch:
        """Return the items made from accepted slots, in their order."""
        return self._batch(self._maker.plan(slots), NO_COLUMNS)

    def _batch(self, plan: Plan, columns: Any) -> Batch:
        if self._notes_single:
            links = self.memory.gathered_links(plan.slots)
            if (links["episode"] == NONE).any():
                warn_of_single_steps(*self._buffer, self._n_step)
        return self._maker.batch(plan, columns)

    def _refuse_single(self, wanted: Flags | None) -> None:
        if self._refused is not None:
            self._refused.refuse(self.keys(wanted))

    def _accepted(self, slots: Integers, size: int) -> Flags:
        pages = [
            self._maker.plan(slots[start : start + size]).accepted
            for start in range(0, len(slots), size)
        ]
        return np.concatenate(pages) if pages else np.zeros(0, bool)

    def _n_at_once(self, slots: Integers) -> int:
        return max(1, _MOST_STEPS // max(1, self._maker.n_steps(slots)))

    def _planned(self, slots: Integers, plans: list[Plan]) -> Plan:
        """Return the plan of slots: mostly it was made to find out whether they are accepted."""
        if len(plans) == 1:
            at = np.flatnonzero(plans[0].accepted)[: len(slots)]
            if np.array_equal(plans[0].slots[at], slots):
                part: Plan = self._maker.taken(plans[0], at)
                return part
        plan: Plan = self._maker.plan(slots)
        return plan


class _SlotFlags:
    """At which slots an item may be placed, computed again where steps have changed.

    Args:
        memory: The steps.
        maker: Decides.
    """

    def __init__(self, memory: StepMemory, maker: Maker[Any]) -> None:
        self._memory, self._are_keys = memory, maker.are_keys
        self._flags: Flags = np.zeros(0, bool)
        self._n_changes = -1
        self._is_all = maker.are_keys(np.zeros(0, np.int64)) is None

    def now(self) -> Flags | None:
        """Return the flags, shape (n_used,); None if an item may be placed at every step."""
        if self._is_all:
            return None
        memory, changed = self._memory, self._memory.changed
        n_used = memory.blocks.n_used
        if self._n_changes != changed.n:
            slots = None
            if len(self._flags) == memory.n_slots and self._n_changes >= 0:
                slots = changed.since(self._n_changes)
            if slots is None:
                self._flags = np.zeros(memory.n_slots, bool)
                slots = np.arange(n_used)
            else:
                # Whether a run begins depends on the step before.
                after = memory.gathered_links(slots)["next"].astype(np.int64)
                slots = np.union1d(slots, after[after != NONE])
            for start in range(0, len(slots), _PAGE):
                page = slots[start : start + _PAGE]
                self._flags[page] = self._are_keys(page)
            self._n_changes = changed.n
        return self._flags[:n_used]


class _FirstRuns:
    """The first run of each episode: one that has lost steps within has several."""

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory
        self._known: tuple[int, Flags] = -1, np.zeros(0, bool)

    def of(self, begin_runs: Flags) -> Flags:
        """Return which of the slots that begin a run begin the first one of their episode."""
        n_changes = self._memory.changed.n
        if self._known[0] != n_changes:
            slots = np.flatnonzero(begin_runs)
            links = self._memory.gathered_links(slots)
            order = np.lexsort((links["t"], links["episode"]))
            _, first = np.unique(links["episode"][order], return_index=True)
            are_first = np.zeros(len(begin_runs), bool)
            are_first[slots[order[first]]] = True
            self._known = n_changes, are_first
        return self._known[1]


class _StepsWithoutEpisode:
    """The steps without an episode, of which no transition is drawn."""

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory
        self._slots, self._n_changes = np.zeros(0, np.int64), -1

    def refuse(self, may_be_drawn: Flags) -> None:
        """Raise FieldError if such a step may be drawn."""
        memory, changed = self._memory, self._memory.changed
        if self._n_changes != changed.n:
            slots = changed.since(self._n_changes) if self._n_changes >= 0 else None
            if slots is None:
                slots, kept = np.arange(memory.blocks.n_used), self._slots[:0]
            else:
                kept = np.setdiff1d(self._slots, slots)
            new = slots[memory.links["episode"][slots] == NONE]
            self._slots, self._n_changes = np.union1d(kept, new), changed.n
        if len(self._slots):
            drawable = self._slots[may_be_drawn[self._slots]]
            if len(drawable):
                raise no_successor(int(memory.records[SEQ][drawable].max()))
