"""Steps with their next steps: the transitions that off-policy learners train on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.columns import decode_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.episode_steps import EpisodeSteps, frame_times, with_zeros
from sqlbuffer.steps.n_step import Returns, n_step_returns
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.row_selection import (
    FINAL,
    KEY,
    TERMINATED,
    TRUNCATED,
    Neighbours,
    RowSelection,
    ends,
    is_near_end,
    place_columns,
)
from sqlbuffer.storage.rows.statement_cache import remembered
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.readers.drawing import DrawPlan, PlanReader, Row
from sqlbuffer.storage.sampling.readers.single_steps import (
    N_OWN,
    as_float32,
    gather,
    places_of,
    steps_of,
)
from sqlbuffer.storage.sampling.readers.transition_form import (
    ENDS_NOT_TOLD,
    NEXT,
    TransitionForm,
    no_successor,
    warn_of_single_steps,
)

SEQUENCE = "seq_"

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@remembered
def _reading(n_step: int, declared: bool, n_before: int, all_arrays: bool) -> RowSelection:
    """Return the columns and neighbours to read of a first step.

    Args:
        n_step: Number of steps in a transition.
        declared: The observations after steps are fields.
        n_before: Number of steps before it that are needed, with their arrays.
        all_arrays: The arrays of all its steps are needed.
    """

    def successor(step: Any) -> Any:
        return step.t == step.anchor_t + n_step

    def last(step: Any) -> Any:
        ends_here = step.terminated | step.truncated | (step.t + 1 == step.length)
        return (step.t + 1 == step.anchor_t + n_step) | ends_here

    final = None if declared else is_near_end(n_step)
    columns = (*statements.COLUMNS, *place_columns(final))
    first, end = -n_before if n_before else 1, n_step - 1 if declared else n_step
    arrays = None if n_before or all_arrays else last if declared else successor
    near = Neighbours(first, end, arrays) if first <= end else None
    is_readable = ends.c.status.is_distinct_from("aborted")
    return RowSelection(columns, True, near, is_readable=is_readable, has_blocks=True)


@dataclass(frozen=True)
class Transitions(DrawPlan):
    """Transitions before their arrays are decoded.

    Attributes:
        table: The steps.
        ts: Step of each first step in its episode.
        places: Number of its episode.
        steps: Index of each step, shape (b, n), -1 if it is missing. Here n is at most one more
            than the number of steps that follow each other.
        returns: Their returns.
        after: Index of the step that has the observation after each; -1 for the final observation
            of the episode, or zeros.
        is_final: True if it is the final observation.
        frames: Index of the steps before each first step and of itself, the oldest first.
        next_frames: Index of the steps before the step after.
    """

    table: EpisodeSteps
    ts: Integers
    places: Integers
    steps: Integers
    returns: Returns
    after: Integers
    is_final: Flags
    frames: Integers
    next_frames: Integers


class TransitionReader(PlanReader[Transitions]):
    """Makes transitions of first steps; see `Reader`.

    Args:
        form: Form of the transitions.
        compression: Compression of the bytes of arrays.
    """

    def __init__(self, form: TransitionForm, compression: str | None = None) -> None:
        self._form = form
        fields = form.fields
        observed = {name: fields.specs[name] for name in fields.observations}
        self._layout = Layout(fields.specs, compression)
        self._observation = Layout(observed, compression)
        self.needs_episodes = form.skip_single or not form.has_next
        self.columns = _reading(form.n_step, form.has_next, form.n_before, form.needs_all_fields)

    def _plan(self, candidates: Candidates, rows: Sequence[Row]) -> Transitions:
        self._check_ends_are_told(rows)
        if rows and not self._form.has_next and not self._form.skip_single:
            single = candidates.step_without_episode
            if single is not None:
                raise no_successor(single)
        table = steps_of(candidates, rows)
        places, ts, lengths = places_of(rows)
        # One more than there are: an episode that goes on has a missing step then.
        n = min(self._form.n_step, table.span + 1)
        steps = table.find(places[:, None], ts[:, None] + np.arange(n))
        returns = self._returns(table, steps, places, ts, lengths)
        after, is_final = self._after(table, rows, places, ts, lengths, steps, returns)
        is_zero = returns.terminated & ~is_final & (after < 0) & (not self._form.has_next)
        frames, next_frames = self._frames(table, places, ts, steps, returns)
        accepted = returns.complete & (is_final | is_zero | (after >= 0))
        if self.needs_episodes:
            accepted &= places >= 0
        elif (accepted & (places < 0)).any():
            database = str(candidates.connection.engine.url)
            warn_of_single_steps(database, candidates.buffer_id, self._form.n_step)
        if self._form.n_before:
            accepted &= (frames >= 0).all(axis=1) & (is_zero | (next_frames >= 0).all(axis=1))
        within = np.arange(n) < returns.m[:, None]
        if candidates.limits:
            needed = [np.where(within, steps, -1), after[:, None], frames, next_frames]
            accepted &= table.are_eligible(np.concatenate(needed, axis=1))
        if self._form.needs_all_fields:
            accepted &= ((table.with_arrays(steps) >= 0) | ~within).all(axis=1)
        return Transitions(
            rows, accepted, table, ts, places, steps, returns, after, is_final, frames, next_frames
        )

    def _returns(
        self,
        table: EpisodeSteps,
        steps: Integers,
        places: Integers,
        ts: Integers,
        lengths: Integers,
    ) -> Returns:
        terminated = table.flags(table.terminated, steps)
        if self._form.terminal_field is not None:
            found = gather(
                table, self._layout, table.with_arrays(steps), [self._form.terminal_field]
            )
            terminated = terminated | (found[self._form.terminal_field] != 0)
        is_past = ts[:, None] + np.arange(1, steps.shape[1] + 1) >= lengths[:, None]
        ended = table.flags(table.truncated, steps) | (is_past & (lengths >= 0)[:, None])
        ended |= places[:, None] < 0  # a step without an episode is one of its own
        return n_step_returns(table.rewards(steps), terminated, ended, steps >= 0, self._form.gamma)

    def _after(
        self,
        table: EpisodeSteps,
        rows: Sequence[Row],
        places: Integers,
        ts: Integers,
        lengths: Integers,
        steps: Integers,
        returns: Returns,
    ) -> tuple[Integers, Flags]:
        """Return the observations after: the index of a step, or -1, and True for a final one."""
        if self._form.has_next:
            last = table.with_arrays(steps[np.arange(len(rows)), returns.m - 1])
            return last, np.zeros(len(rows), bool)
        has_final = np.array([row[FINAL] is not None for row in rows], bool)
        is_final = returns.ended & has_final & (ts + returns.m == lengths)
        following = table.with_arrays(table.find(places, ts + self._form.n_step))
        return np.where(returns.ended, -1, following), is_final

    def _frames(
        self, table: EpisodeSteps, places: Integers, ts: Integers, steps: Integers, returns: Returns
    ) -> tuple[Integers, Integers]:
        """Return the indexes of `Transitions.frames` and `next_frames`."""
        if not self._form.n_before:
            return table.with_arrays(steps[:, :1]), np.empty((len(ts), 0), np.int64)
        times = frame_times(ts, self._form.n_before + 1)
        after = frame_times(ts + returns.m, self._form.n_before + 1)[:, :-1]
        frames, next_frames = (table.find(places[:, None], each) for each in (times, after))
        return table.with_arrays(frames), table.with_arrays(next_frames)

    def _check_ends_are_told(self, rows: Sequence[Row]) -> None:
        if self._form.terminal_field is not None or "done" not in self._form.fields.specs:
            return
        if any(row[TERMINATED] is None and row[TRUNCATED] is None for row in rows):
            raise FieldError(ENDS_NOT_TOLD)

    def _batch(self, plan: Transitions) -> Batch:
        chosen = np.flatnonzero(plan.accepted)
        rows = [plan.rows[i] for i in chosen.tolist()]
        plain = [name for name in self._form.own if name not in self._form.stack]
        first = gather(plan.table, self._layout, plan.steps[chosen, 0], plain)
        origin = decode_columns(self._layout, [row[:N_OWN] for row in rows], [])
        stacked = self._stacked(plan, chosen)
        returns, m = plan.returns, plan.returns.m[chosen]
        arrays: dict[str, NDArray[Any]] = {}
        for name in self._form.own:
            arrays |= {name: stacked[name]} if name in stacked else _with_lens(first, name)
        arrays["reward"] = as_float32(returns.reward[chosen])
        arrays["discount"] = as_float32(returns.discount[chosen])
        arrays["terminated"] = returns.terminated[chosen]
        last = plan.steps[chosen, m - 1]
        if self._form.with_truncated:
            arrays["truncated"] = plan.table.flags(plan.table.truncated, last)
        arrays |= self._following(plan, chosen) | self._sequenced(plan, chosen)
        info = {
            **origin.info,
            "episode": np.array([row[KEY] for row in rows], object),
            "t": np.where(plan.places[chosen] < 0, -1, plan.ts[chosen]),
            "n_steps": m,
        }
        return Batch(arrays, info)

    def _stacked(self, plan: Transitions, chosen: Integers) -> dict[str, NDArray[Any]]:
        return {
            name: gather(plan.table, self._layout, plan.frames[chosen, -k:], [name])[name]
            for name, k in self._form.stack.items()
            if name in self._form.own
        }

    def _following(self, plan: Transitions, chosen: Integers) -> dict[str, NDArray[Any]]:
        """Return the observations after, `{next_<name>: array}`."""
        prefix = NEXT if self._form.has_next else ""
        after, is_final = plan.after[chosen], plan.is_final[chosen]
        found = gather(
            plan.table, self._layout, after, [prefix + name for name in self._form.following]
        )
        finals: list[Any] = [plan.rows[i][FINAL] for i in chosen[is_final].tolist()]
        final = self._observation.unpack(finals, self._form.following) if finals else {}
        following = {}
        for name in self._form.following:
            array = found[prefix + name]
            if finals:
                array[is_final] = final[name]
            k = self._form.stack.get(name)
            if k is not None:
                array = self._next_stack(plan, chosen, name, k, array)
            following[NEXT + name] = array
        return following

    def _next_stack(
        self, plan: Transitions, chosen: Integers, name: str, k: int, newest: NDArray[Any]
    ) -> NDArray[Any]:
        index = plan.next_frames[chosen, self._form.n_before + 1 - k :]
        # Zeros follow a terminal step without an observation.
        is_zero = (plan.after[chosen] < 0) & ~plan.is_final[chosen]
        index = np.where(is_zero[:, None], -1, index)
        older = gather(plan.table, self._layout, index, [name])[name]
        return np.concatenate([older, newest[:, None]], axis=1)

    def _sequenced(self, plan: Transitions, chosen: Integers) -> dict[str, NDArray[Any]]:
        """Return fields of each step, of shape (b, n_step, *shape), zeros after the last."""
        within = np.arange(plan.steps.shape[1]) < plan.returns.m[chosen][:, None]
        index = np.where(within, plan.steps[chosen], -1)
        found = {}
        for name in self._form.sequence_fields:
            if name == "reward":
                own = as_float32(np.where(within, plan.table.rewards(index), 0.0))
            else:
                own = gather(plan.table, self._layout, index, [name])[name]
            found[SEQUENCE + name] = with_zeros(own, self._form.n_step)
        return found


def _with_lens(found: dict[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    return {each: found[each] for each in (name, f"{name}_lens") if each in found}
