"""What is recorded of environments, and what recorders have in common."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import FieldSpec, takes
from sqlbuffer.spaces import ACTION, NEXT, OBSERVATION, SpaceFields, fields_from_env
from sqlbuffer.vector_writer import VectorWriter

# Values by field; those of several environments have them along the first axis.
Values = dict[str, NDArray[Any]]
Flags = NDArray[np.bool_]
FinalOf = Callable[[int], Values | None]


@dataclass(frozen=True)
class RecordOptions:
    """What is stored of an environment in addition to its spaces.

    Attributes:
        info_fields: Values of `info` that are stored.
        reward_field: Field of the whole reward; None: rewards are numbers.
        reward: Makes the reward of a step of the environment's reward; None: it is that.
    """

    info_fields: tuple[str, ...] = ()
    reward_field: str | None = None
    reward: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class EnvironmentFields:
    """The fields of a step, of one environment.

    Attributes:
        observation: Where each field is found in an observation.
        action: Where each field is found in an action.
        infos: Values of `info`: those that belong to the observation that they come with, and those
            that belong to the step.
        following: The observation fields that the buffer has once more, as `next_<name>`.
        final: Those that are kept of an episode's final observation.
        specs: The fields of the buffer.
    """

    observation: SpaceFields
    action: SpaceFields
    infos: tuple[tuple[str, ...], tuple[str, ...]]
    following: tuple[str, ...]
    final: tuple[str, ...]
    specs: Mapping[str, FieldSpec]


def environment_fields(
    env: Any, specs: Mapping[str, FieldSpec], final: tuple[str, ...], options: RecordOptions
) -> EnvironmentFields:
    """Return how an environment's steps fit a buffer.

    Args:
        env: The environment.
        specs: The fields of the buffer.
        final: Its observation fields.
        options: What else is stored.

    Raises:
        FieldError: They do not.
    """
    declared = fields_from_env(env, next_observation=True)
    observed = declared["spaces"].fields_of(OBSERVATION)
    with_observation = tuple(name for name in options.info_fields if name in final)
    of_observation = (*declared["observation_fields"], *with_observation)
    env_fields = EnvironmentFields(
        observed,
        declared["spaces"].fields_of(ACTION),
        (with_observation, tuple(name for name in options.info_fields if name not in final)),
        tuple(name for name in of_observation if NEXT + name in specs),
        final,
        specs,
    )
    chosen = [*options.info_fields, *([options.reward_field] if options.reward_field else [])]
    wrong = _differences(declared, chosen, env_fields)
    if wrong:
        option = ", next_observation=True" if env_fields.following else ""
        raise FieldError(
            f"the buffer does not have the fields of the environment ({'; '.join(wrong)}); make "
            f"one with ReplayBuffer(url, **fields_from_env(env{option}))"
        )
    return env_fields


def _differences(
    declared: Mapping[str, Any], chosen: Sequence[str], env_fields: EnvironmentFields
) -> list[str]:
    """Return the reasons why steps of an environment cannot be stored."""
    lines = []
    specs, fields, observed = env_fields.specs, declared["fields"], declared["observation_fields"]
    repeated = [NEXT + name for name in env_fields.following]
    names = [name for name in fields if name not in {NEXT + name for name in observed}]
    for name in (*names, *(name for name in repeated if name in fields)):
        expected = FieldSpec.parse(name, fields[name])
        if name not in specs:
            lines.append(f"{name!r} is missing: {expected}")
        elif not takes(specs[name], expected):
            lines.append(f"{name!r} is {specs[name]}, and the environment has {expected}")
    lines += [
        f"{name!r} is missing: declare it, as fields_from_env(env, info_fields=.., "
        f"reward_field=..) does"
        for name in chosen
        if name not in specs
    ]
    lines += [
        f"the environment has no {name!r}, which has no default; if info has it, pass "
        f"info_fields=[{name!r}] to record()"
        for name, spec in specs.items()
        if name not in (*names, *repeated, *chosen) and spec.default is None
    ]
    lines += [
        f"the environment does not have the observation field {name!r}; if info has it, pass "
        f"info_fields=[{name!r}] to record()"
        for name, spec in specs.items()
        if name in env_fields.final
        and name not in (*observed, *env_fields.infos[0])
        and (spec.default is not None or name in names)
    ]
    return lines


# When an environment whose episode has ended is reset: by the step after, by the same step, or not
# at all.
Autoreset = Literal["next_step", "same_step", "disabled"]


@dataclass(frozen=True)
class Writing:
    """How the steps of recorded environments are written.

    Attributes:
        begin: Begins an episode that is written step by step.
        wait: Waits until a number of steps may be pending.
        vector: Makes the writer of a number of environments that are written together.
        model_version: The first version.
        session_id: The first session.
    """

    begin: Callable[..., EpisodeWriter]
    wait: Callable[[int], None]
    vector: Callable[[int], VectorWriter]
    model_version: int | None
    session_id: str | None


class StepTarget(Protocol):
    """A buffer that stores the steps of a recorded environment."""

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """The declared fields of a step by name."""

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """The fields that an observation is made of."""

    def flush(self) -> None:
        """Store the waiting steps of open episodes."""


class Recorder(Protocol):
    """Stores the steps of environments; use it from one thread.

    Attributes:
        model_version: Version of the model that acts, for the episodes that begin later.
        session_id: Training session, in the same way.
    """

    model_version: int | None
    session_id: str | None

    @property
    def acts(self) -> Flags:
        """True for each environment that is in an episode, so that its next step is stored."""

    def reset(self, observations: Values, is_reset: Flags) -> None:
        """Start again for environments that were reset; their open episodes are cut.

        Args:
            observations: Observations after the reset.
            is_reset: True for each environment that was reset.
        """

    def wait(self) -> None:
        """Wait until the next step of each environment may be pending."""

    def step(
        self, taken: Values, after: Values, outcome: tuple[Any, Any, Any], final: FinalOf
    ) -> None:
        """Store a step of each environment that was in an episode.

        Args:
            taken: Action of each environment, and other values of the step.
            after: Observation of each environment after the action.
            outcome: Arrays or lists of rewards, terminated and truncated.
            final: The final observation of an environment that was reset by the step that ended it.
        """

    def cut(self) -> None:
        """End every open episode as truncated."""

    def aborting(self) -> AbstractContextManager[None]:
        """Abort every open episode when the block raises: a step of it may be missing."""

    def close(self) -> None:
        """End every open episode as truncated, and store all that waits.

        Raises:
            StorageError: It could not be stored, and waits.
        """


def no_final_observation() -> FieldError:
    """Return the error for an environment that does not say how an episode ended."""
    return FieldError(
        "the environment gave no final observation for 'next_obs'; make a buffer without it, of "
        "fields_from_env(env)"
    )
