"""Draw batches of a form by SQL: choose keys, read slices around them, and make the batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.forms import (
    NEXT,
    Form,
    StepForm,
    TrajectoryForm,
    TransitionForm,
    WindowForm,
    needs_values,
    no_successor,
    warn_of_single_steps,
)
from sqlbuffer.batches.makers import Maker, Plan, maker_of
from sqlbuffer.batches.step_table import NONE, Integers
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.steps import Batch
from sqlbuffer.storage.chunks.slices import ALL_STEPS, ANY_SIZE, Reach
from sqlbuffer.storage.rows.row_selection import IsKey
from sqlbuffer.storage.sampling.candidates import Candidates, RowStrategy
from sqlbuffer.storage.sampling.episode_candidates import EpisodePopulation
from sqlbuffer.storage.sampling.slice_table import SliceReading
from sqlbuffer.storage.schema.planner import unindexed

MAX_ROUNDS = 50
MOST_AT_ONCE = 65_536
MOST_GROWTH = 8
LARGE_STEP = 4_096  # bytes
# Maximum number of keys whose items are tested together, which bounds the memory.
TESTED_AT_ONCE, EPISODES_AT_ONCE = 4_096, 64


@dataclass(frozen=True)
class Items:
    """Items that can be made of keys.

    Attributes:
        numbers: The accepted keys, in the order of the batch.
        maker: Makes their batch.
        plan: The plan of all keys.
        accepted: Index of the accepted ones in the plan.
    """

    numbers: Integers
    maker: Maker[Any]
    plan: Plan
    accepted: Integers

    def batch(self, n: int | None = None) -> Batch:
        """Return the batch of the first n items."""
        return self.maker.batch(self.maker.taken(self.plan, self.accepted[:n]), {})


class FormReader:
    """Makes batches of one form of the steps that a sampler draws.

    Each item has a key: the seq of its first step; for windows, of the step at which they are
    placed.

    Args:
        form: The form.
        layout: The typed fields, as they are stored.
        observation: Layout of the bytes of final observations.

    Attributes:
        columns: What is read of each key; an argument of `BufferStore.draw`.
        tested_at_once: Maximum number of keys in a call of `made`.
        is_of_steps: Each step is an item.
    """

    def __init__(self, form: Form, layout: Layout, observation: Layout) -> None:
        self.form, self._layout, self._observation = form, layout, observation
        # Of large steps only those are read whose fields the batch has.
        skips = isinstance(form, TransitionForm) and form.needs_ends_alone
        reach = replace(
            _reach_of(form),
            has_values=needs_values(form),
            most_bytes=LARGE_STEP - 1 if skips else ANY_SIZE,
        )
        self._refuses_single = isinstance(form, TransitionForm) and not (
            form.has_next or form.skip_single
        )
        self.columns = SliceReading(
            reach,
            _is_key(form),
            finds_single=self._refuses_single,
            has_numbers=any(layout.specs[name].is_number for name in _fields_of(form, layout)),
        )
        self.is_of_steps = isinstance(form, StepForm)
        self.tested_at_once = (
            EPISODES_AT_ONCE if isinstance(form, TrajectoryForm) else TESTED_AT_ONCE
        )

    def draw(self, candidates: Candidates, sampler: RowStrategy, n: int) -> Batch:
        """Return n items drawn by a sampler, or fewer if too few can be made.

        A sampler that draws with replacement is called for the missing ones, round by round. One
        that draws without replacement would return the same keys again, so each call requests more,
        and its last result counts. Both are uniform over the accepted keys if the sampler is
        uniform over the keys.
        """
        candidates = self._population(candidates)
        adds_up = bool(getattr(sampler, "replace", False))
        most = MOST_AT_ONCE if adds_up else max(n, MOST_AT_ONCE)
        kept = np.zeros(0, np.int64)
        size, n_asked, n_accepted = min(n, most), 0, 0
        for n_round in range(MAX_ROUNDS if n > 0 else 0):
            n_probed = candidates.n_probed
            chosen = candidates.numbers(sampler.choose(candidates, size))
            items = self.items(candidates, chosen)
            if not n_round and len(items.numbers) >= n:
                return items.batch(n)
            accepted = items.numbers
            if n_round:
                accepted = _some(sampler, accepted, n - len(kept))
            kept = np.concatenate([kept, accepted]) if adds_up else accepted
            n_asked, n_accepted = n_asked + len(chosen), n_accepted + len(accepted)
            learnt_nothing = not n_accepted and candidates.n_probed == n_probed
            if len(kept) >= n or not chosen or learnt_nothing:
                break
            wanted = _size(n - len(kept) if adds_up else n, n_asked, n_accepted)
            larger = min(wanted, MOST_GROWTH * size, most)
            if not adds_up and (len(chosen) < size or larger <= size):
                break
            size = larger
        return self.items(candidates, kept[:n]).batch()

    def items(self, candidates: Candidates, chosen: Sequence[int] | Integers) -> Items:
        """Return the items that can be made of keys."""
        numbers = np.asarray(chosen, np.int64)
        if len(numbers):
            self._refuse_single(candidates)
        table, numbers = candidates.table(self._layout, numbers)
        maker: Maker[Any] = maker_of(table, self.form, self._observation)
        slots = table.slots_of(numbers)
        plan: Plan = maker.plan(slots)
        is_made = plan.accepted
        are_keys = maker.are_keys(slots)
        if are_keys is not None:
            is_made = is_made & are_keys
        accepted = np.flatnonzero(is_made)
        if isinstance(self.form, TransitionForm) and not self.form.needs_episodes:
            links = table.gathered_links(slots[accepted])
            if (links["episode"] == NONE).any():
                database = str(candidates.connection.engine.url)
                warn_of_single_steps(database, candidates.buffer_id, self.form.n_step)
        return Items(numbers[accepted], maker, plan, accepted)

    def read(self, candidates: Candidates, keys: Sequence[int] | Integers) -> Batch:
        """Return the items of the given keys, in their order.

        Keys are left out if they are not of this kind, cannot be made, or do not match.
        """
        return self.items(candidates, np.asarray(keys, np.int64)).batch()

    def made(self, candidates: Candidates, keys: Sequence[int] | Integers) -> Integers:
        """Return those of the keys that `read` would return; each is the key of a matching row."""
        if self.is_of_steps:
            return np.asarray(keys, np.int64)
        return self.items(candidates, np.asarray(keys, np.int64)).numbers

    def keys(self, candidates: Candidates) -> Integers | None:
        """Return every current key in ascending order, reading keys only.

        None means that any number of the window may be a key.
        """
        if isinstance(self.form, TrajectoryForm):
            return self._population(candidates).keys()
        return None

    def _population(self, candidates: Candidates) -> Candidates:
        """Return the candidates for keys: of trajectories there are fewer than steps."""
        if not isinstance(self.form, TrajectoryForm):
            return candidates
        return EpisodePopulation(candidates, self.columns, self.form.include_partial)

    def _refuse_single(self, candidates: Candidates) -> None:
        if self._refuses_single:
            single = candidates.step_without_episode
            if single is not None:
                raise no_successor(single)


def _fields_of(form: Form, layout: Layout) -> set[str]:
    """Return the declared fields that a batch is made of."""
    names: set[str | None] = {*form.names}
    if isinstance(form, TransitionForm):
        names |= {*form.following, *form.sequence_fields, form.terminal_field}
        names |= {NEXT + name for name in form.following}
    return {name for name in layout.specs if name in names}


def _reach_of(form: Form) -> Reach:
    if isinstance(form, StepForm):
        return Reach(is_alone=True)
    if isinstance(form, WindowForm):
        return Reach(-form.n_before, form.length - 1, form.stride)
    if isinstance(form, TrajectoryForm):
        # The step before shows if a key is the first one that is left.
        first, stride = (-1, 1) if form.include_partial else (0, ALL_STEPS)
        return Reach(first, ALL_STEPS, stride, ALL_STEPS if form.finals else -ALL_STEPS)
    if form.has_next:
        return Reach(-form.n_before, form.n_step - 1)
    return Reach(-form.n_before, form.n_step, final_within=form.n_step)


def _is_key(form: Form) -> IsKey | None:
    """Return what makes the condition for a step to be a key; None if every step is one."""
    if isinstance(form, WindowForm) and form.stride > 1:
        return _is_every(form.stride)
    if isinstance(form, TrajectoryForm):
        return _begins(form.include_partial)
    return None


# Without an index, which would keep SQLite from using that of the numbers. The same form has the
# same function, and so the same statements.
@lru_cache
def _is_every(stride: int) -> IsKey:
    return lambda steps: unindexed(steps.c.t) % stride == 0


@lru_cache
def _begins(include_partial: bool) -> IsKey:
    if include_partial:
        return lambda steps: unindexed(steps.c.t) >= 0
    return lambda steps: unindexed(steps.c.t) == 0


def _size(missing: int, n_asked: int, n_accepted: int) -> int:
    """Return the number of rows to request, by the share accepted so far."""
    return math.ceil(1.1 * missing * (n_asked + 1) / (n_accepted + 1)) + 8


def _some(sampler: RowStrategy, accepted: Integers, n: int) -> Integers:
    """Return n or more of the keys that were accepted in a later round, the ones to keep first.

    Strata are in the order of the rows, so the first ones would be the oldest.
    """
    generator: Callable[[], np.random.Generator] | None = getattr(sampler, "generator", None)
    if len(accepted) <= n or generator is None or not getattr(sampler, "stratified", False):
        return accepted
    order: NDArray[np.int64] = generator().permutation(len(accepted))
    return accepted[order]
