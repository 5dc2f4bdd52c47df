"""Draw items by a sampler of rows, if only reading shows which rows have such items."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.rows.row_selection import SEQ
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.strategy import RowStrategy

MAX_ROUNDS = 50
MOST_AT_ONCE = 65_536
MOST_GROWTH = 8

Row = tuple[Any, ...]


@dataclass(frozen=True)
class DrawPlan:
    """The items that can be made of rows.

    Attributes:
        rows: The rows, in the order of the batch.
        accepted: Indexes of the rows that an item can be made of.
    """

    rows: Sequence[Row]
    accepted: NDArray[np.bool_]


P = TypeVar("P", bound=DrawPlan)


def draw_plan(
    candidates: Candidates,
    sampler: RowStrategy,
    n: int,
    plan: Callable[[Sequence[Row]], P],
) -> P:
    """Return the plan of n rows that items can be made of, in the order of a sampler.

    It has fewer rows if there are too few. A sampler that draws with replacement is called for the
    missing ones, round by round. One that draws without replacement would return the same rows
    again, so each call requests more, and its last result counts. Both are uniform over the
    accepted rows if the sampler is uniform over the rows.
    """
    adds_up = bool(getattr(sampler, "replace", False))
    most = MOST_AT_ONCE if adds_up else max(n, MOST_AT_ONCE)
    kept: list[Row] = []
    size, n_asked, n_accepted = min(n, most), 0, 0
    for n_round in range(MAX_ROUNDS if n > 0 else 0):
        n_probed = candidates.n_probed
        chosen = candidates.numbers(sampler.choose(candidates, size))
        found = plan(candidates.rows(chosen))
        accepted = [found.rows[i] for i in np.flatnonzero(found.accepted).tolist()]
        if not n_round and len(accepted) >= n:
            return _first(found, n)
        if n_round:
            accepted = _some(sampler, accepted, n - len(kept))
        kept = [*kept, *accepted] if adds_up else accepted
        n_asked, n_accepted = n_asked + len(chosen), n_accepted + len(accepted)
        learnt_nothing = not n_accepted and candidates.n_probed == n_probed
        if len(kept) >= n or not chosen or learnt_nothing:
            break
        wanted = _size(n - len(kept) if adds_up else n, n_asked, n_accepted)
        larger = min(wanted, MOST_GROWTH * size, most)
        if not adds_up and (len(chosen) < size or larger <= size):
            break
        size = larger
    return plan(kept[:n])


class PlanReader(Generic[P]):
    """Base of readers that must read a step to know if an item can be made of it."""

    tested_at_once = 4_096
    needs_episodes = True

    def draw(self, candidates: Candidates, sampler: RowStrategy, n: int) -> Batch:
        """Return n items made of steps that a sampler draws, or fewer if too few can be made.

        Raises:
            FieldError: A row cannot be read in the form of the reader.
        """
        return self._batch(
            draw_plan(candidates, sampler, n, lambda rows: self._plan(candidates, rows))
        )

    def read(self, candidates: Candidates, keys: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Return the items that can be made of the keys, in their order."""
        rows = candidates.rows(np.asarray(keys, np.int64).tolist())
        return self._batch(self._plan(candidates, rows))

    def made(
        self, candidates: Candidates, keys: Sequence[int] | NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the keys that an item can be made of."""
        rows = candidates.rows(np.asarray(keys, np.int64).tolist())
        return accepted_keys(rows, self._plan(candidates, rows).accepted)

    def keys(self, candidates: Candidates) -> None:
        """Return None: any number of the window may be a key."""

    def _plan(self, candidates: Candidates, rows: Sequence[Row]) -> P:
        raise NotImplementedError

    def _batch(self, plan: P) -> Batch:
        raise NotImplementedError


def accepted_keys(rows: Sequence[Row], accepted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the keys of the accepted rows."""
    return np.array([row[SEQ] for row in rows], np.int64)[accepted]


def _size(missing: int, n_asked: int, n_accepted: int) -> int:
    """Return the number of rows to request, by the share accepted so far."""
    return math.ceil(1.1 * missing * (n_asked + 1) / (n_accepted + 1)) + 8


def _some(sampler: RowStrategy, accepted: list[Row], n: int) -> list[Row]:
    """Return n or more of the rows that were accepted in a later round, the ones to keep first.

    Strata are in the order of the rows, so the first ones would be the oldest.
    """
    generator: Callable[[], np.random.Generator] | None = getattr(sampler, "generator", None)
    if len(accepted) <= n or generator is None or not getattr(sampler, "stratified", False):
        return accepted
    return [accepted[i] for i in generator().permutation(len(accepted)).tolist()]


def _first(plan: P, n: int) -> P:
    return replace(plan, accepted=plan.accepted & (np.cumsum(plan.accepted) <= n))
