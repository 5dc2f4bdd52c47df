"""Draw batches of a form by SQL: choose keys, read slices around them, and make the batch.

The keys are steps, or the first steps of episodes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Integer, Select, bindparam, column, func, literal, select, true

from sqlbuffer.batches.forms import (
    Form,
    StepForm,
    TrajectoryForm,
    TransitionForm,
    WindowForm,
    needs_values,
    no_successor,
    warn_of_single_steps,
)
from sqlbuffer.batches.hindsight import Rng, rng_of
from sqlbuffer.batches.makers import Maker, Plan, maker_of
from sqlbuffer.batches.step_table import NONE, Integers
from sqlbuffer.batches.transitions import with_goals
from sqlbuffer.checks import checked_count, checked_flag
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.spaces import NEXT
from sqlbuffer.steps import Batch
from sqlbuffer.storage.chunks.slices import ALL_STEPS, ANY_SIZE, Reach
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.eligibility import Eligibility
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.rows.statements import BUFFER_ID, LOW, IsKey, remembered
from sqlbuffer.storage.sampling.candidates import Candidates, RowStrategy, check_pick
from sqlbuffer.storage.sampling.slice_table import SliceReading
from sqlbuffer.storage.schema.expressions import (
    SeqList,
    n_seqs,
    numbers_in,
    seq_at,
    seqs_of,
    unindexed,
)

# If a window has at most this many numbers, ranking the keys of its episodes costs less than a
# second probe.
FEW_KEYS_SPAN = 32_768
# For longer episodes than this, fewer numbers are keys than a sampler probes for.
LONG_EPISODE = 32
FEW_EPISODES = 16
MOST_PICKED = 65_536
MOST_SEQ = 2**63 - 1
NUMBERS, ELIGIBLE_LOW = "numbers", "eligible_low"
Picked = dict[int, tuple[int, int]]
FRACTION_BITS = 40  # multiplied by the number of episodes, it stays below 2**63


class EpisodePopulation(Candidates):
    """The episodes of a buffer whose first step matches a condition.

    It has the methods of `Candidates`.

    Args:
        rows: The rows of the buffer.
        reading: Columns to read of a first step.
        include_partial: Include episodes that are open or have lost steps; their key is the seq of
            the first step that they still have.
    """

    def __init__(self, rows: Candidates, reading: SliceReading, include_partial: bool) -> None:
        super().__init__(
            rows.connection,
            rows.buffer_id,
            rows.window_low,
            rows.high,
            rows.node,
            reading,
            rows.limits,
            # The first remaining step of a partial episode may be ineligible although a later one
            # is eligible.
            0 if include_partial else rows.low,
            rows.steps,
        )
        self._partial = include_partial
        self._picked: set[int] = set()
        self._priorities = rows._priorities
        self.has_labels, self.has_deleted = rows.has_labels, rows.has_deleted
        self.may_replace = rows.may_replace

    @cached_property
    def picks_first(self) -> bool:
        """True if `pick` costs less than `probe`, because few of the numbers are keys."""
        if self.span <= FEW_KEYS_SPAN:
            return True
        parameters = {BUFFER_ID: self.buffer_id, LOW: self.window_low}
        ((first, last, n),) = fetch(self.connection, _newest_ends(), parameters)
        return bool(n > 1 and last - first > LONG_EPISODE * (n - 1))

    @property
    def is_filtered(self) -> bool:
        """True if episodes may not match."""
        return self.has_condition

    @property
    def picks_keys(self) -> bool:
        """True if `keys` finds few keys, because there are fewer episodes than rows."""
        return True

    def select(self) -> Select[Any]:
        """Return a SQLAlchemy select of the keys, named `seq`."""
        return select(self._keys.c.key.label("seq"))

    @property
    def _keys(self) -> Any:
        bounds = (literal(n, BigInteger()) for n in (self.buffer_id, self.window_low, self.low))
        return _EpisodeKeys(self._partial, self.node, self.limits, self.steps, *bounds).table

    def keys(self) -> NDArray[np.int64]:
        """Return the key of each episode in ascending order; reads all keys."""
        self.has_read_keys = True
        keys = self._keys
        keys_in_order = self.connection.execute(select(keys.c.key).order_by(keys.c.key)).scalars()
        return np.fromiter(keys_in_order, np.int64)

    def pick(self, rng: np.random.Generator, n: int, *, replace: bool) -> list[int] | None:
        """Return n keys, uniform over all; None if there may be fewer different ones.

        It ranks the keys with integers, so that both databases pick the same.
        """
        check_pick(rng, n, replace)
        if n > MOST_PICKED:
            return None
        numbers = (rng.random(n if replace else _overdrawn(n)) * 2.0**FRACTION_BITS).astype(
            np.int64
        )
        ranked = self._pick(_ranked, n, {NUMBERS: numbers.tolist()})
        if not ranked:
            return []
        (_, total), *_ = ranked.values()
        key_of = {rank: key for key, (rank, _) in ranked.items()}
        ranks = (numbers * total >> FRACTION_BITS).tolist()
        keys = [key_of[rank] for rank in ranks if rank in key_of]
        if replace:
            return keys
        distinct = list(dict.fromkeys(keys))
        return distinct if len(distinct) == n else None

    def random(self, n: int) -> list[int]:
        """Return up to n keys in uniform random order; reads all keys."""
        n = checked_count(n, "n")
        rng = np.random.default_rng()
        picked = self.pick(rng, n, replace=False)
        if picked is not None:
            return picked
        keys = self.keys()
        chosen: list[int] = rng.choice(keys, min(n, keys.size), replace=False).tolist()
        return chosen

    def newest(self, n: int) -> list[int]:
        """Return up to n keys, newest first."""
        return sorted(self._pick(_newest, checked_count(n, "n")), reverse=True)

    def oldest(self, n: int) -> list[int]:
        """Return up to n keys, oldest first."""
        return sorted(self._pick(_oldest, checked_count(n, "n")))

    def page(self, offset: int, limit: int, *, newest: bool = False) -> list[int]:
        """Return up to `limit` keys, oldest first, after the first `offset`; reads all keys."""
        offset, limit = checked_count(offset, "offset"), checked_count(limit, "limit")
        keys = self.keys()[::-1] if checked_flag(newest, "newest") else self.keys()
        page: list[int] = keys[offset : offset + limit].tolist()
        return page

    def _pick(
        self,
        picks: Callable[[Any, int], Select[Any]],
        n: int,
        numbers: Mapping[str, Any] | None = None,
    ) -> Picked:
        """Return {key: (rank, n)} of the episodes that a select made by `picks` has."""
        parameters = {BUFFER_ID: self.buffer_id, LOW: self.window_low, **(numbers or {})}
        parameters |= {ELIGIBLE_LOW: self.low}
        # Values of a condition or of limits are in the statement, so it is not kept.
        make = _picking if self.has_condition else _kept_picking
        statement = make(self.node, self.limits, self._partial, picks, n, self.steps)
        rows = fetch(self.connection, statement, parameters)
        picked = {key: (rank, n) for key, rank, n in rows}
        self._picked.update(picked)
        return picked

    @property
    def n_probed(self) -> int:
        """Number of keys that were looked up or picked."""
        return len(self._probed | self._picked)


class _EpisodeKeys:
    """The keys of the episodes that may be read.

    Args:
        include_partial: See `EpisodePopulation`.
        node: Condition on their first steps.
        limits: Limits on their first steps.
        steps: How their steps are stored.
        buffer_id: The buffer, an expression.
        low: The lower end of the window.
        eligible_low: Number up to which no step is eligible.
    """

    def __init__(
        self,
        include_partial: bool,
        node: Node,
        limits: Eligibility,
        steps: StepLayout,
        buffer_id: Any,
        low: Any,
        eligible_low: Any,
    ) -> None:
        self._partial, self._node, self._limits = include_partial, node, limits
        self._steps = steps
        self._buffer_id, self._low, self._eligible_low = buffer_id, low, eligible_low

    @property
    def table(self) -> Any:
        """The table of the keys, with the column `key`."""
        first: Any = episodes.c.first_seq
        if self._partial:
            first = self._steps.first_left(self._buffer_id, episodes.c.id, self._low)
        keys = select(first.label("key")).where(
            episodes.c.buffer_id == self._buffer_id, *self._eligible()
        )
        if self._partial:
            # The offset keeps SQLite from searching for a step again at each use of the key.
            left = keys.offset(0).subquery("left")
            keys = select(left.c.key).where(left.c.key.is_not(None))
        table = keys.subquery("keys")
        if self._node == EVERYTHING and not self._limits:
            return table
        return self._matching_keys(table)

    def _eligible(self) -> list[Any]:
        episode = episodes.c
        # Bounded on both sides: otherwise PostgreSQL without statistics expects a third of the
        # table. The last step may have been deleted, so it cannot be a bound.
        has_steps = (episode.last_seq > self._low) & (episode.last_seq < MOST_SEQ)
        if self._partial:
            return [episode.status != "aborted", has_steps | episode.last_seq.is_(None)]
        return [episode.status == "complete", has_steps, episode.first_seq > self._eligible_low]

    def _matching_keys(self, keys: Any) -> Any:
        """Return the keys whose row matches; each is looked up separately.

        An episode whose first row meets the limits may have a later one that does not: this is
        found when it is read.
        """
        first = self._steps.of(None).alias("first_step")
        matches = select(1).where(
            self._steps.is_numbered(first.c, self._buffer_id, keys.c.key),
            compile_condition(self._node, first),
        )
        if self._limits:
            matches = matches.where(self._limits.hold(first))
        return select(keys.c.key).where(matches.offset(0).exists()).subquery("matching")


def _picking(
    node: Node,
    limits: Eligibility,
    include_partial: bool,
    picks: Callable[[Any, int], Select[Any]],
    n: int,
    steps: StepLayout,
) -> Any:
    """Return the select of the picked keys."""
    return picks(_EpisodeKeys(include_partial, node, limits, steps, *_OWN).table, n)


_kept_picking = remembered(_picking)


_OWN = (
    bindparam(BUFFER_ID, type_=Integer()),
    bindparam(LOW, type_=BigInteger()),
    bindparam(ELIGIBLE_LOW, type_=BigInteger()),
)


def _ranked(keys: Any, n: int) -> Select[Any]:
    """Select (key, rank, n) of the keys whose ranks come first in the given numbers."""
    numbers = numbers_in(bindparam(NUMBERS, type_=SeqList())).table_valued(
        column("value", BigInteger()), column("place", BigInteger())
    )
    # A window function would take four times as long. The offsets keep the order and the list.
    in_order = select(keys.c.key).order_by(keys.c.key).offset(0).scalar_subquery()
    seqs = select(seqs_of(in_order).label("seqs")).offset(0).subquery("in_order").c.seqs
    listed = select(seqs, n_seqs(seqs).label("n")).cte("listed")
    rank = (numbers.c.value * listed.c.n).op(">>")(literal(FRACTION_BITS, Integer()))
    first_met = (
        select(rank.label("rank"))
        .join_from(numbers, listed, listed.c.n > 0)
        .group_by(rank)
        .order_by(func.min(numbers.c.place))
        .limit(n)
        .subquery("first_met")
    )
    key = seq_at(listed.c.seqs, first_met.c.rank).label("key")
    return select(key, first_met.c.rank, listed.c.n).join_from(first_met, listed, true())


def _newest(keys: Any, n: int) -> Select[Any]:
    return _unranked(keys).order_by(keys.c.key.desc()).limit(n)


def _oldest(keys: Any, n: int) -> Select[Any]:
    return _unranked(keys).order_by(keys.c.key).limit(n)


def _unranked(keys: Any) -> Select[Any]:
    none = literal(0, BigInteger())
    return select(keys.c.key, none.label("rank"), none.label("n"))


@remembered
def _newest_ends() -> Any:
    """Select the first and the last end of a few episodes, and the number of these."""
    episode = episodes.c
    newest = (
        select(episode.last_seq)
        .where(
            episode.buffer_id == bindparam(BUFFER_ID, type_=Integer()),
            episode.last_seq > bindparam(LOW, type_=BigInteger()),
        )
        .order_by(episode.last_seq.desc())
        .limit(FEW_EPISODES)
        .subquery("newest")
        .c.last_seq
    )
    return select(func.min(newest), func.max(newest), func.count(newest))


def _overdrawn(n: int) -> int:
    """Return the number of fractions that almost always give at least n different keys.

    The chance to miss one of n keys in 8 n + 64 draws is below n exp(-8 - 64 / n).
    """
    return 8 * n + 64


MAX_ROUNDS = 50
# After so many draws for each known key, one of them is left out once in nine million times.
TRIES_OF_EACH = 16
MOST_AT_ONCE = 65_536
MOST_GROWTH = 8
LARGE_STEP = 4_096  # bytes
# Maximum number of keys whose items are tested together, which bounds the memory.
TESTED_AT_ONCE, EPISODES_AT_ONCE = 4_096, 64


class Items(NamedTuple):
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

    def batch(self, n: int | None = None, rng: Rng = np.random.default_rng) -> Batch:
        """Return the batch of the first n items; `rng` is that of goals in hindsight."""
        plan = self.maker.taken(self.plan, self.accepted[:n])
        return self.maker.batch(with_goals(self.maker, plan, rng), {})


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
        reach = _reach_of(form)._replace(
            has_values=needs_values(form),
            most_bytes=LARGE_STEP - 1 if skips else ANY_SIZE,
        )
        self._refuses_single = isinstance(form, TransitionForm) and form.refuses_single
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
        rng = rng_of(sampler)
        kept = np.zeros(0, np.int64)
        size, n_asked, n_accepted = min(n, most), 0, 0
        for n_round in range(MAX_ROUNDS if n > 0 else 0):
            n_probed = candidates.n_probed
            chosen = candidates.numbers(sampler.choose(candidates, size))
            items = self.items(candidates, chosen)
            if not n_round and len(items.numbers) >= n:
                return items.batch(n, rng)
            accepted = items.numbers
            if n_round:
                accepted = _keys_to_keep(sampler, accepted, n - len(kept))
            kept = np.concatenate([kept, accepted]) if adds_up else accepted
            n_asked, n_accepted = n_asked + len(chosen), n_accepted + len(accepted)
            has_tried_all = candidates.n_probed == n_probed <= n_asked / TRIES_OF_EACH
            if len(kept) >= n or not chosen or (has_tried_all and not n_accepted):
                break
            wanted = _n_to_request(n - len(kept) if adds_up else n, n_asked, n_accepted)
            larger = min(wanted, MOST_GROWTH * size, most)
            if not adds_up and (len(chosen) < size or larger <= size):
                break
            size = larger
        return self.items(candidates, kept[:n]).batch(rng=rng)

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

    def read(
        self,
        candidates: Candidates,
        keys: Sequence[int] | Integers,
        rng: Rng = np.random.default_rng,
    ) -> Batch:
        """Return the items of the given keys, in their order; see `Items.batch`.

        Keys are left out if they are not of this kind, cannot be made, or do not match.
        """
        return self.items(candidates, np.asarray(keys, np.int64)).batch(rng=rng)

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
        if self._refuses_single and isinstance(self.form, TransitionForm):
            single = candidates.step_without_episode
            if single is not None:
                raise no_successor(self.form, single)


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
    # Goals are those after any step of an episode.
    final_within = form.n_step if form.relabel is None else ALL_STEPS
    return Reach(-form.n_before, form.n_step, final_within=final_within)


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


def _n_to_request(missing: int, n_asked: int, n_accepted: int) -> int:
    """Return the number of rows to request, by the share accepted so far."""
    return math.ceil(1.1 * missing * (n_asked + 1) / (n_accepted + 1)) + 8


def _keys_to_keep(sampler: RowStrategy, accepted: Integers, n: int) -> Integers:
    """Return n or more of the keys that were accepted in a later round, the ones to keep first.

    Strata are in the order of the rows, so the first ones would be the oldest.
    """
    generator: Callable[[], np.random.Generator] | None = getattr(sampler, "generator", None)
    if len(accepted) <= n or generator is None or not getattr(sampler, "stratified", False):
        return accepted
    order: NDArray[np.int64] = generator().permutation(len(accepted))
    return accepted[order]
