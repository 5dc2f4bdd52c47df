"""Transitions: steps with their n-step returns and the observations after them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.forms import ENDS_NOT_TOLD, SEQUENCE, TransitionForm
from sqlbuffer.batches.hindsight import ChosenGoals, Rng, chosen_goals
from sqlbuffer.batches.step_table import (
    ABORTED,
    COMPLETE,
    LAST,
    LIKELY_STEPS,
    LIVE,
    MOST_AHEAD,
    NONE,
    TERMINATED,
    TOLD,
    TRUNCATED,
    Arrays,
    Flags,
    Integers,
    StepTable,
    as_float32,
    chains,
    longest,
    with_zeros,
)
from sqlbuffer.encoding.packing import Layout, put_rows, with_lens
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import ON_REQUEST
from sqlbuffer.spaces import NEXT
from sqlbuffer.steps import Batch, n_step_returns


class TransitionPlan(NamedTuple):
    """Transitions before their fields are read.

    Attributes:
        slots: Slots of first steps, shape (b,).
        steps: Slots of all steps, shape (b, n); -1 where one is missing.
        reward: Their n-step returns, shape (b,).
        discount: Discounts of what comes after, 0 where the episode terminated, shape (b,).
        m: Numbers of steps: n, or fewer if the episode ends before, shape (b,).
        terminated: Whether the episode terminated at the last step, shape (b,).
        truncated: Whether it was cut there, shape (b,).
        after: Slots of the steps that have the observations after; -1 if there is none.
        is_final: Whether it is the final observation of the episode.
        frames: Slots of the frames up to the first step, the oldest first, shape (b, k).
        next_frames: Slots of those before the observation after.
        accepted: Whether everything that is needed is there and may be sampled.
        has_single: Whether a step without an episode may be among the accepted ones.
        goals: Goals in hindsight, which are chosen last; None for none.
    """

    slots: Integers
    steps: Integers
    reward: NDArray[np.floating[Any]]
    discount: NDArray[np.floating[Any]]
    m: NDArray[np.signedinteger[Any]]
    terminated: Flags
    truncated: Flags
    after: Integers
    is_final: Flags
    frames: Integers
    next_frames: Integers
    accepted: Flags
    has_single: bool
    goals: "ChosenGoals[TransitionPlan] | None" = None

    def taken(self, index: Integers | slice) -> "TransitionPlan":
        """Return some of them, before goals are chosen."""
        return TransitionPlan(
            self.slots[index], self.steps[index], self.reward[index], self.discount[index],
            self.m[index], self.terminated[index], self.truncated[index], self.after[index],
            self.is_final[index], self.frames[index], self.next_frames[index], self.accepted[index],
            self.has_single,
        )  # fmt: skip


GoalPlans = Callable[[StepTable, Integers], TransitionPlan]


class TransitionMaker:
    """Makes transitions; see `ReplayBuffer.sample_transitions`.

    Args:
        table: The steps.
        form: Fields and length of the transitions.
        observation: Layout of the bytes of final observations.

    Attributes:
        table: The steps.
        form: Their form.
        accepts_all: False: the neighbours of a key decide.
    """

    accepts_all = False

    def __init__(self, table: StepTable, form: TransitionForm, observation: Layout) -> None:
        self.table, self.form, self._observation = table, form, observation
        self.checks_ends = form.terminal_field is None and "done" in form.fields.specs

    def are_keys(self, slots: Integers) -> None:
        """Return None: a transition may begin at any step."""

    def n_steps(self, slots: Integers) -> int:
        """Return how many steps a transition needs at most, with the frames around them."""
        n = self.form.n_step + 1
        if n > LIKELY_STEPS:
            n = min(n, longest(self.table, slots))
        return n + self.form.n_before

    def taken(self, plan: TransitionPlan, index: Integers) -> TransitionPlan:
        """Return a part of a plan."""
        return plan.taken(index)

    def plan(self, slots: Integers) -> TransitionPlan:
        """Return the plan of the transitions from some steps on."""
        table, form = self.table, self.form
        steps, links = self._chains(slots)
        b, n = links.shape
        following, steps = steps[:, n], steps[:, :n]
        is_known = (steps != NONE) & ((links["flags"] & LIVE) != 0)
        flags = np.where(is_known, links["flags"], np.uint8(0))
        if not is_known.all():
            steps = np.where(is_known, steps, NONE)
        first = links[:, 0]
        is_single = first["episode"] == NONE
        self._check_ends_are_told(flags[:, 0])
        terminated = (flags & TERMINATED) != 0
        if form.terminal_field is not None:
            marks = self._gather(steps, [form.terminal_field])[form.terminal_field]
            terminated |= (marks != 0) & (steps != NONE)
        # A step without an episode is one of its own.
        ended = ((flags & (TRUNCATED | LAST)) != 0) | is_single[:, None]
        rewards = np.where(is_known, links["reward"], np.nan)
        returns = n_step_returns(rewards, terminated, ended, is_known, form.gamma)
        last = steps[np.arange(b), returns.m - 1]
        if form.has_next:
            after, is_final = last, np.zeros(b, bool)
        else:
            after = np.where(returns.ended, NONE, self._live(following))
            is_final = returns.ended & self._has_final(first, returns.m)
        is_zero = returns.terminated & ~is_final & (after == NONE) & (not form.has_next)
        accepted = returns.complete & (is_final | is_zero | (after != NONE))
        if form.needs_episodes:
            accepted &= ~is_single
        frames = next_frames = np.zeros((b, 0), np.int64)
        if form.stack:
            frames = self._before(slots, form.n_before)
        if form.n_before:
            next_frames = self._before(last, form.n_before - 1)
            accepted &= (frames != NONE).all(axis=1)
            accepted &= is_zero | (next_frames != NONE).all(axis=1)
        episodes, of = table.episodes, first["episode"]
        if episodes.n_aborted:
            accepted &= (of == NONE) | (episodes.status.take(of, mode="clip") != ABORTED)
        if table.has_barred:
            within = np.arange(n) < returns.m[:, None]
            needed = [np.where(within, steps, NONE), after[:, None], frames, next_frames]
            accepted &= ~table.at(np.concatenate(needed, axis=1)).is_any_barred()
        truncated = (flags[np.arange(b), returns.m - 1] & TRUNCATED) != 0
        if form.relabel is not None:
            accepted &= self.have_goals(of, after, is_final)
        has_single = bool((is_single & accepted).any())
        return TransitionPlan(
            slots, steps, returns.reward, returns.discount, returns.m, returns.terminated,
            truncated, after, is_final, frames, next_frames, accepted, has_single,
        )  # fmt: skip

    def have_goals(self, of: Integers, after: Integers, is_final: Flags) -> Flags:
        """Return of which transitions the episode has ended, and the goal after them is stored.

        Args:
            of: Their episodes.
            after: See `TransitionPlan`.
            is_final: See `TransitionPlan`.
        """
        have_goals: Flags = (of != NONE) & ((after != NONE) | is_final)
        status = self.table.episodes.status
        if len(status):
            have_goals &= status.take(of, mode="clip") == COMPLETE
        return have_goals

    def _chains(self, slots: Integers) -> tuple[Integers, NDArray[Any]]:
        """Return the slots of steps and of the n steps after each, shape (b, n + 1), -1 where one
        is missing; and the links of all but the last, shape (b, n).

        If fewer steps follow each other, n is less: an episode that goes on has a missing step.
        """
        table, b, n = self.table, len(slots), self.form.n_step
        if n > MOST_AHEAD:
            steps = chains(table, slots, n + 1)
            n = min(n, steps.shape[1] + 1)
            steps = np.pad(steps, ((0, 0), (0, n + 1 - steps.shape[1])), constant_values=NONE)
            steps[:, 0] = slots
            links = table.gathered_links(np.maximum(steps[:, :n], 0).reshape(-1))
            return steps, links.reshape(b, n)
        # Mostly steps that follow each other are next to each other.
        steps = np.minimum(slots[:, None] + np.arange(n + 1), table.n_slots - 1)
        links = table.gathered_links(steps[:, :n].reshape(-1)).reshape(b, n)
        after = links["next"]
        is_next = after == steps[:, 1:]
        if is_next.all():
            return steps, links
        is_reached = np.logical_and.accumulate(is_next, axis=1)
        has_left = ~is_next & (after != NONE)
        has_left[:, 1:] &= is_reached[:, :-1]
        steps[:, 1:][~is_reached] = NONE
        elsewhere = np.flatnonzero(has_left.any(axis=1))
        if len(elsewhere):
            chained = steps[elsewhere]
            for k in range(n):
                links_of = table.gathered_links(np.maximum(chained[:, k], 0))
                chained[:, k + 1] = np.where(chained[:, k] == NONE, NONE, links_of["next"])
                links[elsewhere, k] = links_of
            steps[elsewhere] = chained
        return steps, links

    def _live(self, slots: Integers) -> Integers:
        """Return slots, -1 for those whose steps the buffer does not have."""
        flags = self.table.gathered_links(np.maximum(slots, 0))["flags"]
        live: Integers = np.where((slots != NONE) & ((flags & LIVE) != 0), slots, NONE)
        return live

    def _has_final(self, first: NDArray[Any], m: Integers) -> Flags:
        episodes, of = self.table.episodes, first["episode"]
        if not len(episodes.length):
            return np.zeros(len(of), bool)
        # Free slots that the follower of a shared mirror fills name episodes not known here yet.
        ends_there = (of != NONE) & (first["t"] + m == episodes.length.take(of, mode="clip"))
        has_final = np.zeros(len(of), bool)
        ending = np.flatnonzero(ends_there)
        has_final[ending] = [
            final is not None for final in episodes.finals.take(of[ending], mode="clip")
        ]
        return has_final

    def _before(self, slots: Integers, n: int) -> Integers:
        """Return slots and the n steps before them, the oldest first, shape (b, n + 1); before an
        episode's start its first step, -1 where one is missing.
        """
        frames = np.empty((len(slots), n + 1), np.int64)
        frames[:, n] = slots
        for i in range(n, 0, -1):
            later = frames[:, i]
            links = self.table.gathered_links(np.maximum(later, 0))
            before = np.where(links["t"] > 0, self._live(links["prev"].astype(np.int64)), later)
            frames[:, i - 1] = np.where(later == NONE, NONE, before)
        return frames

    def _check_ends_are_told(self, flags: NDArray[np.uint8]) -> None:
        if self.checks_ends and ((flags & (LIVE | TOLD)) == LIVE).any():
            raise FieldError(ENDS_NOT_TOLD)

    def _gather(self, slots: Integers, names: Sequence[str]) -> Arrays:
        """Return fields of steps, zeros at -1; shape (*slots.shape, *shape)."""
        return self.table.at(slots).fields(names)

    def with_goals(
        self,
        plan: TransitionPlan,
        rng: np.random.Generator,
        plan_of: GoalPlans | None = None,
    ) -> TransitionPlan:
        """Return a plan of accepted transitions with goals in hindsight.

        A goal is chosen where the step before it is a transition that could be drawn.

        Args:
            plan: The plan.
            rng: Draws.
            plan_of: Makes the plan of transitions at steps of a table; None: as for any.
        """
        assert self.form.relabel is not None
        if plan_of is None:
            plan_of = self._plan_of_goals
        goals = chosen_goals(self.form.relabel, self.table, plan.slots, plan_of, rng)
        return plan._replace(goals=goals)

    def _plan_of_goals(self, table: StepTable, slots: Integers) -> TransitionPlan:
        return self._of_goals(table).plan(slots)

    def _of_goals(self, table: StepTable) -> "TransitionMaker":
        return TransitionMaker(table, self.form.of_goals, self._observation)

    def _put_goals(self, goals: ChosenGoals[TransitionPlan], arrays: Arrays) -> None:
        """Put the chosen goals into the arrays of a batch."""
        relabel = self.form.relabel
        assert relabel is not None
        if len(goals.rows):
            steps = goals.table.gathered(goals.plan.slots)
            achieved = self._of_goals(goals.table)._following(goals.plan, steps)
            for name in (relabel.desired_goal, NEXT + relabel.desired_goal):
                arrays[name][goals.rows] = achieved[NEXT + relabel.achieved_goal]

    def batch(self, plan: TransitionPlan, columns: Mapping[str, NDArray[Any] | None]) -> Batch:
        """Return the transitions of a plan; see `Maker.batch`."""
        table, form = self.table, self.form
        steps = table.gathered(plan.slots)
        arrays = table.fields_of(steps, form.plain_names)
        if form.stack:
            arrays = self._with_stacks(plan, arrays)
        arrays["reward"] = as_float32(plan.reward)
        arrays["discount"] = as_float32(plan.discount)
        arrays["terminated"] = plan.terminated.copy()
        if "truncated" in form.built_in:
            arrays["truncated"] = plan.truncated.copy()
        if form.values:
            arrays |= table.fields_of(steps, [], form.values)
        arrays |= self._following(plan, steps)
        if form.sequence_fields:
            arrays |= self._sequences(plan)
        of_goals: Arrays = {}
        if plan.goals is not None:
            self._put_goals(plan.goals, arrays)
            of_goals = plan.goals.info(len(plan.slots))
        info_of_steps, m = table.info_of(steps, with_place=True), plan.m

        def info() -> "Arrays":
            return info_of_steps() | {"n_steps": m.astype(np.int64)} | of_goals

        return Batch({**arrays, **columns}, info, form.structure)

    def _with_stacks(self, plan: TransitionPlan, plain: Arrays) -> Arrays:
        arrays: Arrays = {}
        for name in self.form.names:
            k = self.form.stack.get(name)
            if k is not None:
                arrays |= self._gather(plan.frames[:, -k:], [name])
            else:
                arrays |= with_lens(plain, name)
        return arrays

    def _following(self, plan: TransitionPlan, steps: Any) -> Arrays:
        """Return the observations after, `{next_<name>: array}`."""
        form, table = self.form, self.table
        if not form.has_next:
            after = self._gather(plan.after, form.plain_following)
        elif form.n_step == 1:  # they are fields of the steps themselves
            after = table.fields_of(steps, form.plain_following)
        else:
            after = table.fields_at(plan.after, form.plain_following)
        if form.has_next and not form.stack:
            return after
        ending, finals = np.zeros(0, np.int64), Arrays()
        if np.count_nonzero(plan.is_final):
            ending = np.flatnonzero(plan.is_final)
            blobs = table.episodes.finals[table.episodes_of(steps)[ending]].tolist()
            finals = self._observation.unpack(blobs, form.following)
        prefix = NEXT if form.has_next else ""
        following: Arrays = {}
        for name in form.following:
            k = form.stack.get(name)
            if k is not None:
                array = self._next_stack(plan, name, k)
                if len(ending):
                    array[ending, -1] = finals[name]
                following[NEXT + name] = array
                continue
            arrays = with_lens(after, prefix + name)
            if len(ending):
                spec = form.fields.specs[name]
                arrays = put_rows(spec, arrays, ending, with_lens(finals, name))
            following |= {NEXT + key.removeprefix(prefix): value for key, value in arrays.items()}
        return following

    def _next_stack(self, plan: TransitionPlan, name: str, k: int) -> NDArray[Any]:
        """Return the frames up to the observations after; zeros for final observations."""
        slots = plan.next_frames[:, self.form.n_before + 1 - k :]
        # After a terminal step without an observation, every frame is zeros.
        is_zero = (plan.after == NONE) & ~plan.is_final
        slots = np.where(is_zero[:, None], NONE, slots)
        if not self.form.has_next:  # all of one field: each frame is copied once
            slots = np.concatenate([slots, plan.after[:, None]], axis=1)
            return self._gather(slots, [name])[name]
        newest = self._gather(plan.after, [NEXT + name])[NEXT + name]
        return np.concatenate([self._gather(slots, [name])[name], newest[:, None]], axis=1)

    def _sequences(self, plan: TransitionPlan) -> Arrays:
        """Return fields of each step, of shape (b, n_step, *shape), zeros behind the last."""
        within = np.arange(plan.steps.shape[1]) < plan.m[:, None]
        steps = self.table.at(np.where(within, plan.steps, NONE))
        sequences: Arrays = {}
        for name in self.form.sequence_fields:
            is_built_in = name == "reward" or name in ON_REQUEST
            arrays = steps.built_in([name]) if is_built_in else steps.fields([name])
            for key, value in arrays.items():
                sequences[SEQUENCE + key] = with_zeros(value, self.form.n_step)
        return sequences


def with_goals(maker: Any, plan: Any, rng: Rng) -> Any:
    """Return a plan of accepted items with goals in hindsight, if their form has them.

    Args:
        maker: The maker of the items.
        plan: Their plan.
        rng: Returns the generator that chooses the goals.
    """
    if isinstance(maker, TransitionMaker) and maker.form.relabel is not None:
        return maker.with_goals(plan, rng())
    return plan
