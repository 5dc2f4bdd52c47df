"""Goals in hindsight: transitions as if a goal had been meant that their episode reached.

Source: Andrychowicz et al. 2017, "Hindsight Experience Replay", arXiv:1707.01495, section 3.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import NONE, Flags, Integers, StepTable
from sqlbuffer.checks import checked_callable, checked_choice, checked_integer, checked_text
from sqlbuffer.display import shown
from sqlbuffer.errors import ArgumentError
from sqlbuffer.spaces import NEXT
from sqlbuffer.steps import Batch

RELABELLED, GOAL_SEQ = "relabelled", "goal_seq"
MOST_GOALS = 1_000_000

Strategy = Literal["future", "final", "episode"]
STRATEGIES = get_args(Strategy)
Rewards = NDArray[Any]
RewardFn = Callable[
    [NDArray[Any], NDArray[Any], Mapping[str, NDArray[Any]]], Rewards | tuple[Rewards, NDArray[Any]]
]
_EXPECTED = "numbers of shape ({n},), or a tuple (rewards, terminated) of two such arrays"


@dataclass(frozen=True, kw_only=True)
class HindsightGoals:
    """How `sample_transitions` gives transitions another goal in hindsight (HER).

    Of a batch of b transitions, b n / (n + 1) are relabelled, n being `n_sampled_goal`. If this is
    not an integer, one more is relabelled with the probability of the rest. The relabelled rows are
    chosen at random. For each of them a step of its episode is chosen. The achieved goal in the
    observation after that step becomes the desired goal, before and after the transition.
    (Andrychowicz et al. 2017, arXiv:1707.01495, section 3.2.)

    Only transitions of episodes that have ended are drawn, relabelled or not, because steps of an
    open episode have no future yet. Steps that were evicted, deleted or quarantined are never
    chosen.

    Args:
        reward_fn: Function `reward_fn(achieved_goal, desired_goal, infos)` that is called once for
            each batch. `achieved_goal` is the one after the transition, of shape (k, *goal), and
            `desired_goal` is the new one. `infos` are the other arrays of the k transitions, by the
            name that they have in the batch, such as `action`, with the rewards and flags as they
            are stored. It returns rewards of shape (k,), or a tuple (rewards, terminated). Without
            `terminated`, transitions keep the flag that is stored: this is right where an episode
            does not end at its goal.
        n_sampled_goal: Number of relabelled transitions for each one that is not, from 1 to
            1,000,000.
        strategy: Which step is chosen. `future`: any from the transition's own to the last of its
            episode. `final`: the last. `episode`: any of the episode. All are equally likely.
        achieved_goal: Field of the goal that was achieved.
        desired_goal: Field of the goal that was meant.

    Raises:
        ArgumentError: An argument is invalid.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> def reached(achieved_goal, desired_goal, infos):
        ...     return (achieved_goal == desired_goal).all(axis=-1) - 1.0
        >>> goal = {"obs_achieved_goal": ("float32", (1,)), "obs_desired_goal": ("float32", (1,))}
        >>> buffer = ReplayBuffer("sqlite://", fields=goal, observation_fields=[*goal])
        >>> _ = buffer.store_episode(
        ...     {
        ...         "obs_achieved_goal": [[0], [1]],
        ...         "obs_desired_goal": [[9], [9]],
        ...         "reward": [-1, -1],
        ...     },
        ...     final={"obs_achieved_goal": [2], "obs_desired_goal": [9]},
        ...     truncated=True,
        ... )
        >>> goals = HindsightGoals(n_sampled_goal=4, strategy="final", reward_fn=reached)
        >>> batch = buffer.sample_transitions(10, relabel=goals)
        >>> sorted(batch.obs_desired_goal[:, 0].tolist())
        [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 9.0, 9.0]
    """

    reward_fn: RewardFn
    n_sampled_goal: int = 4
    strategy: Strategy = "future"
    achieved_goal: str = "obs_achieved_goal"
    desired_goal: str = "obs_desired_goal"

    def __post_init__(self) -> None:
        what = "a function reward_fn(achieved_goal, desired_goal, infos)"
        checked_callable(self.reward_fn, "reward_fn", what)
        checked_integer(self.n_sampled_goal, "n_sampled_goal", 1, MOST_GOALS)
        checked_choice(self.strategy, "strategy", STRATEGIES)
        for name in ("achieved_goal", "desired_goal"):
            checked_text(getattr(self, name), name)
        if self.achieved_goal == self.desired_goal:
            raise ArgumentError(
                f"achieved_goal and desired_goal are two fields, got {shown(self.desired_goal)} "
                f"for both"
            )

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self.reward_fn)
        except Exception as error:
            raise ArgumentError(
                f"reward_fn of HindsightGoals cannot be pickled for another process: {error}; "
                f"define it at the top level of a module, or read in this process"
            ) from error
        return self.__dict__

    def __deepcopy__(self, memo: object) -> "HindsightGoals":
        return self  # it never changes, and its function may not be pickled


Rng = Callable[[], np.random.Generator]


class GoalPlan(Protocol):
    """The transitions at some steps, after which goals were achieved.

    Attributes:
        slots: Slots of the steps, shape (n,).
        accepted: True where there is a goal that may be chosen, shape (n,).
    """

    @property
    def slots(self) -> Integers: ...

    @property
    def accepted(self) -> Flags: ...


P = TypeVar("P", bound=GoalPlan)


def rng_of(sampler: object, otherwise: Rng = np.random.default_rng) -> Rng:
    """Return what makes the generator of the goals of a sampler's batch: its own, if it has one."""
    method = getattr(sampler, "generator", None)

    def generator() -> np.random.Generator:
        rng = method() if callable(method) else None
        return rng if isinstance(rng, np.random.Generator) else otherwise()

    return generator


