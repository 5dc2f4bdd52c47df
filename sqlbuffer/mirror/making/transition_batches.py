"""Transitions from memory: steps with what follows them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.mirror.choosing.chosen import Chooser, Columns
from sqlbuffer.mirror.making.planned_batches import LIKELY_STEPS, PlannedBatches
from sqlbuffer.mirror.making.step_batches import episode_info, fields_of, info_of
from sqlbuffer.mirror.making.steps_at import StepsAt, check_kept
from sqlbuffer.mirror.making.transition_plan import TransitionPlan
from sqlbuffer.mirror.making.transition_table import TransitionTable
from sqlbuffer.mirror.memory.block_map import NONE
from sqlbuffer.mirror.memory.episode_table import ABORTED
from sqlbuffer.mirror.memory.step_chains import MOST_AHEAD, chains
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import (
    EPISODE,
    LAST,
    LIVE,
    SEQ,
    TERMINATED,
    TOLD,
    TRUNCATED,
    as_float32,
)
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.episode_steps import with_zeros
from sqlbuffer.steps.n_step import n_step_returns
from sqlbuffer.storage.sampling.readers.transition_form import (
    ENDS_NOT_TOLD,
    NEXT,
    TransitionForm,
    no_successor,
    warn_of_single_steps,
)
from sqlbuffer.storage.sampling.readers.transitions import SEQUENCE

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class TransitionBatches(PlannedBatches[TransitionPlan]):
    """Makes transitions of steps in memory; see `ReplayBuffer.sample_transitions`.

    Args:
        memory: The steps.
        form: Fields and length of the transitions.
        observation: Layout of the bytes of final observations.
        buffer: The URL of the database and the id of the buffer.
    """

    def __init__(
        self,
        memory: StepMemory,
        form: TransitionForm,
        observation: Layout,
        buffer: tuple[str, int],
    ) -> None:
        super().__init__(memory)
        self._buffer = buffer
        self._singles, self._n_changes = np.zeros(0, np.int64), -1
        check_kept(memory, form.own)
        self._memory = memory
        self._form, self._observation = form, observation
        self._checks_ends = form.terminal_field is None and "done" in form.fields.specs
        self._table: TransitionTable | None = None
        if not (form.stack or form.sequence_fields or self._checks_ends):
            self._table = TransitionTable(memory, form.n_step, self._plan, self._n_at_once)

    def draw(self, chooser: Chooser, n: int, wanted: Flags | None = None) -> Batch:
        """Return n transitions, or fewer if fewer can be made.

        Args:
            chooser: Chooses their first steps.
            n: Number of transitions.
            wanted: True for slots whose step may be the first; None: all that may be drawn.
        """
        memory, table = self._memory, self._table
        if n:
            self._check_single(wanted)
        if table is not None and not memory.episodes.n_aborted:
            accepted = table.accepted(n)
            if accepted is not None:
                # As without the table: a seed draws the same steps either way.
                chosen = chooser.choose(memory, self.keys(wanted), n, accepted.__getitem__)
                return self._batch(table.plan(chosen.slots), chosen.columns)
        return super().draw(chooser, n, wanted)

    def accepted(self, slots: Integers, wanted: Flags | None = None) -> Flags:
        """Return of which slots a transition can be made that may be drawn; see `draw`."""
        self._check_single(wanted)
        return super().accepted(slots, wanted)

    def _check_single(self, wanted: Flags | None) -> None:
        """Raise if a step without an episode may be drawn and has no observation after it."""
        if self._form.has_next or self._form.skip_single:
            return
        memory, changed = self._memory, self._memory.changed
        if self._n_changes != changed.n:
            slots = changed.since(self._n_changes) if self._n_changes >= 0 else None
            if slots is None:
                slots, kept = np.arange(memory.blocks.n_used), self._singles[:0]
            else:
                kept = np.setdiff1d(self._singles, slots)
            new = slots[memory.links["episode"][slots] == NONE]
            self._singles, self._n_changes = np.union1d(kept, new), changed.n
        if len(self._singles):
            drawable = self._singles[self.keys(wanted)[self._singles]]
            if len(drawable):
                raise no_successor(int(memory.records[SEQ][drawable].max()))

    def _n_steps(self, slots: Integers) -> int:
        n = self._form.n_step + 1
        return (n if n <= LIKELY_STEPS else min(n, self._longest(slots))) + self._form.n_before

    def _taken(self, plan: TransitionPlan, at: Integers) -> TransitionPlan:
        return plan.taken(at)

    def _plan(self, slots: Integers) -> TransitionPlan:
        memory, form = self._memory, self._form
        steps, links = self._chains(slots)
        b, n = links.shape
        following, steps = steps[:, n], steps[:, :n]
        is_known = (steps != NONE) & ((links["flags"] & LIVE) != 0)
        flags = np.where(is_known, links["flags"], np.uint8(0))
        is_single = links["episode"][:, 0] == NONE
        if not is_known.all():
            steps = np.where(is_known, steps, NONE)
        first = links[:, 0]
        self._check_ends_are_told(flags[:, 0])
        terminated = (flags & TERMINATED) != 0
        if form.terminal_field is not None:
            own = self._gather(steps, [form.terminal_field])[form.terminal_field]
            terminated |= (own != 0) & (steps != NONE)
        ended = ((flags & (TRUNCATED | LAST)) != 0) | is_single[:, None]
        rewards = np.where(is_known, links["reward"], np.nan)
        returns = n_step_returns(rewards, terminated, ended, is_known, form.gamma)
        last = steps[np.arange(b), returns.m - 1]
        if form.has_next:
            after, is_final = last, np.zeros(b, bool)
        else:
            after = np.where(returns.ended, NONE, self._live(following))
            is_final = returns.ended & self._has_final(first, returns.m)
        is_zero = returns.terminated & ~is_final & (after == NONE) & (not form.has_next)
        accepted = returns.complete & (is_final | is_zero | (after != NONE))
        if form.skip_single or not form.has_next:
            accepted &= ~is_single
        frames = next_frames = np.zeros((b, 0), np.int64)
        if form.stack:
            frames = self._before(slots, form.n_before)
        if form.n_before:
            next_frames = self._before(last, form.n_before - 1)
            accepted &= (frames != NONE).all(axis=1)
            accepted &= is_zero | (next_frames != NONE).all(axis=1)
        episodes = memory.episodes
        if episodes.n_aborted:
            own = first["episode"]
            accepted &= (own == NONE) | (episodes.status.take(own, mode="clip") != ABORTED)
        if memory.has_barred:
            within = np.arange(n) < returns.m[:, None]
            needed = [np.where(within, steps, NONE), after[:, None], frames, next_frames]
            accepted &= ~StepsAt(memory, np.concatenate(needed, axis=1)).is_any_barred()
        truncated = (flags[np.arange(b), returns.m - 1] & TRUNCATED) != 0
        return TransitionPlan(
            slots, steps, truncated, returns, after, is_final, frames, next_frames, accepted
        )

    def _chains(self, slots: Integers) -> tuple[Integers, NDArray[Any]]:
        """Return the slots of steps and of the n steps after each, shape (b, n + 1), -1 where one
        is missing; and the links of all but the last, shape (b, n).

        If fewer steps follow each other, n is less: an episode that goes on has a missing step.
        """
        memory, b, n = self._memory, len(slots), self._form.n_step
        if n > MOST_AHEAD:
            steps = chains(memory, slots, n + 1)
            n = min(n, steps.shape[1] + 1)
            steps = np.pad(steps, ((0, 0), (0, n + 1 - steps.shape[1])), constant_values=NONE)
            steps[:, 0] = slots
            links = memory.gathered_links(np.maximum(steps[:, :n], 0).reshape(-1))
            return steps, links.reshape(b, n)
        # Mostly steps that follow each other are next to each other.
        steps = np.minimum(slots[:, None] + np.arange(n + 1), memory.n_slots - 1)
        links = memory.gathered_links(steps[:, :n].reshape(-1)).reshape(b, n)
        after = links["next"]
        is_next = after == steps[:, 1:]
        if is_next.all():
            return steps, links
        is_reached = np.logical_and.accumulate(is_next, axis=1)
        has_left = ~is_next & (after != NONE)
        has_left[:, 1:] &= is_reached[:, :-1]
        steps[:, 1:][~is_reached] = NONE
        elsewhere = np.flatnonzero(has_left.any(axis=1))
        if len(elsewhere):
            own = steps[elsewhere]
            for k in range(n):
                found = memory.gathered_links(np.maximum(own[:, k], 0))
                own[:, k + 1] = np.where(own[:, k] == NONE, NONE, found["next"])
                links[elsewhere, k] = found
            steps[elsewhere] = own
        return steps, links

    def _live(self, slots: Integers) -> Integers:
        """Return slots, -1 for those whose steps the buffer does not have."""
        flags = self._memory.gathered_links(np.maximum(slots, 0))["flags"]
        found: Integers = np.where((slots != NONE) & ((flags & LIVE) != 0), slots, NONE)
        return found

    def _has_final(self, first: NDArray[Any], m: Integers) -> Flags:
        episodes, own = self._memory.episodes, first["episode"]
        if not len(episodes.length):
            return np.zeros(len(own), bool)
        # Free slots that the follower of a shared mirror fills name episodes not known here yet.
        ends_there = (own != NONE) & (first["t"] + m == episodes.length.take(own, mode="clip"))
        found = np.zeros(len(own), bool)
        at = np.flatnonzero(ends_there)
        found[at] = [final is not None for final in episodes.finals.take(own[at], mode="clip")]
        return found

    def _before(self, slots: Integers, n: int) -> Integers:
        """Return slots and the n steps before them, the oldest first, shape (b, n + 1); before an
        episode's start its first step, -1 where one is missing.
        """
        found = np.empty((len(slots), n + 1), np.int64)
        found[:, n] = slots
        for i in range(n, 0, -1):
            own = found[:, i]
            links = self._memory.gathered_links(np.maximum(own, 0))
            before = np.where(links["t"] > 0, self._live(links["prev"].astype(np.int64)), own)
            found[:, i - 1] = np.where(own == NONE, NONE, before)
        return found

    def _check_ends_are_told(self, flags: NDArray[np.uint8]) -> None:
        if self._checks_ends and ((flags & (LIVE | TOLD)) == LIVE).any():
            raise FieldError(ENDS_NOT_TOLD)

    def _gather(self, slots: Integers, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return fields of fixed shape of steps, zeros at -1; shape (*slots.shape, *shape)."""
        return StepsAt(self._memory, slots).fields(names)

    def _batch(self, plan: TransitionPlan, columns: Columns) -> Batch:
        memory, form, returns = self._memory, self._form, plan.returns
        rows = memory.gathered(plan.slots)
        if form.n_step > 1 and form.has_next and (rows[EPISODE] == NONE).any():
            warn_of_single_steps(*self._buffer, form.n_step)
        plain = [name for name in form.own if name not in form.stack]
        arrays = fields_of(memory, plan.slots, rows, plain)
        if form.stack:
            arrays = self._with_stacks(plan, arrays)
        arrays["reward"] = as_float32(returns.reward)
        arrays["discount"] = as_float32(returns.discount)
        arrays["terminated"] = returns.terminated
        if form.with_truncated:
            arrays["truncated"] = plan.truncated
        arrays |= self._following(plan, rows)
        if form.sequence_fields:
            arrays |= self._sequences(plan)
        more = {"n_steps": returns.m}
        info = info_of(memory, rows, episode_info(memory, rows), lambda: more)
        return Batch({**arrays, **columns}, info)

    def _with_stacks(
        self, plan: TransitionPlan, plain: dict[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for name in self._form.own:
            k = self._form.stack.get(name)
            if k is not None:
                found[name] = self._gather(plan.frames[:, -k:], [name])[name]
            else:
                found |= {own: plain[own] for own in (name, f"{name}_lens") if own in plain}
        return found

    def _following(self, plan: TransitionPlan, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the observations after, `{next_<name>: array}`."""
        form, memory = self._form, self._memory
        prefix = NEXT if form.has_next else ""
        plain = [name for name in form.following if name not in form.stack]
        found = self._gather(plan.after, [prefix + name for name in plain])
        at, final = np.zeros(0, np.int64), dict[str, NDArray[Any]]()
        if np.count_nonzero(plan.is_final):
            at = np.flatnonzero(plan.is_final)
            finals = memory.episodes.finals[rows[EPISODE][at]].tolist()
            final = self._observation.unpack(finals, form.following)
        following = {}
        for name in form.following:
            k = form.stack.get(name)
            array = found[prefix + name] if k is None else self._next_stack(plan, name, k)
            if len(at):
                array[(at,) if k is None else (at, -1)] = final[name]
            following[NEXT + name] = array
        return following

    def _next_stack(self, plan: TransitionPlan, name: str, k: int) -> NDArray[Any]:
        """Return the frames up to the observations after; zeros for final observations."""
        slots = plan.next_frames[:, self._form.n_before + 1 - k :]
        # After a terminal step without an observation, every frame is zeros.
        is_zero = (plan.after == NONE) & ~plan.is_final
        slots = np.where(is_zero[:, None], NONE, slots)
        if not self._form.has_next:  # all of one field: each frame is copied once
            slots = np.concatenate([slots, plan.after[:, None]], axis=1)
            return self._gather(slots, [name])[name]
        newest = self._gather(plan.after, [NEXT + name])[NEXT + name]
        return np.concatenate([self._gather(slots, [name])[name], newest[:, None]], axis=1)

    def _sequences(self, plan: TransitionPlan) -> dict[str, NDArray[Any]]:
        """Return fields of each step, of shape (b, n_step, *shape), zeros behind the last."""
        within = np.arange(plan.steps.shape[1]) < plan.returns.m[:, None]
        slots = np.where(within, plan.steps, NONE)
        found = {}
        for name in self._form.sequence_fields:
            if name == "reward":
                rewards = self._memory.gathered_links(np.maximum(slots, 0).reshape(-1))["reward"]
                own = as_float32(np.where(within, rewards.reshape(slots.shape), 0.0))
            else:
                own = self._gather(slots, [name])[name]
            found[SEQUENCE + name] = with_zeros(own, self._form.n_step)
        return found
