"""The choice of samplers among the steps in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import checked_sampler
from sqlbuffer.checks import refused
from sqlbuffer.mirror.memory.priorities import Reals, StepPriorities, WeightTree
from sqlbuffer.mirror.memory.records import SEQ
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.tables import BLOCK, BlockMap
from sqlbuffer.samplers import (
    FifoSampler,
    LatestSampler,
    PrioritizedSampler,
    RandomSampler,
    Sampler,
)
from sqlbuffer.storage.sampling.candidates import no_priorities

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Columns = Mapping[str, NDArray[Any] | None]

NO_COLUMNS: Columns = {}


class Chosen(NamedTuple):
    """Steps that were chosen.

    Attributes:
        slots: Where they are, shape (n,).
        columns: Arrays that the sampler gives with them, each of shape (n,); None for one that is
            not known.
    """

    slots: Integers
    columns: Columns = NO_COLUMNS


class Chooser(Protocol):
    """Chooses steps as a sampler does; made for one draw."""

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
    ) -> Chosen:
        """Return n of the steps that may be drawn and are accepted; fewer if there are too few.

        Args:
            memory: The steps.
            is_drawable: True for slots that may be drawn, shape (n_slots,).
            n: Number of steps.
            accepts: Function that returns True for accepted slots; all are accepted by default.
        """


# Where a smaller share of random slots is accepted, another method takes less time.
LOWEST_UNIFORM_SHARE = 1 / 16
MOST_ROUNDS = 64
_BITS = BLOCK.bit_length() - 1


@dataclass(frozen=True)
class UniformChooser:
    """Chooses uniformly.

    Attributes:
        rng: Draws.
        replace: Draw with replacement.
        by_number: Draw by the numbers of steps, so that it does not matter where they are in
            memory.
    """

    rng: np.random.Generator
    replace: bool
    by_number: bool = False

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
        accepted: Flags | None = None,
    ) -> Chosen:
        """Return n steps; see `Chooser.choose`, and for `accepted` `uniform_slots`."""
        order = memory.blocks.in_order if self.by_number else None
        slots = uniform_slots(is_drawable, self.rng, self.replace, n, accepts, order, accepted)
        return Chosen(slots)


def uniform_slots(
    is_drawable: Flags,
    rng: np.random.Generator,
    replace: bool,
    n: int,
    accepts: Callable[[Integers], Flags] | None = None,
    order: Integers | None = None,
    accepted: Flags | None = None,
) -> Integers:
    """Return n slots, uniform over those that may be drawn and are accepted, or fewer if there are
    fewer.

    Slots are drawn from all slots, and wrong ones are rejected, which is uniform over the rest.

    Args:
        is_drawable: True for slots that may be drawn, shape (n_slots,).
        rng: Draws.
        replace: Draw with replacement.
        n: Number of slots.
        accepts: Function that returns True for accepted slots; all are accepted by default.
        order: Blocks of slots in use, in the order of their numbers. With them, the same numbers
            are drawn, independent of their places in memory.
        accepted: True for slots that may be drawn and are accepted, if they are known: the same
            slots are drawn, with fewer tests.
    """
    tested, accepts_drawable = (is_drawable, accepts) if accepted is None else (accepted, None)

    # In quotes: Python evaluates annotations of a nested function in each call.
    def drawable_at(places: "Integers") -> "Integers":
        slots = places
        if order is not None:
            slots = (order[places >> _BITS] << _BITS) + (places & (BLOCK - 1))
        flags = tested[slots]
        # Mostly all.
        return slots if np.count_nonzero(flags) == len(flags) else slots[flags]

    n_places = len(is_drawable) if order is None else len(order) * BLOCK

    def draw_slots(size: int) -> "Integers":
        # Half the time of `integers`.
        return drawable_at((rng.random(size) * n_places).astype(np.int64))

    if n_places and (n <= n_places or replace):
        chosen = _by_rejection(draw_slots, n, replace, accepts_drawable, LOWEST_UNIFORM_SHARE)
        if len(chosen) == n:
            return chosen
    # Few slots may be drawn, or n is nearly all of them.
    every, rng = _drawable_slots(is_drawable, order), rng.spawn(1)[0]
    if accepts is not None:
        if len(every) and (n <= len(every) or replace):
            chosen = _by_rejection(
                lambda size: every[(rng.random(size) * len(every)).astype(np.int64)],
                n, replace, accepts, LOWEST_UNIFORM_SHARE,
            )  # fmt: skip
            if len(chosen) == n:
                return chosen
        every, rng = every[accepts(every)], rng.spawn(1)[0]
    if replace:
        return every[rng.integers(0, len(every), n)] if len(every) else every
    rng.shuffle(every)
    return every[:n]


_NO_SLOTS: Integers = np.zeros(0, np.int64)


def _by_rejection(
    draw_slots: Callable[[int], Integers],
    n: int,
    replace: bool,
    accepts: Callable[[Integers], Flags] | None,
    lowest_share: float,
    expected_share: float = 1.0,
    chosen: Integers = _NO_SLOTS,
) -> Integers:
    """Return n accepted slots of random ones, or fewer if too few are accepted.

    Args:
        draw_slots: Function that draws a number of slots, each on its own. It may return fewer.
        n: Number of slots.
        replace: A slot may come again.
        accepts: Function that returns True for accepted slots; all are accepted by default.
        lowest_share: The draw ends where a smaller share is accepted.
        expected_share: Share that is expected to be accepted: it sets the size of the first round.
        chosen: Slots that were drawn earlier, which count towards n.
    """
    # Mostly a few more than wanted are enough, and `accepts` is asked once.
    size = int(((n - len(chosen)) * 1.125 + 8) / expected_share)
    n_before, n_drawn = len(chosen), 0
    for _ in range(MOST_ROUNDS):
        slots = draw_slots(size)
        n_drawn += size
        if accepts is not None:
            slots = slots[accepts(slots)]
        chosen = np.concatenate([chosen, slots]) if len(chosen) else slots
        if not replace:
            chosen = _first_of_each(chosen)
        if len(chosen) >= n:
            return chosen[:n]
        share = (len(chosen) - n_before) / n_drawn
        if share < lowest_share:
            break
        size = int(1.2 * (n - len(chosen)) / share) + 16
        if not replace:
            # The share falls from round to round, as fewer slots are new.
            n_before, n_drawn = len(chosen), 0
    return chosen


def _drawable_slots(is_drawable: Flags, order: Integers | None) -> Integers:
    """Return the slots that may be drawn, in an order of blocks of slots if one is given."""
    if order is None:
        return np.flatnonzero(is_drawable)
    slots = (order[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
    drawable: Integers = slots[is_drawable[slots]]
    return drawable


def _first_of_each(slots: Integers) -> Integers:
    """Return slots without those that came before, in order."""
    _, first = np.unique(slots, return_index=True)
    return slots if len(first) == len(slots) else slots[np.sort(first)]


# If less than this share of the slots drawn by weight can be taken, all steps are tested.
LOWEST_WEIGHTED_SHARE = 1 / 8
# Below this mean of the weights, as a share of their bound, the sums of the tree take less time.
LEAST_MEAN_WEIGHT = 1 / 8


@dataclass(frozen=True)
class PrioritizedChooser:
    """Chooses by priority, as a `PrioritizedSampler` does.

    A step is drawn from all by weight, and drawn again if it may not be taken: that is exact for
    the others.

    Attributes:
        sampler: Its options.
        rng: Draws.
        has_condition: The user says which steps may be drawn.
    """

    sampler: PrioritizedSampler
    rng: np.random.Generator
    has_condition: bool

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
    ) -> Chosen:
        """Return n steps; see `Chooser.choose`.

        Raises:
            BufferConfigError: The buffer has no priorities.
        """
        priorities = memory.priorities
        if priorities is None:
            raise no_priorities()
        tree = priorities.weights(memory.is_drawable, memory.changed)

        def takes(slots: Integers) -> Flags:
            taken = is_drawable[slots] & (tree.weights[slots] > 0)
            if accepts is not None:
                indexes = np.flatnonzero(taken)
                taken[indexes] = accepts(slots[indexes])
            return taken

        by_number = self.sampler.stratified or self.sampler.seed is not None
        blocks = memory.blocks if by_number else None
        draw = _Draw(is_drawable, tree, takes, self.rng, blocks)
        if not tree.total > 0:
            slots = _NO_SLOTS
        elif self.sampler.stratified:
            slots = draw.by_strata(n, self.has_condition)
        else:
            slots = draw.slots(n, self.sampler.replace)
        total = self._total(priorities, is_drawable, tree)
        return Chosen(slots, self._columns(memory, priorities, slots, total))

    def _total(
        self, priorities: StepPriorities, is_drawable: Flags, tree: WeightTree
    ) -> float | None:
        """Return the sum of the weights that steps are drawn by; None if it is unknown."""
        if not self.sampler.exact and (self.has_condition or priorities.is_limited):
            return None
        if self.has_condition:
            return float(tree.weights[: len(is_drawable)].sum(where=is_drawable))
        return tree.total

    def _columns(
        self, memory: StepMemory, priorities: StepPriorities, slots: Integers, total: float | None
    ) -> Columns:
        seqs, values = memory.records[SEQ][slots], priorities.values[slots]
        columns = self.sampler.columns_of(
            seqs,
            values,
            alpha=priorities.alpha,
            total=total,
            least=lambda: priorities.least(memory.links["flags"]),
        )
        return {**columns, **self.sampler.finished(columns, priorities.alpha)}


@dataclass(frozen=True)
class _Draw:
    """Draws slots by weight.

    Attributes:
        is_drawable: True for slots that may be drawn, shape (n_slots,).
        tree: Their weights.
        takes: Function that returns True for slots that can be taken.
        rng: Draws.
        blocks: Draw by the numbers of steps, which these map: it does not matter where the steps
            are in memory, nor which weights they had before. None: the quickest method.
    """

    is_drawable: Flags
    tree: WeightTree
    takes: Callable[[Integers], Flags]
    rng: np.random.Generator
    blocks: BlockMap | None

    def slots(self, n: int, replace: bool) -> Integers:
        """Return n slots, or fewer if there are fewer.

        Without replacement, repeats are dropped: the next one is drawn by weight from the others.
        All methods draw by weight, so one may continue what another has begun.

        Args:
            n: Number of slots.
            replace: A slot may come again.
        """
        n, chosen = n if replace else min(n, len(self.is_drawable)), _NO_SLOTS
        if self.blocks is None:
            mean_weight = self.tree.total / len(self.is_drawable)
            share = mean_weight / self.tree.bound
            if share >= LEAST_MEAN_WEIGHT:
                chosen = _by_rejection(
                    self._below_bound, n, replace, self.takes, LOWEST_UNIFORM_SHARE, share
                )
        if len(chosen) < n:
            chosen = _by_rejection(
                self._by_sums, n, replace, self.takes, LOWEST_WEIGHTED_SHARE, chosen=chosen
            )
        missing = n - len(chosen)
        if missing:
            others = self._of_all(missing) if replace else self._rest(chosen, missing)
            chosen = np.concatenate([chosen, others])
        return chosen

    def _below_bound(self, size: int) -> Integers:
        """Draw slots uniformly, and reject each by how far its weight is below the bound."""
        slots = (self.rng.random(size) * len(self.is_drawable)).astype(np.int64)
        heights = self.rng.random(size) * self.tree.bound
        return slots[heights < self.tree.weights.take(slots)]

    def _by_sums(self, size: int) -> Integers:
        return self._slots_at(self.rng.random(size))

    def _slots_at(self, fractions: Reals) -> Integers:
        """Return the slots that fractions of the sum of all weights fall on; by number, if draws
        are.
        """
        if self.blocks is None:
            return self.tree.slots_at(fractions)
        return self.tree.slots_in_order(fractions, self.blocks.runs)

    def _drawable(self) -> Integers:
        """Return the slots that may be drawn; by number, if draws are."""
        order = None if self.blocks is None else self.blocks.in_order
        return _drawable_slots(self.is_drawable, order)

    def _of_all(self, n: int) -> Integers:
        """Return n slots with replacement; none if none can be taken."""
        every, weights = self._all()
        slots: Integers = every[_at(weights, self.rng.random(n))]
        return slots

    def _rest(self, chosen: Integers, n: int) -> Integers:
        """Return n more slots by a race of all others (Efraimidis and Spirakis 2006)."""
        every, weights = self._all()
        is_left = ~np.isin(every, chosen)
        every, weights = every[is_left], weights[is_left]
        times = self.rng.exponential(size=len(every)) / weights
        rest: Integers = every[np.argsort(times, kind="stable")[:n]]
        return rest

    def by_strata(self, n: int, has_condition: bool) -> Integers:
        """Return a slot of each of n equal parts of the sum of all weights in insert order. Where
        it cannot be taken, one that is drawn from all stands in for it.

        Args:
            n: Number of items.
            has_condition: The sum is of the slots that may be drawn.
        """
        fractions = (np.arange(n) + self.rng.random(n)) / n
        if has_condition:
            slots = self._drawable()
            chosen: Integers = slots[_at(self.tree.weights[slots], fractions)]
        else:
            chosen = self._slots_at(fractions)
        missing = np.flatnonzero(~self.takes(chosen))
        if len(missing):
            others = self.slots(len(missing), replace=True)
            if not len(others):
                return others
            chosen[missing] = others
        return chosen

    def _all(self) -> tuple[Integers, Reals]:
        """Return all slots that can be taken, and their weights."""
        every = self._drawable()
        every = every[self.takes(every)]
        return every, self.tree.weights[every]


def _at(weights: Reals, fractions: Reals) -> Integers:
    """Return the places that fractions of the sum of weights fall on; none without weights."""
    ends = weights.cumsum()
    if not len(ends) or not ends[-1] > 0:
        return np.zeros(0, np.int64)
    last = int(np.flatnonzero(weights)[-1])
    places: Integers = ends.searchsorted(fractions * ends[-1], side="right")
    return np.minimum(places, last)


# Most steps may be drawn: a few blocks more than have as many are enough.
_SPARE = 2


@dataclass(frozen=True)
class OneEndChooser:
    """Chooses the steps at one end of the buffer.

    Attributes:
        newest: Take the newest, newest first; else the oldest, oldest first.
    """

    newest: bool

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
    ) -> Chosen:
        """Return n steps; see `Chooser.choose`."""
        blocks = memory.blocks
        numbers = blocks.numbers()
        numbers = numbers[::-1] if self.newest else numbers
        parts: list[Integers] = [np.zeros(0, np.int64)]
        start, size, missing = 0, n // BLOCK + _SPARE, n
        while missing > 0 and start < len(numbers):
            slots = blocks.slots_in(numbers[start : start + size])
            slots = (slots[:, ::-1] if self.newest else slots).reshape(-1)
            slots = slots[is_drawable[slots]]
            if accepts is not None:
                slots = slots[accepts(slots)]
            parts.append(slots[:missing])
            missing -= len(parts[-1])
            start, size = start + size, 2 * size
        return Chosen(np.concatenate(parts))


def _uniform(sampler: RandomSampler) -> Chooser:
    return UniformChooser(sampler.generator(), sampler.replace, by_number=True)


# A sampler of a class that is derived from one of these chooses in its own way.
_CHOOSERS: dict[type[Sampler], Callable[[Any], Chooser]] = {
    RandomSampler: _uniform,
    FifoSampler: lambda _sampler: OneEndChooser(newest=False),
    LatestSampler: lambda _sampler: OneEndChooser(newest=True),
}


def chooser_of(
    sampler: Sampler | None, rng: np.random.Generator, *, has_condition: bool
) -> Chooser:
    """Return what chooses the steps of the next draw.

    Args:
        sampler: The sampler; None: uniform with replacement.
        rng: Draws without a sampler, or without a seed.
        has_condition: The user says which steps may be drawn.

    Raises:
        ArgumentError: A sampler that a mirror does not have.
    """
    if sampler is None:
        return UniformChooser(rng, True)
    if type(sampler) is PrioritizedSampler:
        generator = rng if sampler.seed is None else sampler.generator()
        return PrioritizedChooser(sampler, generator, has_condition)
    chooser = _CHOOSERS.get(type(checked_sampler(sampler)))
    if chooser is None:
        names = ", ".join(kind.__name__ for kind in _CHOOSERS)
        what = f"a {names} or PrioritizedSampler in a mirror; the buffer itself draws with others"
        raise refused(sampler, "sampler", what)
    return chooser(sampler)