@dataclass(frozen=True)
class ChosenGoals(Generic[P]):
    """The steps whose goals replace those of transitions.

    Attributes:
        rows: The transitions that are relabelled, shape (k,).
        table: The table that has the chosen steps.
        plan: The transitions at these, of k rows.
    """

    rows: Integers
    table: StepTable
    plan: P

    def info(self, n: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of the info of a batch of n rows."""
        is_relabelled, seqs = np.zeros(n, bool), np.full(n, NONE, np.int64)
        is_relabelled[self.rows] = True
        seqs[self.rows] = self.table.seqs_of(self.plan.slots)
        return {RELABELLED: is_relabelled, GOAL_SEQ: seqs}


def chosen_goals(
    goals: HindsightGoals,
    table: StepTable,
    slots: Integers,
    plan_of: Callable[[StepTable, Integers], P],
    rng: np.random.Generator,
) -> ChosenGoals[P]:
    """Choose the transitions to relabel and the steps that give them their goals.

    Args:
        goals: What to choose.
        table: The steps.
        slots: The transitions, of episodes that have ended; each has a goal after its own step.
        plan_of: Makes the plan of transitions at some steps of a table.
        rng: Draws.
    """
    n = int(goals.n_sampled_goal)
    # The rest of the share is a probability, so that batches of one have their share too.
    k = (len(slots) * n + int(rng.integers(n + 1))) // (n + 1)
    rows = np.sort(rng.permutation(len(slots))[:k])
    slots = slots[rows]
    links = table.gathered_links(slots)
    lengths = table.episodes.length[links["episode"]]
    first = links["t"].astype(np.int64) if goals.strategy == "future" else np.zeros(k, np.int64)
    if goals.strategy == "final":
        ts = lengths - 1
    else:
        ts = first + (rng.random(k) * (lengths - first)).astype(np.int64)
    if not k:
        return ChosenGoals(rows, table, plan_of(table, slots))
    there, chosen = table.steps_at(slots, ts)
    found = np.flatnonzero(chosen != NONE)
    plan = plan_of(there, chosen[found])
    if len(found) == k and plan.accepted.all():
        return ChosenGoals(rows, there, plan)
    # A place that is uniform over all, and uniform over those of the steps that can be chosen if
    # its own cannot, is uniform over these.
    missing = np.delete(np.arange(k), found[plan.accepted])
    _, one_of_each, of = np.unique(
        links["episode"][missing], return_index=True, return_inverse=True
    )
    episodes, steps_of = table.episode_steps(slots[missing[one_of_each]])
    ts_of = [
        episodes.gathered_links(steps[plan_of(episodes, steps).accepted])["t"] for steps in steps_of
    ]
    for row, number in zip(missing.tolist(), of.tolist(), strict=True):
        can_be = ts_of[number][ts_of[number] >= first[row]]
        ts[row] = can_be[-1 if goals.strategy == "final" else int(rng.integers(len(can_be)))]
    there, chosen = table.steps_at(slots, ts)
    return ChosenGoals(rows, there, plan_of(there, chosen))


class _Rows(Mapping[str, Any]):
    """Some rows of the arrays of a batch; an array is copied when it is read."""

    def __init__(self, batch: Mapping[str, Any], rows: Integers) -> None:
        self._batch, self._rows = batch, rows

    def __getitem__(self, name: str) -> Any:
        array = self._batch[name]
        return None if array is None else array[self._rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch)

    def __len__(self) -> int:
        return len(self._batch)


def reward_goals(goals: HindsightGoals, batch: Batch, gamma: float) -> None:
    """Put the rewards for the new goals into a batch, and `terminated` and `discount`.

    Args:
        goals: Has the function that computes them.
        batch: The batch, with the new goals.
        gamma: Discount of a step.

    Raises:
        ArgumentError: The function returned something else.
    """
    rows = np.flatnonzero(batch.info[RELABELLED])
    if not len(rows):
        return
    of_rows = _Rows(batch, rows)
    result = goals.reward_fn(
        of_rows[NEXT + goals.achieved_goal], of_rows[goals.desired_goal], of_rows
    )
    rewards, terminated = result, None
    if isinstance(result, tuple):
        if len(result) != 2:
            raise _refused(result, len(rows))
        rewards, terminated = result
    batch["reward"][rows] = _checked_rewards(rewards, len(rows))
    if terminated is not None:
        ends = _checked_ends(terminated, len(rows))
        batch["terminated"][rows] = ends
        batch["discount"][rows] = np.where(ends, 0.0, gamma)


def _checked_rewards(values: Any, n: int) -> NDArray[np.float32]:
    rewards = _array(values)
    if rewards is None or rewards.shape != (n,):
        raise _refused(values, n)
    with np.errstate(over="ignore"):
        as_float32 = rewards.astype(np.float32)
    if not np.isfinite(as_float32).all():
        row = int(np.flatnonzero(~np.isfinite(as_float32))[0])
        raise ArgumentError(
            f"reward_fn of HindsightGoals returned the reward {rewards[row]} in row {row} of {n}; "
            f"rewards are finite numbers of float32"
        )
    return as_float32


def _checked_ends(values: Any, n: int) -> Flags:
    ends = _array(values)
    if ends is None or ends.shape != (n,) or not np.isin(ends, (0, 1)).all():
        raise _refused(values, n, "terminated, ")
    return ends.astype(bool)


def _array(values: Any) -> NDArray[Any] | None:
    try:
        array = np.asarray(values)
    except Exception:
        return None
    return array if array.dtype.kind in "biuf" else None


def _refused(values: Any, n: int, what: str = "") -> ArgumentError:
    array = None if isinstance(values, tuple) else _array(values)
    kind = shown(values) if array is None else f"{array.dtype} of shape {array.shape}"
    if isinstance(values, tuple):
        kind = f"a tuple of {len(values)}"
    return ArgumentError(
        f"reward_fn of HindsightGoals returns {_EXPECTED.format(n=n)}; {what}got {kind}"
    )
