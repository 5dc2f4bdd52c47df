"""Transitions from memory: steps with what follows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.mirror.block_map import NONE
from sqlbuffer.mirror.episode_table import ABORTED
from sqlbuffer.mirror.step_batches import fields_of, info_of
from sqlbuffer.mirror.step_memory import StepMemory
from sqlbuffer.mirror.step_record import (
    BARRED,
    EPISODE,
    LAST,
    LIVE,
    TERMINATED,
    TOLD,
    TRUNCATED,
    T,
    as_float32,
)
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.n_step import Returns, n_step_returns
from sqlbuffer.storage.sampling.readers.transition_form import ENDS_NOT_TOLD, NEXT, TransitionForm
from sqlbuffer.storage.sampling.readers.transitions import SEQUENCE

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TransitionPlan:
    """Transitions before their fields are read; the same words as in `Transitions`.

    Attributes:
        slots: Slots of first steps, shape (b,).
        steps: Slots of all steps, shape (b, n); -1 where one is missing.
        flags: Their flags.
        returns: Their returns.
        after: Slots of the steps that have the observations after; -1 without one.
        is_final: Whether it is the final observation of the episode.
        frames: Slots of the frames up to the first step, the oldest first, shape (b, k).
        next_frames: Slots of those before the observation after.
        accepted: Whether everything that is needed is there and may be sampled.
    """

    slots: Integers
    steps: Integers
    flags: NDArray[np.uint8]
    returns: Returns
    after: Integers
    is_final: Flags
    frames: Integers
    next_frames: Integers
    accepted: Flags


class TransitionBatches:
    """Makes transitions of steps in memory; see `ReplayBuffer.sample_transitions`.

    Args:
        memory: The steps.
        form: What the transitions are made of.
        observation: How the bytes of final observations are laid out.
    """

    def __init__(self, memory: StepMemory, form: TransitionForm, observation: Layout) -> None:
        self._memory, self._form, self._observation = memory, form, observation

    def accepts(self, slots: Integers) -> Flags:
        """Return which steps a transition can be made of."""
        return self._plan(slots).accepted

    def batch(self, slots: Integers) -> Batch:
        """Return the transitions of steps that are accepted."""
        return self._batch(self._plan(slots))

    def _plan(self, slots: Integers) -> TransitionPlan:
        memory, form = self._memory, self._form
        b, n = len(slots), form.n_step
        steps = np.empty((b, n + 1), np.int64)
        rewards, flags = np.empty((b, n)), np.empty((b, n), np.uint8)
        steps[:, 0] = slots
        first: Any = None
        for k in range(n):
            links = memory.gathered_links(np.maximum(steps[:, k], 0))
            first = links if first is None else first
            is_known = (steps[:, k] != NONE) & ((links["flags"] & LIVE) != 0)
            steps[:, k] = np.where(is_known, steps[:, k], NONE)
            rewards[:, k] = np.where(is_known, links["reward"], np.nan)
            flags[:, k] = np.where(is_known, links["flags"], 0)
            steps[:, k + 1] = np.where(is_known, links["next"], NONE)
        following, steps = steps[:, n], steps[:, :n]
        self._check_ends_are_told(flags[:, 0])
        terminated = (flags & TERMINATED) != 0
        if form.terminal_field is not None:
            own = self._gather(steps, [form.terminal_field])[form.terminal_field]
            terminated |= (own != 0) & (steps != NONE)
        ended = (flags & (TRUNCATED | LAST)) != 0
        returns = n_step_returns(rewards, terminated, ended, steps != NONE, form.gamma)
        last = steps[np.arange(b), returns.m - 1]
        if form.has_next:
            after, is_final = last, np.zeros(b, bool)
        else:
            after = np.where(returns.ended, NONE, self._live(following))
            is_final = returns.ended & self._has_final(first, returns.m)
        is_zero = returns.terminated & ~is_final & (after == NONE) & (not form.has_next)
        accepted = returns.complete & (is_final | is_zero | (after != NONE))
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
            accepted &= (own == NONE) | (episodes.status[own] != ABORTED)
        within = np.arange(n) < returns.m[:, None]
        if memory.has_barred:
            needed = [np.where(within, steps, NONE), after[:, None], frames, next_frames]
            accepted &= ~self._is_any_barred(np.concatenate(needed, axis=1))
        return TransitionPlan(
            slots, steps, flags, returns, after, is_final, frames, next_frames, accepted
        )

    def _live(self, slots: Integers) -> Integers:
        """Return slots, -1 for those whose steps the buffer does not have."""
        flags = self._memory.gathered_links(np.maximum(slots, 0))["flags"]
        found: Integers = np.where((slots != NONE) & ((flags & LIVE) != 0), slots, NONE)
        return found

    def _is_any_barred(self, slots: Integers) -> Flags:
        flags = self._memory.gathered_links(np.maximum(slots, 0).reshape(-1))["flags"]
        is_barred = ((flags & BARRED) != 0).reshape(slots.shape) & (slots != NONE)
        found: Flags = np.asarray(is_barred.any(axis=1))
        return found

    def _has_final(self, first: NDArray[Any], m: Integers) -> Flags:
        episodes, own = self._memory.episodes, first["episode"]
        if not len(episodes.length):
            return np.zeros(len(own), bool)
        ends_there = (own != NONE) & (first["t"] + m == episodes.length[own])
        found = np.zeros(len(own), bool)
        at = np.flatnonzero(ends_there)
        found[at] = [final is not None for final in episodes.finals[own[at]]]
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
        form = self._form
        if form.terminal_field is not None or "done" not in form.fields.specs:
            return
        if ((flags & (LIVE | TOLD)) == LIVE).any():
            raise FieldError(ENDS_NOT_TOLD)

    def _gather(self, slots: Integers, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return fields of fixed shape of steps, zeros at -1; shape (*slots.shape, *shape)."""
        memory, flat = self._memory, slots.reshape(-1)
        at = np.maximum(flat, 0)
        found = fields_of(memory, at, memory.gathered(at), names)
        is_missing = flat == NONE
        if is_missing.any():
            for array in found.values():
                array[is_missing] = np.zeros((), array.dtype)
        return {
            name: array.reshape(*slots.shape, *array.shape[1:]) for name, array in found.items()
        }

    def _batch(self, plan: TransitionPlan) -> Batch:
        memory, form, returns = self._memory, self._form, plan.returns
        rows = memory.gathered(plan.slots)
        plain = [name for name in form.own if name not in form.stack]
        arrays = fields_of(memory, plan.slots, rows, plain)
        if form.stack:
            arrays = self._with_stacks(plan, arrays)
        arrays["reward"] = as_float32(returns.reward)
        arrays["discount"] = as_float32(returns.discount)
        arrays["terminated"] = returns.terminated
        if form.with_truncated:
            last = np.arange(len(plan.slots)), returns.m - 1
            arrays["truncated"] = (plan.flags[last] & TRUNCATED) != 0
        arrays |= self._following(plan, rows)
        if form.sequence_fields:
            arrays |= self._sequences(plan)
        own = rows[EPISODE]
        keys = memory.episodes.keys
        info = {
            **info_of(memory, rows),
            "episode": keys.take(own, mode="clip") if len(keys) else np.full(len(own), None),
            "t": rows[T].astype(np.int64),
            "n_steps": returns.m,
        }
        info["episode"][own == NONE] = None
        return Batch(arrays, info)

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
        found = self._gather(plan.after, [prefix + name for name in form.following])
        at = np.flatnonzero(plan.is_final)
        final: dict[str, NDArray[Any]] = {}
        if len(at):
            finals = memory.episodes.finals[rows[EPISODE][at]].tolist()
            final = self._observation.unpack(finals, form.following)
        following = {}
        for name in form.following:
            array = found[prefix + name]
            if len(at):
                array[at] = final[name]
            k = form.stack.get(name)
            if k is not None:
                array = self._next_stack(plan, name, k, array)
            following[NEXT + name] = array
        return following

    def _next_stack(
        self, plan: TransitionPlan, name: str, k: int, newest: NDArray[Any]
    ) -> NDArray[Any]:
        slots = plan.next_frames[:, self._form.n_before + 1 - k :]
        # What follows a terminal step without an observation is zeros throughout.
        is_zero = (plan.after == NONE) & ~plan.is_final
        older = self._gather(np.where(is_zero[:, None], NONE, slots), [name])[name]
        return np.concatenate([older, newest[:, None]], axis=1)

    def _sequences(self, plan: TransitionPlan) -> dict[str, NDArray[Any]]:
        """Return fields of each step, of shape (b, n, *shape), zeros behind the last."""
        within = np.arange(self._form.n_step) < plan.returns.m[:, None]
        slots = np.where(within, plan.steps, NONE)
        found = {}
        for name in self._form.sequence_fields:
            if name == "reward":
                rewards = self._memory.gathered_links(np.maximum(slots, 0).reshape(-1))["reward"]
                own = as_float32(np.where(within, rewards.reshape(slots.shape), 0.0))
            else:
                own = self._gather(slots, [name])[name]
            found[SEQUENCE + name] = own
        return found
