"""Whole episodes from memory, padded to the longest of a batch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.mirror.choosing.chosen import Columns
from sqlbuffer.mirror.making.planned_batches import PlannedBatches
from sqlbuffer.mirror.making.step_batches import episode_info, info_of
from sqlbuffer.mirror.making.steps_at import StepsAt
from sqlbuffer.mirror.memory.block_map import NONE
from sqlbuffer.mirror.memory.episode_table import ABORTED, COMPLETE, STATUS_NAMES
from sqlbuffer.mirror.memory.slot_flags import SlotFlags
from sqlbuffer.mirror.memory.step_chains import chains
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import EPISODE, LIVE
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.sampling.readers.trajectory_form import FINAL_PREFIX, TrajectoryForm

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


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


class TrajectoryBatches(PlannedBatches[TrajectoryPlan]):
    """Makes padded batches of episodes in memory; see `TrajectoryReader`.

    Args:
        memory: The steps.
        form: Fields and shape of the trajectories.
        observation: Layout of the bytes of final observations.
    """

    def __init__(self, memory: StepMemory, form: TrajectoryForm, observation: Layout) -> None:
        super().__init__(memory)
        self._form, self._observation = form, observation
        self._heads = SlotFlags(memory, self._is_head, self._with_next)
        self._first: tuple[int, Flags] = -1, np.zeros(0, bool)

    def keys(self, wanted: Flags | None = None) -> Flags:
        """Return which slots have the first step of an episode; see `PlannedBatches.keys`."""
        return super().keys(wanted) & self._first_steps()

    def _first_steps(self) -> Flags:
        """Return which slots have the first step of an episode that the buffer still has."""
        heads = self._heads.now()
        if not self._form.include_partial:
            return heads
        n = self.memory.changed.n
        if self._first[0] != n:
            # An episode that has lost steps within has several heads.
            slots = np.flatnonzero(heads)
            links = self.memory.gathered_links(slots)
            order = np.lexsort((links["t"], links["episode"]))
            _, first = np.unique(links["episode"][order], return_index=True)
            found = np.zeros(len(heads), bool)
            found[slots[order[first]]] = True
            self._first = n, found
        return self._first[1]

    def _is_head(self, slots: Integers) -> Flags:
        memory = self.memory
        links = memory.gathered_links(slots)
        is_live = (links["flags"] & LIVE) != 0
        if not self._form.include_partial:
            found: Flags = is_live & (links["t"] == 0)
            return found
        before = links["prev"].astype(np.int64)
        flags = memory.gathered_links(np.maximum(before, 0))["flags"]
        follows = (before != NONE) & ((flags & LIVE) != 0)
        is_first: Flags = is_live & (links["t"] >= 0) & ~follows
        return is_first

    def _with_next(self, slots: Integers) -> Integers:
        after = self.memory.gathered_links(slots)["next"].astype(np.int64)
        return np.union1d(slots, after[after != NONE])

    def _n_steps(self, slots: Integers) -> int:
        return self._longest(slots)

    def _plan(self, slots: Integers) -> TrajectoryPlan:
        memory, form = self.memory, self._form
        steps = chains(memory, slots)
        lens = (steps != NONE).sum(axis=1)
        episodes, first = memory.episodes, memory.gathered_links(slots)
        own = first["episode"]
        if len(episodes.status):
            status, length = episodes.status[own], episodes.length[own]
        else:
            status, length = np.zeros(len(own), np.int8), np.full(len(own), NONE)
        is_known = (own != NONE) & (length != NONE)
        lens = np.where(is_known, np.minimum(lens, length - first["t"]), lens)
        reaches_end = is_known & (first["t"] + lens == length)
        steps = np.where(np.arange(steps.shape[1]) < lens[:, None], steps, NONE)
        accepted = (own != NONE) & (status != ABORTED)
        if not form.include_partial:
            accepted &= (status == COMPLETE) & reaches_end
        if memory.has_barred and steps.size:
            accepted &= ~StepsAt(memory, steps).is_any_barred()
        return TrajectoryPlan(slots, steps, lens, reaches_end, accepted)

    def _taken(self, plan: TrajectoryPlan, at: Integers) -> TrajectoryPlan:
        return TrajectoryPlan(
            plan.slots[at], plan.steps[at], plan.lens[at], plan.reaches_end[at], plan.accepted[at]
        )

    def _batch(self, plan: TrajectoryPlan, columns: Columns) -> Batch:
        memory, form = self.memory, self._form
        index = plan.steps[:, : int(plan.lens.max(initial=0))]
        steps = StepsAt(memory, index)
        arrays = steps.fields(form.names) | steps.built_in(form.built_in)
        arrays |= {"mask": index != NONE, "lens": plan.lens}
        rows = memory.gathered(plan.slots)
        arrays |= self._final(rows, plan.reaches_end)
        more = self._info(rows)
        info = info_of(memory, rows, episode_info(memory, rows), lambda: more)
        return Batch({**arrays, **columns}, info)

    def _final(self, rows: NDArray[Any], reaches_end: Flags) -> dict[str, NDArray[Any]]:
        """Return the final observations, zeros for missing ones, and flags of existing ones."""
        names = self._form.finals
        if not names:
            return {}
        finals = self.memory.episodes.finals
        # At -1 is any: no episode ends there.
        blobs = finals[rows[EPISODE]].tolist() if len(finals) else []
        ends = reaches_end.tolist()
        there = [i for i, blob in enumerate(blobs) if ends[i] and blob is not None]
        found = self._observation.unpack([blobs[i] for i in there], names)
        arrays: dict[str, NDArray[Any]] = {}
        for name, values in found.items():
            final = np.zeros((len(rows), *values.shape[1:]), values.dtype)
            final[there] = values
            arrays[FINAL_PREFIX + name] = final
        has_final = np.zeros(len(rows), bool)
        has_final[there] = True
        return {**arrays, "has_final": has_final}

    def _info(self, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        episodes, own = self.memory.episodes, rows[EPISODE]
        if not len(own):
            nothing = np.zeros(0)
            return {
                "status": nothing.astype(object), "length": nothing.astype(np.int64),
                "return": nothing, "episode_reward": nothing,
            }  # fmt: skip
        return {
            "status": STATUS_NAMES[episodes.status[own]],
            "length": episodes.length[own],
            "return": episodes.returns[own],
            "episode_reward": episodes.rewards[own],
        }
