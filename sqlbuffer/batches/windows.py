"""Windows of steps of one length, and whole episodes, padded to the longest of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.forms import FINAL_PREFIX, TrajectoryForm, WindowForm
from sqlbuffer.batches.step_table import (
    ABORTED,
    COMPLETE,
    LIKELY_STEPS,
    LIVE,
    NONE,
    STATUS_NAMES,
    TERMINATED,
    TRUNCATED,
    Arrays,
    Flags,
    Integers,
    StepTable,
    chains,
    info_with,
    longest,
)
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.steps import Batch


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


class WindowMaker:
    """Makes windows. Their key is the first step to learn from.

    Windows are placed at the steps t of an episode that are multiples of `stride`. A window has
    `length` steps from there on, fewer if the episode ends. Before them it has up to `burn_in`
    steps, as far as they are stored without a gap. In an open episode all `length` steps must be
    stored. Aborted episodes have no windows.

    Args:
        table: The steps.
        form: Fields and length of the windows.

    Attributes:
        table: The steps.
        accepts_all: False: the neighbours of a key decide.
    """

    accepts_all = False

    def __init__(self, table: StepTable, form: WindowForm) -> None:
        self.table, self._form = table, form

    def are_keys(self, slots: Integers) -> Flags | None:
        """Return at which steps a window may be placed; see `Maker.are_keys`."""
        if self._form.stride == 1:
            return None
        ts = self.table.gathered_links(slots)["t"]
        are_keys: Flags = (ts >= 0) & (ts % self._form.stride == 0)
        return are_keys

    def n_steps(self, slots: Integers) -> int:
        """Return how many steps a window needs at most, with the frames of each."""
        n = self._form.n_before + self._form.length
        if n > LIKELY_STEPS:
            n = min(n, 2 * longest(self.table, slots))
        return n * self._form.n_frames

    def taken(self, plan: WindowPlan, index: Integers) -> WindowPlan:
        """Return a part of a plan."""
        return WindowPlan(
            plan.slots[index], plan.index[index], plan.burn_in, plan.frames[index],
            plan.accepted[index],
        )  # fmt: skip

    def plan(self, slots: Integers) -> WindowPlan:
        """Return the plan of the windows at some steps."""
        table, form = self.table, self._form
        first = table.gathered_links(slots)
        n_older = form.n_frames - 1  # of the first step
        before = chains(table, slots, form.n_before + 1, back=True)[:, :0:-1]
        burn_in = min(form.burn_in, before.shape[1])
        after = chains(table, slots, form.length)
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
        is_before_end = np.ones_like(ended)
        is_before_end[:, 1:] = ~ended[:, :-1]
        accepted = (usable[:, burn_in:] | ~is_before_end).all(axis=1) & self._is_readable(first)
        is_within = np.concatenate([burnt, is_before_end], axis=1)
        index = np.where(is_within, index, NONE)
        frames = np.where(is_within[:, :, None], frames, NONE)
        if table.has_barred:
            flat = frames.reshape(len(slots), frames.shape[1] * frames.shape[2])
            needed = np.concatenate([index, flat], axis=1)
            accepted &= ~table.at(needed).is_any_barred()
        return WindowPlan(slots, index, burn_in, frames, accepted)

    def _is_readable(self, first: NDArray[Any]) -> Flags:
        of, episodes = first["episode"], self.table.episodes
        if not len(episodes.status):
            return np.zeros(len(of), bool)
        is_readable: Flags = (of != NONE) & (episodes.status[of] != ABORTED)
        return is_readable

    def _ends_here(self, index: Integers, first: NDArray[Any], burn_in: int) -> Flags:
        """Return at which steps an episode ends, also within its steps."""
        lengths = self.table.episodes.length
        flags = self.table.gathered_links(np.maximum(index, 0).reshape(-1))["flags"]
        is_told = (flags.reshape(index.shape) & (TERMINATED | TRUNCATED)) != 0
        length = lengths[first["episode"]] if len(lengths) else np.full(len(first), NONE)
        offsets = np.arange(index.shape[1]) - burn_in
        is_last = first["t"][:, None] + offsets + 1 == length[:, None]
        ends_here: Flags = (is_told & (index != NONE)) | is_last
        return ends_here

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

    def batch(self, plan: WindowPlan, columns: Mapping[str, NDArray[Any] | None]) -> Batch:
        """Return the windows of a plan; see `Maker.batch`."""
        table, form = self.table, self._form
        plain = [name for name in form.names if name not in form.stack]
        steps = table.at(plan.index)
        arrays = steps.fields(plain)
        for name, k in form.stack.items():
            frames = plan.frames[:, :, -k:] if form.n_frames > 1 else plan.index[:, :, None]
            arrays |= table.at(frames).fields([name])
        arrays |= steps.built_in(form.built_in)
        arrays["mask"] = plan.index != NONE
        arrays = form.padded(arrays, plan.burn_in)
        burn_in = np.full(len(plan.slots), form.burn_in, np.int64)
        info = table.info_of(table.gathered(plan.slots), with_place=True)
        info = info_with(info, {"burn_in": burn_in})
        return Batch({**arrays, **columns}, info, form.structure)


class TrajectoryPlan(NamedTuple):
    """Episodes before their fields are read.

    Attributes:
        slots: Slots of their first steps, shape (b,).
        steps: Slots of their steps, shape (b, n); -1 behind the last.
        lens: Number of each, shape (b,).
        reaches_end: Whether the last of them is the last of the episode.
        accepted: Whether the episode can be read.
    """

    slots: Integers
    steps: Integers
    lens: Integers
    reaches_end: Flags
    accepted: Flags


class TrajectoryMaker:
    """Makes padded batches of episodes. Their key is their first step.

    The episodes are complete and have all their steps. With `include_partial` there are also
    episodes that are open or have lost steps, from their first remaining step to the next gap.
    Aborted episodes are never included.

    Args:
        table: The steps.
        form: Fields and shape of the trajectories.
        observation: Layout of the bytes of final observations.

    Attributes:
        table: The steps.
        accepts_all: False: the neighbours of a key decide.
    """

    accepts_all = False

    def __init__(self, table: StepTable, form: TrajectoryForm, observation: Layout) -> None:
        self.table, self._form, self._observation = table, form, observation

    def are_keys(self, slots: Integers) -> Flags:
        """Return which steps are the first of a run of their episode; see `Maker.are_keys`.

        An episode that has lost steps within has several such runs; its first one counts.
        """
        links = self.table.gathered_links(slots)
        is_live = (links["flags"] & LIVE) != 0
        if not self._form.include_partial:
            are_first: Flags = is_live & (links["t"] == 0)
            return are_first
        before = links["prev"].astype(np.int64)
        flags = self.table.gathered_links(np.maximum(before, 0))["flags"]
        follows = (before != NONE) & ((flags & LIVE) != 0)
        begin_runs: Flags = is_live & (links["t"] >= 0) & ~follows
        return begin_runs

    def n_steps(self, slots: Integers) -> int:
        """Return how many steps an episode has at most, as far as its end is known."""
        return longest(self.table, slots)

    def plan(self, slots: Integers) -> TrajectoryPlan:
        """Return the plan of the episodes that begin at some steps."""
        table, form = self.table, self._form
        steps = chains(table, slots)
        lens = (steps != NONE).sum(axis=1)
        episodes, first = table.episodes, table.gathered_links(slots)
        of = first["episode"]
        if len(episodes.status):
            status, length = episodes.status[of], episodes.length[of]
        else:
            status, length = np.zeros(len(of), np.int8), np.full(len(of), NONE)
        is_known = (of != NONE) & (length != NONE)
        lens = np.where(is_known, np.minimum(lens, length - first["t"]), lens)
        reaches_end = is_known & (first["t"] + lens == length)
        steps = np.where(np.arange(steps.shape[1]) < lens[:, None], steps, NONE)
        accepted = (of != NONE) & (status != ABORTED)
        if not form.include_partial:
            accepted &= (status == COMPLETE) & reaches_end
        if table.has_barred and steps.size:
            accepted &= ~table.at(steps).is_any_barred()
        return TrajectoryPlan(slots, steps, lens, reaches_end, accepted)

    def taken(self, plan: TrajectoryPlan, index: Integers) -> TrajectoryPlan:
        """Return a part of a plan."""
        return TrajectoryPlan(
            plan.slots[index], plan.steps[index], plan.lens[index], plan.reaches_end[index],
            plan.accepted[index],
        )  # fmt: skip

    def batch(self, plan: TrajectoryPlan, columns: Mapping[str, NDArray[Any] | None]) -> Batch:
        """Return the episodes of a plan; see `Maker.batch`."""
        table, form = self.table, self._form
        index = plan.steps[:, : int(plan.lens.max(initial=0))]
        steps = table.at(index)
        arrays = steps.fields(form.names) | steps.built_in(form.built_in)
        arrays |= {"mask": index != NONE, "lens": plan.lens}
        firsts = table.gathered(plan.slots)
        of = table.episodes_of(firsts)
        arrays |= self._final(of, plan.reaches_end)
        info = info_with(table.info_of(firsts, with_place=True), self._info(of))
        return Batch({**arrays, **columns}, info, form.structure)

    def _final(self, of: Integers, reaches_end: Flags) -> Arrays:
        """Return the final observations, zeros for missing ones, and flags of existing ones."""
        names = self._form.finals
        if not names:
            return {}
        finals = self.table.episodes.finals
        # At -1 is any: no episode ends there.
        blobs = finals[of].tolist() if len(finals) else []
        ends = reaches_end.tolist()
        there = [i for i, blob in enumerate(blobs) if ends[i] and blob is not None]
        observations = self._observation.unpack([blobs[i] for i in there], names)
        arrays: Arrays = {}
        for name, values in observations.items():
            final = np.zeros((len(of), *values.shape[1:]), values.dtype)
            final[there] = values
            arrays[FINAL_PREFIX + name] = final
        has_final = np.zeros(len(of), bool)
        has_final[there] = True
        return {**arrays, "has_final": has_final}

    def _info(self, of: Integers) -> Arrays:
        episodes = self.table.episodes
        if not len(of):
            nothing = np.zeros(0)
            return {
                "status": nothing.astype(object), "length": nothing.astype(np.int64),
                "return": nothing, "episode_reward": nothing,
            }  # fmt: skip
        returns, rewards = episodes.returns[of], episodes.rewards[of]
        return {
            "status": STATUS_NAMES[episodes.status[of]],
            "length": episodes.length[of],
            "return": returns,
            "episode_reward": np.where(np.isnan(rewards), returns, rewards),
        }
