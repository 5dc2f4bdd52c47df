"""Whole episodes, padded to the longest of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, true

from sqlbuffer.encoding.columns import decode_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.episode_steps import EpisodeSteps
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.row_selection import (
    FINAL,
    KEY,
    RETURN,
    STATUS,
    Neighbours,
    RowSelection,
    ends,
    place_columns,
)
from sqlbuffer.storage.rows.statement_cache import remembered
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.episode_candidates import EpisodePopulation
from sqlbuffer.storage.sampling.readers.drawing import DrawPlan, Row, accepted_keys, draw_plan
from sqlbuffer.storage.sampling.readers.single_steps import (
    N_OWN,
    gather,
    places_of,
    step_arrays,
    steps_of,
)
from sqlbuffer.storage.sampling.readers.trajectory_form import FINAL_PREFIX, TrajectoryForm
from sqlbuffer.storage.sampling.strategy import RowStrategy
from sqlbuffer.storage.schema.planner import unindexed

_ALL_STEPS = 2**30
_OWN_REWARD = RETURN + 1

Integers = NDArray[np.int64]


@remembered
def _reading(include_partial: bool) -> RowSelection:
    columns = (*statements.COLUMNS, *place_columns(true()), ends.c.reward.label("own_reward"))
    # Without an index, which would keep SQLite from using that of the numbers.
    t = unindexed(experiences.c.t)
    # Not null where there is no episode: PostgreSQL would make an inner join of the outer one, and
    # read the steps again for each episode.
    status = func.coalesce(ends.c.status, "aborted")
    is_readable = status != "aborted" if include_partial else status == "complete"
    is_key = t >= 0 if include_partial else t == 0
    return RowSelection(
        columns, True, Neighbours(1, _ALL_STEPS), is_key, is_readable, has_blocks=True
    )


@dataclass(frozen=True)
class Trajectories(DrawPlan):
    """Episodes before their arrays are decoded.

    Attributes:
        table: The steps.
        first: Index of the first step of each.
        lens: Number of its consecutive steps from there on.
        reaches_end: The last of them is the last of the episode.
    """

    table: EpisodeSteps
    first: Integers
    lens: Integers
    reaches_end: NDArray[np.bool_]


class TrajectoryReader:
    """Makes padded batches of episodes; see `Reader`. Their key is the seq of their first step.

    The episodes are complete and have all their steps. With `include_partial` there are also
    episodes that are open or have lost steps, from their first remaining step to the next gap.
    Aborted episodes are never included. A condition applies to the first step.

    Args:
        fields: The typed fields.
        names: Names among these, `reward`, `terminated` and `truncated`; all by default.
        include_partial: Include episodes that are open or have lost steps.
        compression: Compression of the bytes of arrays.

    Attributes:
        form: Form of the trajectories.

    Raises:
        FieldError: An unknown field, or one with the name of a final observation.
    """

    tested_at_once = 64
    needs_episodes = True

    def __init__(
        self,
        fields: Fields,
        *,
        names: Sequence[str] | None = None,
        include_partial: bool = False,
        compression: str | None = None,
    ) -> None:
        self.form = TrajectoryForm.of(fields, names=names, include_partial=include_partial)
        observed = {name: fields.specs[name] for name in fields.observations}
        self._layout = Layout(fields.specs, compression)
        self._observation = Layout(observed, compression)
        self.columns = _reading(include_partial)

    def draw(self, candidates: Candidates, sampler: RowStrategy, n: int) -> Batch:
        """Return n episodes that a sampler draws, or fewer if there are too few."""
        episodes = self._episodes(candidates)
        return self._batch(draw_plan(episodes, sampler, n, lambda rows: self._plan(episodes, rows)))

    def read(self, candidates: Candidates, keys: Sequence[int] | Integers) -> Batch:
        """Return the episodes of the keys that can be read."""
        rows = candidates.rows(np.asarray(keys, np.int64).tolist())
        return self._batch(self._plan(candidates, rows))

    def made(self, candidates: Candidates, keys: Sequence[int] | Integers) -> Integers:
        """Return the keys of episodes that can be read."""
        rows = candidates.rows(np.asarray(keys, np.int64).tolist())
        return accepted_keys(rows, self._plan(candidates, rows).accepted)

    def keys(self, candidates: Candidates) -> Integers:
        """Return the key of each episode, some of which may have lost steps."""
        return self._episodes(candidates).keys()

    def _episodes(self, candidates: Candidates) -> EpisodePopulation:
        return EpisodePopulation(candidates, self.columns, self.form.include_partial)

    def _plan(self, candidates: Candidates, rows: Sequence[Row]) -> Trajectories:
        table = steps_of(candidates, rows)
        places, ts, lengths = places_of(rows)
        first = table.find(places, ts)
        lens = table.run_lengths(first)
        is_known = lengths >= 0
        lens = np.where(is_known, np.minimum(lens, lengths - ts), lens)
        reaches_end = is_known & (ts + lens == lengths)
        before = table.find(places, ts - 1) if self.form.include_partial else np.full(len(rows), -1)
        accepted = (places >= 0) & (before < 0) & (self.form.include_partial | reaches_end)
        accepted &= table.runs_are_eligible(first, lens)
        return Trajectories(rows, accepted, table, first, lens, reaches_end)

    def _batch(self, plan: Trajectories) -> Batch:
        chosen = np.flatnonzero(plan.accepted)
        rows = [plan.rows[i] for i in chosen.tolist()]
        lens = plan.lens[chosen]
        at = np.arange(int(lens.max()) if lens.size else 0)
        mask: NDArray[np.bool_] = at < lens[:, None]
        index = np.where(mask, plan.first[chosen][:, None] + at, -1)
        arrays = gather(plan.table, self._layout, index, self.form.names)
        arrays |= step_arrays(plan.table, index, self.form.built_in)
        arrays |= {"mask": mask, "lens": lens, **self._final(rows, plan.reaches_end[chosen])}
        return Batch(arrays, self._info(rows))

    def _final(
        self, rows: Sequence[Row], reaches_end: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        """Return the final observations, zeros if there is none, and flags of those that exist."""
        if not self.form.finals:
            return {}
        ends_at = reaches_end.tolist()
        blobs = [row[FINAL] if is_end else None for row, is_end in zip(rows, ends_at, strict=True)]
        no = np.zeros(len(rows), bool)
        table = EpisodeSteps(np.arange(len(rows)), no, no, no, no, blobs, no)
        index = table.with_arrays(np.arange(len(rows)))
        found = gather(table, self._observation, index, self.form.finals)
        return {
            **{FINAL_PREFIX + name: array for name, array in found.items()},
            "has_final": index >= 0,
        }

    def _info(self, rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
        _, ts, lengths = places_of(rows)
        first = decode_columns(self._layout, [row[:N_OWN] for row in rows], [])
        return {
            **first.info,
            "episode": np.array([row[KEY] for row in rows], object),
            "t": ts,
            "status": np.array([row[STATUS] for row in rows], object),
            "length": lengths,
            "return": np.array([row[RETURN] for row in rows], np.float64),
            "episode_reward": np.array([row[_OWN_REWARD] for row in rows], np.float64),
        }
