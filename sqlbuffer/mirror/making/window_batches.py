"""Windows of steps from memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.mirror.choosing.chosen import Columns
from sqlbuffer.mirror.making.planned_batches import LIKELY_STEPS, PlannedBatches
from sqlbuffer.mirror.making.step_batches import episode_info, info_of
from sqlbuffer.mirror.making.steps_at import StepsAt
from sqlbuffer.mirror.memory.block_map import NONE
from sqlbuffer.mirror.memory.episode_table import ABORTED
from sqlbuffer.mirror.memory.slot_flags import SlotFlags
from sqlbuffer.mirror.memory.step_chains import chains
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import TERMINATED, TRUNCATED
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.sampling.readers.window_form import WindowForm

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class WindowPlan:
    """Windows before their fields are read.

    Attributes:
        slots: Slots of the steps that they are laid at, shape (b,).
        index: Slots of their steps, shape (b, n); -1 for a missing step. Here n is burn_in + length
            or, if fewer steps follow each other, less.
        burn_in: How many of them are before `slots`.
        frames: Slots of the frames of each, the oldest first, shape (b, n, k); k is 0 where none
            are stacked.
        accepted: Whether everything that is needed is there and may be sampled.
    """

    slots: Integers
    index: Integers
    burn_in: int
    frames: Integers
    accepted: Flags


class WindowBatches(PlannedBatches[WindowPlan]):
    """Makes windows of steps in memory; see `WindowReader`.

    Args:
        memory: The steps.
        form: Fields and length of the windows.
    """

    def __init__(self, memory: StepMemory, form: WindowForm) -> None:
        super().__init__(memory)
        self._form = form
        # With a stride above 1, windows start at few steps: draw from these only.
        self._keys = None if form.stride == 1 else SlotFlags(memory, self._is_key)

    def keys(self, wanted: Flags | None = None) -> Flags:
        """Return which slots a window may be laid at; see `PlannedBatches.keys`."""
        found = super().keys(wanted)
        return found if self._keys is None else found & self._keys.now()

    def _is_key(self, slots: Integers) -> Flags:
        ts = self.memory.gathered_links(slots)["t"]
        found: Flags = (ts >= 0) & (ts % self._form.stride == 0)
        return found

    def _n_steps(self, slots: Integers) -> int:
        n = self._form.n_before + self._form.length
        return (n if n <= LIKELY_STEPS else min(n, 2 * self._longest(slots))) * self._form.n_frames

    def _taken(self, plan: WindowPlan, at: Integers) -> WindowPlan:
        return WindowPlan(
            plan.slots[at], plan.index[at], plan.burn_in, plan.frames[at], plan.accepted[at]
        )

    def _plan(self, slots: Integers) -> WindowPlan:
        memory, form = self.memory, self._form
        first = memory.gathered_links(slots)
        n_older = form.n_frames - 1  # of the first step
        before = chains(memory, slots, form.n_before + 1, back=True)[:, :0:-1]
        burn_in = min(form.burn_in, before.shape[1])
        after = chains(memory, slots, form.length)
        # One more than there are: an episode that goes on has a missing step then.
        n_missing = min(1, form.length - after.shape[1])
        line = np.concatenate(
            [
                np.full((len(slots), burn_in + n_older - before.shape[1]), NONE),
                before,
                after,
                np.full((len(slots), n_missing), NONE),
            ],
            axis=1,
        )
        index = line[:, n_older:]
        frames = self._frames(line, first["t"].astype(np.int64), burn_in)
        usable = (index != NONE) & (frames != NONE).all(axis=2)
        ends_here = self._ends_here(index, first, burn_in)
        # A burn-in reaches back to the nearest hole, or to an end inside the episode.
        burnt = (usable & ~ends_here)[:, :burn_in]
        burnt = np.logical_and.accumulate(burnt[:, ::-1], axis=1)[:, ::-1]
        ended = np.logical_or.accumulate(ends_here[:, burn_in:], axis=1)
        wanted = np.ones_like(ended)
        wanted[:, 1:] = ~ended[:, :-1]
        accepted = (usable[:, burn_in:] | ~wanted).all(axis=1) & self._is_readable(first)
        is_within = np.concatenate([burnt, wanted], axis=1)
        index = np.where(is_within, index, NONE)
        frames = np.where(is_within[:, :, None], frames, NONE)
        if memory.has_barred:
            flat = frames.reshape(len(slots), frames.shape[1] * frames.shape[2])
            needed = np.concatenate([index, flat], axis=1)
            accepted &= ~StepsAt(memory, needed).is_any_barred()
        return WindowPlan(slots, index, burn_in, frames, accepted)

    def _is_readable(self, first: NDArray[Any]) -> Flags:
        own, episodes = first["episode"], self.memory.episodes
        if not len(episodes.status):
            return np.zeros(len(own), bool)
        found: Flags = (own != NONE) & (episodes.status[own] != ABORTED)
        return found

    def _ends_here(self, index: Integers, first: NDArray[Any], burn_in: int) -> Flags:
        """Return at which steps an episode ends, also within its steps."""
        lengths = self.memory.episodes.length
        flags = self.memory.gathered_links(np.maximum(index, 0).reshape(-1))["flags"]
        is_told = (flags.reshape(index.shape) & (TERMINATED | TRUNCATED)) != 0
        length = lengths[first["episode"]] if len(lengths) else np.full(len(first), NONE)
        offsets = np.arange(index.shape[1]) - burn_in
        is_last = first["t"][:, None] + offsets + 1 == length[:, None]
        found: Flags = (is_told & (index != NONE)) | is_last
        return found

    def _frames(self, line: Integers, ts: Integers, burn_in: int) -> Integers:
        """Return the slots of the frames of each step.

        Args:
            line: Slots of the steps: those of the oldest frames, the burn-in, the others.
            ts: Where the windows are laid.
            burn_in: Number of steps before that.
        """
        k = self._form.n_frames
        n = line.shape[1] - (k - 1)
        if k == 1:
            return np.zeros((len(ts), n, 0), np.int64)
        columns = np.arange(n)[:, None] + np.arange(k)
        # Before an episode's start its first step, again and again.
        first = (burn_in + k - 1 - ts)[:, None, None]
        columns = np.clip(np.maximum(columns, first), 0, line.shape[1] - 1)
        return np.take_along_axis(line[:, None, :], columns, axis=2)

    def _batch(self, plan: WindowPlan, columns: Columns) -> Batch:
        memory, form = self.memory, self._form
        plain = [name for name in form.names if name not in form.stack]
        steps = StepsAt(memory, plan.index)
        arrays = steps.fields(plain)
        for name, k in form.stack.items():
            frames = plan.frames[:, :, -k:] if form.n_frames > 1 else plan.index[:, :, None]
            arrays[name] = StepsAt(memory, frames).fields([name])[name]
        arrays |= steps.built_in(form.built_in)
        arrays["mask"] = plan.index != NONE
        arrays = form.padded(arrays, plan.burn_in)
        rows = memory.gathered(plan.slots)
        more = {"burn_in": np.full(len(rows), form.burn_in, np.int64)}
        info = info_of(memory, rows, episode_info(memory, rows), lambda: more)
        return Batch({**arrays, **columns}, info)
