"""Draw batches of any kind from the memory of a mirror."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from sqlbuffer.arguments import checked_batch_size
from sqlbuffer.batches.forms import (
    Form,
    StepForm,
    TrajectoryForm,
    TransitionForm,
    no_successor,
    put_rewards,
    warn_of_single_steps,
)
from sqlbuffer.batches.hindsight import HindsightGoals, Rng, rng_of
from sqlbuffer.batches.makers import Maker, Plan, maker_of
from sqlbuffer.batches.step_table import (
    NONE,
    Flags,
    Integers,
    StepTable,
    as_float32,
    as_records,
    bytes_of,
)
from sqlbuffer.batches.transitions import TransitionMaker, TransitionPlan, with_goals
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.loading.shortage import Shortage, check_sufficient, shortage
from sqlbuffer.mirror.accounts import DrawAccounts
from sqlbuffer.mirror.choosing import NO_COLUMNS, Chooser, UniformChooser, chooser_of
from sqlbuffer.mirror.conditions import MatchingSteps
from sqlbuffer.mirror.following import Refreshing
from sqlbuffer.mirror.memory.records import SEQ
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.settings import MirrorSettings
from sqlbuffer.mirror.shared_following import SharedFollowing
from sqlbuffer.query.tree import EVERYTHING, Group, Node
from sqlbuffer.samplers import PrioritizedSampler, Sampler
from sqlbuffer.steps import Batch
from sqlbuffer.storage.sampling.candidate_source import below_min_size
from sqlbuffer.storage.store import BufferStore

# It is begun when that share of the steps was planned in draws: for a million steps it takes 0.1 to
# 0.4 s, a page in each draw, and saves 0.3 ms a draw.
WORTH_IT = 1 / 256
# With more changes than this share of the steps, each draw makes its own plans again.
MOST_CHANGED = 1 / 8
# Arrays of more slots do not fit into the caches.
_PAGE = 16_384
# Of 32 bytes, because numpy gathers items of a power of two faster.
_ROW: np.dtype[Any] = np.dtype(
    {
        "names": [
            "reward", "discount", "after", "m", "terminated", "truncated", "is_final", "accepted",
        ],
        "formats": [np.float32, np.float32, np.int32, np.int32, *[np.bool_] * 4],
        "offsets": [0, 4, 8, 12, 16, 17, 18, 19],
        "itemsize": 32,
    }
)  # fmt: skip


class TransitionTable:
    """Plans of transitions, by the slot of their first step.

    Args:
        memory: The steps.
        n_step: Largest number of steps that a transition spans.
        plan: Makes the plans of slots.
        n_at_once: Returns how many slots it may plan at once.
    """

    def __init__(
        self,
        memory: StepMemory,
        n_step: int,
        plan: Callable[[Integers], TransitionPlan],
        n_at_once: Callable[[Integers], int],
    ) -> None:
        self._memory, self._n_step, self._plan = memory, n_step, plan
        self._n_at_once = n_at_once
        self._n_planned, self._n_changes = 0, -1
        self._use(0)

    def _use(self, n_slots: int) -> None:
        """Begin without a plan."""
        self._n_filled, self._is_whole, self._has_single = 0, False, False
        # numpy copies a structured record part by part; as plain bytes it is copied whole.
        self._row_bytes = np.zeros(n_slots, bytes_of(_ROW))
        self._is_accepted: Flags = np.zeros(n_slots, bool)

    def accepted(self, n: int) -> Flags | None:
        """Return which steps a transition can be made of, for a draw of n; None while it is cheaper
        to plan what is drawn.
        """
        changed, n_used = self._memory.changed, self._memory.blocks.n_used
        if self._n_changes != changed.n:
            self._follow(n, n_used)
        if self._n_changes < 0:
            return None
        if self._n_filled < n_used:
            # A page in each draw: all pages together take 0.1 to 0.4 s.
            page = np.arange(self._n_filled, min(self._n_filled + _PAGE, n_used))
            page = page[: self._n_at_once(page)]
            self._update(page)
            self._n_filled += len(page)
        self._is_whole = self._n_filled >= n_used
        return self._is_accepted if self._is_whole else None

    def _follow(self, n: int, n_used: int) -> None:
        """Plan the steps again that have changed, or begin with no plan."""
        changed, slots = self._memory.changed, None
        if self._n_changes >= 0 and len(self._is_accepted) == self._memory.n_slots:
            slots = changed.since(self._n_changes)
        if slots is not None and len(slots) * (self._n_step + 1) <= MOST_CHANGED * n_used + 1:
            slots = self._with_steps_before(slots)
            if self._is_whole:
                self._n_filled = n_used
            self._update(slots[slots < self._n_filled])
        else:
            self._n_changes = -1
            self._n_planned += n
            if self._n_planned < WORTH_IT * n_used:
                return
            self._use(self._memory.n_slots)
        self._n_planned, self._n_changes = 0, changed.n

    def _with_steps_before(self, slots: Integers) -> Integers:
        """Return slots and those of the steps whose transitions reach them."""
        prev, runs = self._memory.links["prev"], [slots]
        for _ in range(self._n_step):
            before = prev[runs[-1]].astype(np.int64)
            runs.append(before[before != NONE])
            if not len(runs[-1]):
                break
        return np.unique(np.concatenate(runs))

    def _update(self, slots: Integers) -> None:
        is_drawable = self._memory.is_drawable
        size = min(_PAGE, self._n_at_once(slots))
        for start in range(0, len(slots), size):
            part = slots[start : start + size]
            plan = self._plan(part)
            rows = np.zeros(len(part), _ROW)
            rows["reward"] = as_float32(plan.reward)
            rows["discount"], rows["m"] = plan.discount, plan.m
            rows["terminated"], rows["truncated"] = plan.terminated, plan.truncated
            rows["after"], rows["is_final"] = plan.after, plan.is_final
            rows["accepted"] = self._is_accepted[part] = plan.accepted & is_drawable[part]
            self._row_bytes[part] = as_records(rows, self._row_bytes.dtype)
            self._has_single |= plan.has_single

    def plan(self, slots: Integers) -> TransitionPlan:
        """Return the plan of steps, most of them accepted."""
        rows = as_records(self._row_bytes.take(slots), _ROW)
        nothing = np.zeros((len(slots), 0), np.int64)
        return TransitionPlan(
            slots, nothing, rows["reward"], rows["discount"], rows["m"], rows["terminated"],
            rows["truncated"], rows["after"].astype(np.int64), rows["is_final"], nothing, nothing,
            rows["accepted"], self._has_single,
        )  # fmt: skip


# Largest number of steps that one plan covers: it takes about 100 bytes for each.
_MOST_STEPS = 2**20


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
        self._notes_single = self._relabels = False
        if isinstance(maker, TransitionMaker) and isinstance(form, TransitionForm):
            memory.check_kept([*form.names, *form.plain_following])
            if form.relabel is not None:
                memory.check_kept(form.of_goals.plain_following)
            if not (form.stack or form.sequence_fields or maker.checks_ends):
                # Without goals: if an episode has ended, it does not change the plans of its steps.
                plain: Maker[Any] = maker_of(memory, form.without_goals, observation)
                self._table = TransitionTable(memory, form.n_step, plain.plan, self._n_at_once)
            if form.refuses_single:
                self._refused = _StepsWithoutEpisode(memory, form)
            self._relabels = form.relabel is not None
            self._notes_single = form.n_step > 1 and not form.needs_episodes
            self._n_step = form.n_step
        # Of partial trajectories alone.
        self._first_runs = (
            _FirstRuns(memory)
            if isinstance(form, TrajectoryForm) and form.include_partial
            else None
        )

    def draw(
        self,
        chooser: Chooser,
        n: int,
        matching: Flags | None = None,
        rng: Rng = np.random.default_rng,
    ) -> Batch:
        """Return n items, or fewer if there are fewer.

        Args:
            chooser: Chooses their keys.
            n: Number of items.
            matching: True for slots whose step may be a key; None: all that may be drawn.
            rng: Returns the generator that chooses goals in hindsight.
        """
        memory, maker, table = self.memory, self._maker, self._table
        if maker.accepts_all:
            chosen = chooser.choose(memory, self.keys(matching), n)
            return maker.batch(maker.plan(chosen.slots), chosen.columns)
        self._refuse_single(matching)
        if table is not None and (self._relabels or not memory.episodes.n_aborted):
            accepted = table.accepted(n)
            if accepted is not None:
                # As without the table: a seed draws the same steps either way.
                if self._relabels:
                    return self._with_goals(chooser, n, matching, rng, table)
                keys, are_accepted = self.keys(matching), accepted.__getitem__
                if matching is None and isinstance(chooser, UniformChooser):
                    chosen = chooser.choose(memory, keys, n, are_accepted, accepted)
                else:
                    chosen = chooser.choose(memory, keys, n, are_accepted)
                return self._batch(table.plan(chosen.slots), chosen.columns)
        plans: list[Plan] = []

        def accepts(slots: "Integers") -> "Flags":
            size = self._n_at_once(slots)
            if len(slots) > size:
                return self._accepted(slots, size)
            plans.append(maker.plan(slots))
            return plans[-1].accepted

        chosen = chooser.choose(memory, self.keys(matching), n, accepts)
        plan = with_goals(maker, self._planned(chosen.slots, plans), rng)
        return self._batch(plan, chosen.columns)

    def _with_goals(
        self,
        chooser: Chooser,
        n: int,
        matching: Flags | None,
        rng: Rng,
        table: TransitionTable,
    ) -> Batch:
        """Return n transitions with goals in hindsight, of plans that are known; see `draw`."""
        memory, maker = self.memory, self._maker
        assert isinstance(maker, TransitionMaker)
        have_goals = maker.have_goals

        def plan_of(_: "StepTable", slots: "Integers") -> TransitionPlan:
            plan = table.plan(slots)
            of = memory.gathered_links(slots)["episode"]
            have = have_goals(of, plan.after, plan.is_final)
            return plan._replace(accepted=plan.accepted & have)

        def accepts(slots: "Integers") -> "Flags":
            return plan_of(memory, slots).accepted

        chosen = chooser.choose(memory, self.keys(matching), n, accepts)
        plan = maker.with_goals(table.plan(chosen.slots), rng(), plan_of)
        return self._batch(plan, chosen.columns)

    def keys(self, matching: Flags | None = None) -> Flags:
        """Return which slots have a key that may be drawn, shape (n_used,); see `draw`."""
        memory = self.memory
        keys = memory.is_drawable[: memory.blocks.n_used] if matching is None else matching
        are_keys = self._is_key.now()
        if are_keys is not None:
            keys = keys & are_keys
            if self._first_runs is not None:
                keys &= self._first_runs.of(are_keys)
        return keys

    def accepted(self, slots: Integers, matching: Flags | None = None) -> Flags:
        """Return of which slots an item can be made that may be drawn; see `draw`."""
        self._refuse_single(matching)
        accepted = self.keys(matching)[slots]
        if self._maker.accepts_all:
            return accepted
        indexes = np.flatnonzero(accepted)
        accepted[indexes] = self._accepted(slots[indexes], self._n_at_once(slots[indexes]))
        return accepted

    def read(self, slots: Integers, rng: Rng = np.random.default_rng) -> Batch:
        """Return the items made from accepted slots, in their order; for `rng` see `draw`."""
        plan = with_goals(self._maker, self._maker.plan(slots), rng)
        return self._batch(plan, NO_COLUMNS)

    def _batch(self, plan: Plan, columns: Any) -> Batch:
        if self._notes_single and isinstance(plan, TransitionPlan) and plan.has_single:
            links = self.memory.gathered_links(plan.slots)
            if (links["episode"] == NONE).any():
                warn_of_single_steps(*self._buffer, self._n_step)
        return self._maker.batch(plan, columns)

    def _refuse_single(self, matching: Flags | None) -> None:
        if self._refused is not None:
            self._refused.refuse(self.keys(matching))

    def _accepted(self, slots: Integers, size: int) -> Flags:
        pages = [
            self._maker.plan(slots[start : start + size]).accepted
            for start in range(0, len(slots), size)
        ]
        return np.concatenate(pages) if pages else np.zeros(0, bool)

    def _n_at_once(self, slots: Integers) -> int:
        return max(1, _MOST_STEPS // max(1, self._maker.n_steps(slots)))

    def _planned(self, slots: Integers, plans: list[Plan]) -> Plan:
        """Return the plan of slots, from the plan that found them accepted if there is one."""
        if len(plans) == 1:
            indexes = np.flatnonzero(plans[0].accepted)[: len(slots)]
            if np.array_equal(plans[0].slots[indexes], slots):
                part: Plan = self._maker.taken(plans[0], indexes)
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

    def __init__(self, memory: StepMemory, form: TransitionForm) -> None:
        self._memory, self._form = memory, form
        self._slots, self._n_changes = np.zeros(0, np.int64), -1

    def refuse(self, may_be_drawn: Flags) -> None:
        """Raise FieldError if such a step may be drawn."""
        memory, changed = self._memory, self._memory.changed
        if self._n_changes != changed.n:
            slots = changed.since(self._n_changes) if self._n_changes >= 0 else None
            episodes = memory.links["episode"]
            if slots is None:
                self._slots = np.flatnonzero(episodes[: memory.blocks.n_used] == NONE)
            else:
                kept = np.setdiff1d(self._slots, slots)
                self._slots = np.union1d(kept, slots[episodes[slots] == NONE])
            self._n_changes = changed.n
        if len(self._slots):
            drawable = self._slots[may_be_drawn[self._slots]]
            if len(drawable):
                raise no_successor(self._form, int(memory.records[SEQ][drawable].max()))


T = TypeVar("T")
F = TypeVar("F", StepForm, TransitionForm)

# Results of more forms than this are forgotten.
MOST_FORMS = 8


class MemoryDraws:
    """Draws from a mirror.

    Args:
        store: The buffer.
        settings: Settings of the mirror.
        refreshing: Keeps its steps in memory.

    Attributes:
        accounts: Counts and logs the draws.
    """

    def __init__(
        self,
        store: BufferStore,
        settings: MirrorSettings,
        refreshing: Refreshing | SharedFollowing,
    ) -> None:
        self._store, self._settings, self._refreshing = store, settings, refreshing
        self._rng, self._matching = np.random.default_rng(), MatchingSteps()
        self._uniform = UniformChooser(self._rng, replace=True)
        self.accounts = DrawAccounts(store, settings.refresh_s)
        self._makers: dict[Form, MemoryBatches] = {}
        self._forms: dict[Any, Any] = {}
        self._selects = settings.selects
        self._min_size = store.info.config.sampling.min_size
        self._has_priorities = store.info.config.priorities.enabled

    @property
    def selects(self) -> bool:
        """Whether the mirror has only the steps that match a condition."""
        return self._selects

    def n_steps(self) -> int:
        """Return how many steps the mirror has; those that match, where it selects some."""
        if self._selects:
            return self._refreshing.read(lambda memory: memory.n_wanted)
        return self._refreshing.n_live

    def catch_up(self, seq: int) -> None:
        """Read the buffer now, unless it had this step at the last look."""
        if self._refreshing.read(lambda memory: memory.high) < seq:
            self._refreshing.refresh()

    def sample(
        self,
        form: Form,
        n: int,
        sampler: Sampler | None,
        node: Node,
    ) -> Batch:
        """Return n things that a sampler draws; see `sampled`."""
        batch, _ = self.sampled(form, n, sampler, node)
        if sampler is not None:
            sampler.handed_out()  # loaders call it themselves
        return batch

    def sampled(
        self,
        form: Form,
        n: int,
        sampler: Sampler | None,
        node: Node,
    ) -> tuple[Batch, int]:
        """Return n items that a sampler draws, and the newest step of the buffer at that time.

        Args:
            form: Form of the items.
            n: Number of items.
            sampler: Sampler that draws them; None: uniform with replacement.
            node: Condition that first steps must match.

        Raises:
            BufferConfigError: The mirror or its buffer is closed.
            InsufficientDataError: Fewer items can be drawn.
            FlowControlError: The rate limiter did not admit the draw in time.
        """
        self._store.check_open()
        chooser: Chooser = self._uniform
        rng: Rng = self._default_rng
        if sampler is not None:
            rng = rng_of(sampler, rng)
            has_condition = self._selects or node != EVERYTHING
            chooser = chooser_of(sampler, self._rng, has_condition=has_condition)
        n = checked_batch_size(n, sampler, replace=True)
        if self._has_priorities and isinstance(sampler, PrioritizedSampler):
            self._refreshing.check_prioritized(sampler.normalize)
        if not self._refreshing.is_cut_off:  # they wait, and the draw would wait with them
            self._store.own_writes.store_before_draw(n, self.n_steps)

        # In quotes: Python evaluates annotations of a nested function in each call.
        def draw_from(
            maker: "MemoryBatches", matching: "Flags | None"
        ) -> "tuple[Batch, int, int | None]":
            memory = maker.memory
            return maker.draw(chooser, n, matching, rng), memory.high, memory.clock

        n_drawn, n_counted = 0, self.accounts.begin(n)
        try:
            batch, head, clock = self.read(form, node, draw_from)
            n_found = batch.n_rows
            if n_found < n and form.needs_ends and not self._refreshing.is_cut_off:
                # The end of an episode may wait to be stored.
                self._store.own_writes.store()
                batch, head, clock = self.read(form, node, draw_from)
                n_found = batch.n_rows
            if n_found < n:
                check_sufficient(n_found, n, True, lambda: self.shortage(node, sampler, form))
            put_rewards(form, batch)
            self.accounts.log(batch, clock, sampler)
            n_drawn = n_found
        finally:
            self.accounts.end(n_counted, n_drawn)
        return batch, head

    def _default_rng(self) -> np.random.Generator:
        return self._rng

    def shortage(self, node: Node, sampler: Sampler | None, form: Form) -> Shortage:
        """Return why too few rows are drawn."""
        return shortage(self._store, Group("all", (self._settings.node, node)), sampler, form)

    def step_form(self, fields: Sequence[str] | None) -> StepForm:
        """Return the form of single steps with some fields, all by default; the same object for the
        same fields.

        Raises:
            FieldError: A field is unknown.
        """
        key = len(self._settings.fields.specs), fields
        known: StepForm | None = self._known_form(key)
        return known or self._kept_form(key, StepForm.of(self._settings.fields, fields))

    def transition_form(
        self,
        n_step: int,
        gamma: float,
        fields: Sequence[str] | None,
        stack: Mapping[str, int] | None,
        terminal_field: str | None,
        sequence_fields: Sequence[str] = (),
        skip_single: bool = False,
        relabel: HindsightGoals | None = None,
    ) -> TransitionForm:
        """Return the form of transitions: the same one for the same arguments.

        Raises:
            FieldError: See `TransitionForm.of`.
        """
        key = (
            len(self._settings.fields.specs), n_step, gamma, fields, stack, terminal_field,
            sequence_fields, skip_single, relabel,
        )  # fmt: skip
        known: TransitionForm | None = self._known_form(key)
        if known is not None:
            return known
        form = TransitionForm.of(
            self._settings.fields, n_step, gamma, names=fields, stack=stack,
            terminal_field=terminal_field, sequence_fields=sequence_fields,
            skip_single=skip_single, relabel=relabel,
        )  # fmt: skip
        return self._kept_form(key, form)

    def _known_form(self, key: tuple[Any, ...]) -> Any:
        """Return the form that was made for these arguments; None if there is none."""
        try:
            return self._forms.get(key)
        except TypeError:  # a list, or a dict
            with suppress(Exception):
                return self._forms.get(_hashable(key))
        except Exception:  # values that cannot be compared
            pass
        return None

    def _kept_form(self, key: tuple[Any, ...], form: F) -> F:
        with suppress(Exception):  # values that cannot be hashed or compared
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[_hashable(key)] = form
        return form

    def read(
        self, form: Form, node: Node, compute: Callable[[MemoryBatches, Flags | None], T]
    ) -> T:
        """Return a result made from the steps as they are now.

        Args:
            form: Form of the items.
            node: Condition that first steps must match.
            compute: Function that is called with the maker, and flags of slots whose steps match;
                None if all match.
        """
        self._store.check_open()
        self._refreshing.prepare()

        def of_memory(memory: "StepMemory") -> "T":
            if memory.n_live < self._min_size:
                self._check_size(memory)
            matching = None if node is EVERYTHING else self._matching.of(memory, node)
            return compute(self._maker(memory, form), matching)

        return self._refreshing.read(of_memory)

    def _maker(self, memory: StepMemory, form: Form) -> MemoryBatches:
        """Return the maker of batches of a form, which remembers the steps it accepts."""
        known = self._makers.get(form)
        if known is None or known.memory is not memory:
            # One of another memory would keep all of its steps.
            if known is not None or len(self._makers) >= MOST_FORMS:
                self._makers.clear()
            buffer = str(self._store.url), self._store.info.id
            layout = self._store.observation_layout
            known = self._makers[form] = MemoryBatches(memory, form, layout, buffer)
        return known

    def _check_size(self, memory: StepMemory) -> None:
        needed, name = self._min_size, self._store.info.name
        n = memory.n_live
        if n < needed and self._selects:
            n = self._store.rows.count_stored(EVERYTHING)  # it does not have all steps
        if n < needed:
            why_none = "" if n else shortage(self._store, EVERYTHING, None).why_none
            raise InsufficientDataError(below_min_size(name, n, needed, why_none))


def _hashable(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments without lists and mappings."""
    return tuple(
        frozenset(argument.items()) if isinstance(argument, Mapping)
        else tuple(argument) if isinstance(argument, list) else argument
        for argument in arguments
    )  # fmt: skip
