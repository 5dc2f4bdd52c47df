"""The forms of batches: steps, transitions, windows and trajectories, with their checks."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.hindsight import HindsightGoals, reward_goals
from sqlbuffer.batches.step_table import with_zeros
from sqlbuffer.checks import checked_dict, checked_instance, checked_integer, checked_names
from sqlbuffer.display import shown
from sqlbuffer.errors import ArgumentError, FieldError
from sqlbuffer.fields import BUILT_IN, ON_REQUEST, Fields
from sqlbuffer.spaces import NEXT, Structure
from sqlbuffer.steps import Batch

ENDS_NOT_TOLD = (
    "rows say neither terminated nor truncated, and there is a field 'done': pass "
    "terminal_field='done' if it means that the episode terminated, or store terminated and "
    "truncated"
)
_BUILT_IN = ("reward", "discount", "terminated", "truncated", *ON_REQUEST)

logger = logging.getLogger(__name__)
_warned: set[tuple[str, int, int]] = set()


FINAL_PREFIX, SEQUENCE = "final_", "seq_"
# The arrays of a batch have a place for each of them.
MOST_STEPS = 1_000_000
MOST_FRAMES = 1_000
FIELDS_EXAMPLE = "['obs', 'reward']"


@dataclass(frozen=True, eq=False)
class StepForm:
    """The form of single steps; made with `of`.

    Attributes:
        names: The declared fields, in order.
        built_in: Names among `reward`, `terminated`, `truncated`, `adv_t` and `v_t`.
        structure: How the fields are nested; None if they are not.
    """

    names: Sequence[str]
    built_in: Sequence[str]
    structure: Structure | None = None
    needs_episodes = needs_ends = False

    @classmethod
    def of(cls, fields: Fields, names: Sequence[str] | None = None) -> "StepForm":
        """Return the form of steps with some fields and built-in values; all by default.

        Raises:
            FieldError: Not a list of names, or an unknown one.
        """
        return cls(*checked_step_names(fields, names, "steps"), fields.structure)


@dataclass(frozen=True, eq=False)
class TransitionForm:
    """The form of transitions; made with `of`.

    Attributes:
        fields: The typed fields of the buffer.
        n_step: Maximum number of steps in a transition.
        gamma: Discount of one step.
        stack: Number of stacked frames, by field.
        terminal_field: The field that marks a terminated episode.
        sequence_fields: The fields that are given for each step of a transition.
        names: The fields of the first step.
        following: The observations after, without their prefix.
        built_in: Further values of the first step, named among `truncated`, `adv_t` and `v_t`.
        skip_single: Steps without an episode are left out instead of refused.
        relabel: Goals in hindsight; None: the goals are those that are stored.
    """

    fields: Fields
    n_step: int
    gamma: float
    stack: Mapping[str, int]
    terminal_field: str | None
    sequence_fields: Sequence[str]
    names: Sequence[str]
    following: Sequence[str]
    built_in: Sequence[str]
    skip_single: bool
    relabel: HindsightGoals | None = None

    @property
    def structure(self) -> Structure | None:
        """How the fields are nested; None if they are not."""
        return self.fields.structure

    @cached_property
    def has_next(self) -> bool:
        """True if the observations after steps are fields."""
        return self.fields.has_next

    @property
    def needs_episodes(self) -> bool:
        """True if a step without an episode has no transition."""
        return self.skip_single or self.refuses_single

    @property
    def needs_ends(self) -> bool:
        """True if only episodes that have ended are drawn."""
        return self.relabel is not None

    @property
    def refuses_single(self) -> bool:
        """True if the form cannot be made of steps without an episode, and they are not skipped."""
        return not self.skip_single and (not self.has_next or self.relabel is not None)

    @cached_property
    def n_before(self) -> int:
        """Number of steps that are needed before the first one."""
        return max(self.stack.values(), default=1) - 1

    @cached_property
    def plain_names(self) -> Sequence[str]:
        """The fields of the first step that are not stacked."""
        return [name for name in self.names if name not in self.stack]

    @cached_property
    def plain_following(self) -> Sequence[str]:
        """The fields with the observations after that are not stacked."""
        prefix = NEXT if self.has_next else ""
        return [prefix + name for name in self.following if name not in self.stack]

    @cached_property
    def values(self) -> Sequence[str]:
        """The late values of the first step, `adv_t` and `v_t`."""
        return [name for name in self.built_in if name in ON_REQUEST]

    @cached_property
    def needs_ends_alone(self) -> bool:
        """True if fields of the first and the last step are needed, and of none between them."""
        stored_sequences = {*self.sequence_fields} - {"reward", *ON_REQUEST}
        return self.n_step > 1 and not (
            self.stack or stored_sequences or self.terminal_field is not None
        )

    @classmethod
    def of(
        cls,
        fields: Fields,
        n_step: int = 1,
        gamma: float = 0.99,
        *,
        names: Sequence[str] | None = None,
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        sequence_fields: Sequence[str] = (),
        skip_single: bool = False,
        relabel: HindsightGoals | None = None,
    ) -> "TransitionForm":
        """Return the form of transitions; see `ReplayBuffer.sample_transitions`.

        Args:
            fields: The typed fields of the buffer.
            n_step: Maximum number of steps in a transition.
            gamma: Discount of one step.
            names: Names of the fields to return; all by default.
            stack: Number of stacked frames, by field.
            terminal_field: The field that marks a terminated episode.
            sequence_fields: The fields that are given for each step of a transition.
            skip_single: Leave steps without an episode out instead of refusing them.
            relabel: Goals in hindsight.

        Raises:
            FieldError: No observation field, a stack of one of varying length, or an unknown name.
            ArgumentError: `relabel` is invalid, or `n_step` is above 1 with it.
        """
        check_observations(fields)
        stacked = checked_stack(fields, stack)
        terminal = checked_terminal_field(fields, terminal_field)
        sequences = checked_sequence_fields(fields, sequence_fields)
        if relabel is not None:
            check_relabel(fields, relabel, n_step, stacked)
            if names is not None:
                names = (*checked_names(names, "fields", FIELDS_EXAMPLE), *_goals(relabel))
        step_names, following, built_in = _chosen(fields, names)
        return cls(
            fields, n_step, gamma, stacked, terminal, sequences, step_names, following, built_in,
            skip_single, relabel,
        )  # fmt: skip

    @property
    def without_goals(self) -> "TransitionForm":
        """The same form without goals in hindsight."""
        return self if self.relabel is None else replace(self, relabel=None)

    @cached_property
    def of_goals(self) -> "TransitionForm":
        """The form of the transitions after which goals were achieved."""
        assert self.relabel is not None
        achieved = [self.relabel.achieved_goal]
        return replace(self, stack={}, names=[], following=achieved, built_in=[])


@dataclass(frozen=True, eq=False)
class WindowForm:
    """The form of windows; made with `of`.

    Attributes:
        length: Steps to learn from.
        burn_in: Steps before them.
        stride: Distance in steps between two windows of an episode.
        names: The declared fields of each step.
        built_in: Names among `reward`, `terminated`, `truncated`, `adv_t` and `v_t`.
        stack: Number of stacked frames, by field.
        structure: How the fields are nested; None if they are not.
    """

    length: int
    burn_in: int
    stride: int
    names: Sequence[str]
    built_in: Sequence[str]
    stack: Mapping[str, int]
    structure: Structure | None = None
    needs_episodes, needs_ends = True, False

    @cached_property
    def n_frames(self) -> int:
        """Maximum number of frames that are needed of each step."""
        return max(self.stack.values(), default=1)

    @cached_property
    def n_before(self) -> int:
        """Number of steps that are needed before the first one to learn from."""
        return self.burn_in + self.n_frames - 1

    def padded(self, arrays: Mapping[str, NDArray[Any]], burn_in: int) -> dict[str, NDArray[Any]]:
        """Return arrays of fewer steps as those of windows, with zeros at the others.

        Args:
            arrays: Arrays of shape (b, n, *shape); also lengths of values, of shape (b, n).
            burn_in: Number of their steps before the one at which a window is placed.
        """
        n, before = self.burn_in + self.length, self.burn_in - burn_in
        return {name: with_zeros(values, n, before) for name, values in arrays.items()}

    @classmethod
    def of(
        cls,
        fields: Fields,
        length: int,
        burn_in: int = 0,
        stride: int = 1,
        *,
        names: Sequence[str] | None = None,
        stack: Mapping[str, int] | None = None,
    ) -> "WindowForm":
        """Return the form of windows.

        Args:
            fields: The typed fields of the buffer.
            length: Steps to learn from.
            burn_in: Steps before them.
            stride: Distance in steps between two windows of an episode.
            names: Names among the fields, `reward`, `terminated` and `truncated`; all by default.
            stack: Number of stacked frames, by field.

        Raises:
            FieldError: An unknown field.
            ArgumentError: A length or stride below 1, or a burn-in below 0.
        """
        check_window(length, burn_in, stride)
        step_names, built_in = checked_step_names(fields, names, "windows")
        stacked = {
            name: k for name, k in checked_stack(fields, stack).items() if name in step_names
        }
        sizes = (int(length), int(burn_in), int(stride))
        return cls(*sizes, step_names, built_in, stacked, fields.structure)


@dataclass(frozen=True, eq=False)
class TrajectoryForm:
    """The form of trajectories; made with `of`.

    Attributes:
        names: The declared fields of each step.
        built_in: Names among `reward`, `terminated`, `truncated`, `adv_t` and `v_t`.
        finals: The observations that are also returned as final ones.
        include_partial: Include episodes that are open or have lost steps.
        structure: How the fields are nested; None if they are not.
    """

    names: Sequence[str]
    built_in: Sequence[str]
    finals: Sequence[str]
    include_partial: bool
    structure: Structure | None = None
    needs_episodes, needs_ends = True, False

    @classmethod
    def of(
        cls, fields: Fields, *, names: Sequence[str] | None = None, include_partial: bool = False
    ) -> "TrajectoryForm":
        """Return the form of trajectories.

        Args:
            fields: The typed fields of the buffer.
            names: Names among these, `reward`, `terminated` and `truncated`; all by default.
            include_partial: Include episodes that are open or have lost steps.

        Raises:
            FieldError: An unknown field, or one with the name of a final observation.
        """
        step_names, built_in = checked_step_names(fields, names, "trajectories")
        finals = [name for name in fields.observations if name in step_names]
        for name in finals:
            if FINAL_PREFIX + name in fields.specs:
                raise FieldError(
                    f"field '{FINAL_PREFIX}{name}' has the name of a final observation in a "
                    f"trajectory: leave out {shown(name)} or that field with fields=[...]"
                )
        return cls(step_names, built_in, finals, include_partial, fields.structure)


Form = StepForm | TransitionForm | WindowForm | TrajectoryForm


def needs_values(form: Form) -> bool:
    """Return True if the advantages or values of steps are wanted."""
    sequences = form.sequence_fields if isinstance(form, TransitionForm) else ()
    return not {*form.built_in, *sequences}.isdisjoint(ON_REQUEST)


def put_rewards(form: Form, batch: Batch) -> None:
    """Put the rewards for goals in hindsight into a batch, if its form has them.

    It calls a function of the user, so it is called without a lock or a transaction.

    Raises:
        ArgumentError: The function returned something else than rewards.
    """
    if isinstance(form, TransitionForm) and form.relabel is not None:
        reward_goals(form.relabel, batch, form.gamma)


def no_successor(form: "TransitionForm", seq: int) -> FieldError:
    """Return the error for a step without an episode, of which a form cannot be made.

    If the observations after are not fields, drawing terminal steps alone, which need none, would
    bias the batches.
    """
    if form.has_next:
        return FieldError(
            f"step {seq} has no episode, so it has no goals in hindsight: store steps in episodes "
            f"(store_episode, episode(), record, or extend(.., episode_id=..)), or pass "
            f"skip_single=True to draw from the episodes alone"
        )
    return FieldError(
        f"step {seq} has no episode, so no step follows it: store steps in episodes "
        f"(store_episode, episode(), record, or extend(.., episode_id=..)), declare the field "
        f"next_obs, or pass skip_single=True to draw from the episodes alone"
    )


def warn_of_single_steps(database: str, buffer_id: int, n_step: int) -> None:
    """Warn once that steps without an episode are transitions of one step."""
    if n_step > 1 and (database, buffer_id, n_step) not in _warned:
        _warned.add((database, buffer_id, n_step))
        logger.warning(
            "n_step=%d: steps without an episode are transitions of one step, with their own "
            "next_obs; batch.info['n_steps'] shows them",
            n_step,
        )


def _chosen(fields: Fields, chosen: Sequence[str] | None) -> tuple[list[str], list[str], list[str]]:
    """Return the fields of the first step, the observations after, and further built-in values."""
    observations = fields.observations
    following = [NEXT + name for name in observations]
    step_names = [name for name in fields.specs if name not in following]
    if chosen is None:
        return step_names, list(observations), []
    names = checked_names(chosen, "fields", FIELDS_EXAMPLE)
    for name in names:
        if name not in (*step_names, *following, *_BUILT_IN):
            known = ", ".join((*step_names, *following, *_BUILT_IN))
            raise FieldError(f"unknown field {shown(name)}; transitions have {known}")
    after = [name for name in observations if name in names or NEXT + name in names]
    more = [name for name in ("truncated", *ON_REQUEST) if name in names]
    return [name for name in step_names if name in names], after, more


def checked_stack(fields: Fields, stack: Mapping[str, int] | None) -> dict[str, int]:
    """Return the number of stacked frames, by field.

    Raises:
        FieldError: Not a dict of fields of fixed shape and numbers from 1 to `MOST_FRAMES`.
    """
    if stack is None:
        return {}
    for name, k in checked_dict(stack, "stack", "{'obs': 4}", error=FieldError).items():
        _check_fixed(fields, name, "stack")
        is_integer = isinstance(k, (int, np.integer)) and not isinstance(k, bool)
        if not is_integer or not 1 <= k <= MOST_FRAMES:
            raise FieldError(
                f"stack: field {shown(name)} needs a number of frames from 1 to {MOST_FRAMES}, "
                f"got {shown(k)}"
            )
    return {name: int(k) for name, k in stack.items()}


def check_relabel(
    fields: Fields, relabel: HindsightGoals, n_step: int, stack: Mapping[str, int]
) -> None:
    """Raise unless transitions can have goals in hindsight.

    Raises:
        ArgumentError: Not goals, or several steps.
        FieldError: A goal is not an observation field, the two differ, or one is stacked.
    """
    example = "HindsightGoals(reward_fn=...), or None"
    checked_instance(relabel, "relabel", HindsightGoals, example)
    if n_step > 1:
        raise ArgumentError(
            f"relabel goes with n_step=1, got n_step={n_step}: the rewards of the steps between "
            f"are those for the stored goal"
        )
    for argument, name in zip(("achieved_goal", "desired_goal"), _goals(relabel), strict=True):
        if name not in fields.observations:
            raise FieldError(
                f"relabel: the buffer has no observation field {shown(name)}; its observation "
                f"fields are {', '.join(fields.observations)}: give the name of the goal with "
                f"HindsightGoals({argument}=...)"
            )
        _check_fixed(fields, name, "relabel")
        if name in stack:
            raise FieldError(
                f"relabel: the goal {shown(name)} is not stacked; leave it out of stack"
            )
    achieved, desired = (fields.specs[name] for name in _goals(relabel))
    if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        raise FieldError(
            f"relabel: an achieved goal replaces the desired one, so they have one dtype and "
            f"shape; {shown(relabel.achieved_goal)} is {achieved}, and "
            f"{shown(relabel.desired_goal)} is {desired}"
        )


def _goals(relabel: HindsightGoals) -> tuple[str, str]:
    return relabel.achieved_goal, relabel.desired_goal


def checked_terminal_field(fields: Fields, name: str | None) -> str | None:
    """Return the field that marks terminal steps.

    Raises:
        FieldError: Not a declared number or boolean.
    """
    if name is None:
        return None
    _check_fixed(fields, name, "terminal_field")
    spec = fields.specs[name]
    if spec.shape or spec.dtype.kind not in "biuf":
        raise FieldError(
            f"terminal_field is a boolean or a number, and field {shown(name)} is {spec}"
        )
    return name


def checked_sequence_fields(fields: Fields, names: Sequence[str]) -> list[str]:
    """Return the fields that are given for each step.

    Raises:
        FieldError: Not a list of fields, or of `reward`, `adv_t` and `v_t`.
    """
    sequence_names = list(dict.fromkeys(checked_names(names, "sequence_fields", "['reward']")))
    for name in sequence_names:
        if name not in ("reward", *ON_REQUEST):
            _check_known(fields, name, "sequence_fields")
        if f"seq_{name}" in fields.specs:
            raise FieldError(f"sequence_fields: field 'seq_{name}' is declared; rename it")
    return sequence_names


def checked_step_names(
    fields: Fields, names: Sequence[str] | None, things: str
) -> tuple[list[str], list[str]]:
    """Return the requested declared fields and built-in ones; all by default.

    Raises:
        FieldError: Not a list of names, or an unknown one.
    """
    if names is None:
        return list(fields.specs), list(BUILT_IN)
    chosen = checked_names(names, "fields", FIELDS_EXAMPLE)
    for name in chosen:
        if name not in (*fields.specs, *BUILT_IN, *ON_REQUEST):
            known = ", ".join((*fields.specs, *BUILT_IN, *ON_REQUEST))
            raise FieldError(f"unknown field {shown(name)}; {things} have {known}")
    return (
        [name for name in fields.specs if name in chosen],
        [name for name in (*BUILT_IN, *ON_REQUEST) if name in chosen],
    )


def check_window(length: Any, burn_in: Any, stride: Any) -> None:
    """Raise ArgumentError unless length and stride are at least 1 and the burn-in at least 0."""
    checked_integer(length, "length", 1, MOST_STEPS)
    checked_integer(burn_in, "burn_in", 0, MOST_STEPS)
    checked_integer(stride, "stride", 1, MOST_STEPS)


def check_observations(fields: Fields) -> None:
    """Raise FieldError unless there are observation fields."""
    if not fields.observations:
        raise FieldError(
            "transitions need an observation field, and the buffer was made without: make it with "
            "one named obs, or with ReplayBuffer(.., observation_fields=[...])"
        )


def _check_known(fields: Fields, name: str, what: str) -> None:
    if not isinstance(name, str) or name not in fields.specs:
        raise FieldError(
            f"{what}: unknown field {shown(name)}; the buffer has "
            f"{', '.join(fields.specs) or 'none'}"
        )


def _check_fixed(fields: Fields, name: str, what: str) -> None:
    _check_known(fields, name, what)
    if fields.specs[name].is_variable:
        raise FieldError(f"{what}: field {shown(name)} has a length that varies")
