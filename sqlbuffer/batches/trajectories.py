"""Whole episodes, padded to the longest of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.forms import FINAL_PREFIX, TrajectoryForm
from sqlbuffer.batches.step_table import (
    ABORTED,
    COMPLETE,
    LIVE,
    NONE,
    STATUS_NAMES,
    Arrays,
    Flags,
    Integers,
    StepTable,
    chains,
    info_with,
    longest,
)
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.steps.batches import Batch


@dataclass(frozen=True)
class TrajectoryPlan:
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
        return Batch({**arrays, **columns}, info)

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
        given = self._observation.unpack([blobs[i] for i in there], names)
        arrays: Arrays = {}
        for name, values in given.items():
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
        return {
            "status": STATUS_NAMES[episodes.status[of]],
            "length": episodes.length[of],
            "return": episodes.returns[of],
            "episode_reward": episodes.rewards[of],
        }
