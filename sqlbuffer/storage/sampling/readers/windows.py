"""Windows of fixed length over episodes, with steps before them to warm up a recurrent state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.columns import decode_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.episode_steps import EpisodeSteps, frame_times
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.row_selection import KEY, Neighbours, RowSelection, ends, place_columns
from sqlbuffer.storage.rows.statement_cache import remembered
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.readers.drawing import DrawPlan, PlanReader, Row
from sqlbuffer.storage.sampling.readers.single_steps import (
    N_OWN,
    gather,
    places_of,
    step_arrays,
    steps_of,
)
from sqlbuffer.storage.sampling.readers.window_form import WindowForm
from sqlbuffer.storage.schema.planner import unindexed

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@remembered
def _reading(length: int, n_before: int, stride: int) -> RowSelection:
    # Without an index, which would keep SQLite from using that of the numbers.
    is_key = unindexed(experiences.c.t) % stride == 0
    near = Neighbours(-n_before, length - 1) if n_before or length > 1 else None
    is_readable = ends.c.status != "aborted"
    return RowSelection(
        (*statements.COLUMNS, *place_columns()), True, near, is_key, is_readable, has_blocks=True
    )


@dataclass(frozen=True)
class Windows(DrawPlan):
    """Windows before their arrays are decoded.

    Attributes:
        table: The steps.
        places: Number of the episode of each.
        ts: Step in the episode at which it is placed.
        index: Index of each step, of shape (b, n); -1 if there is none. Here n is burn_in + length
            or, if fewer steps follow each other, less.
    """

    table: EpisodeSteps
    places: Integers
    ts: Integers
    index: Integers


class WindowReader(PlanReader[Windows]):
    """Makes windows of steps; see `Reader`. Their key is the seq of the first step to learn from.

    Windows are placed at the steps t of an episode that are multiples of `stride`. A window has
    `length` steps from there on, fewer if the episode ends. Before them it has up to `burn_in`
    steps, as far as they are stored without a gap. In an open episode all `length` steps must be
    stored. Aborted episodes have no windows.

    Args:
        fields: The typed fields.
        length: Steps to learn from.
        burn_in: Steps before them.
        stride: Distance in steps between two windows of an episode.
        names: Names among the fields, `reward`, `terminated` and `truncated`; all by default.
        stack: Number of stacked frames, by field.
        compression: Compression of the bytes of arrays.

    Attributes:
        form: Form of the windows.

    Raises:
        FieldError: An unknown field.
        ValueError: A length or stride below 1, or a burn-in below 0.
    """

    def __init__(
        self,
        fields: Fields,
        length: int,
        burn_in: int = 0,
        stride: int = 1,
        *,
        names: Sequence[str] | None = None,
        stack: Mapping[str, int] | None = None,
        compression: str | None = None,
    ) -> None:
        form = WindowForm.of(fields, length, burn_in, stride, names=names, stack=stack)
        self.form, self._layout = form, Layout(fields.specs, compression)
        self.columns = _reading(form.length, form.n_before, form.stride)

    def _plan(self, candidates: Candidates, rows: Sequence[Row]) -> Windows:
        table = steps_of(candidates, rows)
        places, ts, lengths = places_of(rows)
        offsets = self._offsets(table)
        burn_in = int(-offsets[0])
        index = table.find(places[:, None], ts[:, None] + offsets)
        ends_here = table.flags(table.terminated | table.truncated, index) | (
            ts[:, None] + offsets + 1 == lengths[:, None]
        )
        usable = (index >= 0) & self._has_frames(table, places, ts[:, None] + offsets)
        learnt = usable[:, burn_in:]
        # A burn-in reaches back to the nearest gap, or to an end inside the episode.
        before: Flags = (usable & ~ends_here)[:, :burn_in]
        before &= _up_to_first(~before[:, ::-1])[:, ::-1]
        wanted = _up_to_first(ends_here[:, burn_in:])
        accepted = (places >= 0) & (learnt | ~wanted).all(axis=1)
        index = np.where(np.concatenate([before, wanted], axis=1), index, -1)
        accepted &= table.are_eligible(index) & self._frames_are_free(table, places, ts, index)
        return Windows(rows, accepted, table, places, ts, index)

    def _offsets(self, table: EpisodeSteps) -> Integers:
        """Return the places of the steps that a window can have, relative to its key."""
        # One more than there are: an episode that goes on has a missing step then.
        length = min(self.form.length, table.span + 1)
        return np.arange(-min(self.form.burn_in, table.span), length)

    def _has_frames(self, table: EpisodeSteps, places: Integers, ts: Integers) -> Flags:
        if self.form.n_frames == 1:
            return np.ones(ts.shape, bool)
        frames = table.find(places[:, None, None], frame_times(ts, self.form.n_frames))
        found: Flags = np.asarray((frames >= 0).all(axis=-1))
        return found

    def _frames_are_free(
        self, table: EpisodeSteps, places: Integers, ts: Integers, index: Integers
    ) -> Flags:
        if self.form.n_frames == 1:
            return np.ones(len(ts), bool)
        times = frame_times(ts[:, None] + self._offsets(table), self.form.n_frames)
        frames = table.find(places[:, None, None], times)
        return table.are_eligible(np.where((index >= 0)[..., None], frames, -1))

    def _batch(self, plan: Windows) -> Batch:
        chosen = np.flatnonzero(plan.accepted)
        rows = [plan.rows[i] for i in chosen.tolist()]
        index = plan.index[chosen]
        plain = [name for name in self.form.names if name not in self.form.stack]
        arrays = gather(plan.table, self._layout, index, plain)
        arrays |= self._stacked(plan, chosen, index)
        arrays |= step_arrays(plan.table, index, self.form.built_in)
        arrays["mask"] = index >= 0
        arrays = self.form.padded(arrays, int(-self._offsets(plan.table)[0]))
        first = decode_columns(self._layout, [row[:N_OWN] for row in rows], [])
        info = {
            **first.info,
            "episode": np.array([row[KEY] for row in rows], object),
            "t": plan.ts[chosen],
            "burn_in": np.full(len(rows), self.form.burn_in, np.int64),
        }
        return Batch(arrays, info)

    def _stacked(self, plan: Windows, chosen: Integers, index: Integers) -> dict[str, NDArray[Any]]:
        ts = plan.ts[chosen][:, None] + self._offsets(plan.table)
        found = {}
        for name, k in self.form.stack.items():
            frames = plan.table.find(plan.places[chosen][:, None, None], frame_times(ts, k))
            frames = np.where((index >= 0)[..., None], frames, -1)
            found[name] = gather(plan.table, self._layout, frames, [name])[name]
        return found


def _up_to_first(flags: Flags) -> Flags:
    """Return True for the places of each row up to its first flag."""
    found: Flags = np.cumsum(flags, axis=1) - flags == 0
    return found
