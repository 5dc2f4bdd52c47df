"""Store the steps of one or several environments that take their steps together."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import FieldError, SQLBufferError
from sqlbuffer.fields import FieldSpec, takes
from sqlbuffer.processes import at_process_end
from sqlbuffer.spaces import ACTION, OBSERVATION, SpaceFields, fields_from_env

logger = logging.getLogger("sqlbuffer")

# Values by field; those of several environments have them along the first axis.
Values = dict[str, NDArray[Any]]

NEXT = "next_"


@dataclass(frozen=True)
class EnvironmentFields:
    """The fields of a step, of one environment.

    Attributes:
        observation: Where each field is found in an observation.
        action: Where each field is found in an action.
        following: The observation fields that the buffer has once more, as `next_<name>`.
        final: Those that are kept of an episode's final observation.
    """

    observation: SpaceFields
    action: SpaceFields
    following: tuple[str, ...]
    final: tuple[str, ...]


def environment_fields(
    env: Any, specs: Mapping[str, FieldSpec], final: tuple[str, ...]
) -> EnvironmentFields:
    """Return how an environment's steps fit a buffer.

    Args:
        env: The environment.
        specs: The fields of the buffer.
        final: Its observation fields.

    Raises:
        FieldError: They do not.
    """
    declared = fields_from_env(env, next_observation=True)
    observed = declared["spaces"].fields_of(OBSERVATION)
    env_fields = EnvironmentFields(
        observed,
        declared["spaces"].fields_of(ACTION),
        tuple(name for name in observed if NEXT + name in specs),
        final,
    )
    wrong = _differences(declared["fields"], specs, env_fields)
    if wrong:
        option = ", next_observation=True" if env_fields.following else ""
        raise FieldError(
            f"the buffer does not have the fields of the environment ({'; '.join(wrong)}); make "
            f"one with ReplayBuffer(url, **fields_from_env(env{option}))"
        )
    return env_fields


def _differences(
    declared: Mapping[str, Any], specs: Mapping[str, FieldSpec], env_fields: EnvironmentFields
) -> list[str]:
    """Return the reasons why steps of an environment cannot be stored."""
    lines = []
    names = (
        *env_fields.observation,
        *env_fields.action,
        *(NEXT + name for name in env_fields.following),
    )
    for name in names:
        expected = FieldSpec.parse(name, declared[name])
        if name not in specs:
            lines.append(f"{name!r} is missing: {expected}")
        elif not takes(specs[name], expected):
            lines.append(f"{name!r} is {specs[name]}, and the environment has {expected}")
    lines += [
        f"the environment has no {name!r}, which has no default"
        for name, spec in specs.items()
        if name not in names and spec.default is None
    ]
    lines += [
        f"the observation field {name!r} is none of the environment's"
        for name in env_fields.final
        if name in specs and name not in env_fields.observation
    ]
    return lines


Begin = Callable[..., EpisodeWriter]
# When an environment whose episode has ended is reset: by the step after, by the same step, or not
# at all.
Autoreset = Literal["next_step", "same_step", "disabled"]


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


class _Lane:
    """One environment: its open episode and its last observation."""

    def __init__(self, env_fields: EnvironmentFields) -> None:
        self._env_fields = env_fields
        self.episode: EpisodeWriter | None = None
        # Observation before the next step; None if no episode can continue.
        self.before: Values | None = None
        self.awaits_reset = False  # which its next step is

    def start(self, observation: Values | None) -> None:
        self.before, self.awaits_reset = observation, False

    def write(self, begin: Callable[[], EpisodeWriter], step: dict[str, Any]) -> None:
        if self.episode is None:
            self.episode = begin()
        self.episode.hold(**self.before or {}, **step)

    def following(self, after: Values | None) -> Values:
        """Return the fields that repeat the observation after the step."""
        if after is None and self._env_fields.following:
            raise FieldError(
                "the environment gave no final observation for 'next_obs'; make a buffer without "
                "it, of fields_from_env(env)"
            )
        return {NEXT + name: after[name] for name in self._env_fields.following} if after else {}

    def end(self, after: Values | None) -> None:
        if self.episode is not None:
            self.episode.finish(self._final(after))
        self.episode, self.before = None, None

    def cut(self) -> None:
        if self.episode is not None:
            self.episode.cut(self._final(self.before))
        self.episode, self.before, self.awaits_reset = None, None, False

    def abort(self) -> None:
        episode, self.episode, self.before, self.awaits_reset = self.episode, None, None, False
        if episode is not None and episode.is_open:
            try:
                episode.abort()
            except SQLBufferError as error:  # the caller must see the first error
                logger.warning("episode %r waits to be stored: %s", episode.episode_id, error)

    def _final(self, observation: Values | None) -> Values | None:
        return {name: observation[name] for name in self._env_fields.final} if observation else None


class Recorder:
    """Stores the steps of environments; use it from one thread.

    Args:
        begin: Begins an episode.
        flush: Stores the pending steps.
        wait: Waits until a number of steps may be pending.
        env_fields: Fields of a step of one environment.
        n_envs: Number of environments.
        autoreset: Gymnasium's mode of automatic resets.
    """

    def __init__(
        self,
        begin: Begin,
        flush: Callable[[], None],
        wait: Callable[[int], None],
        env_fields: EnvironmentFields,
        n_envs: int,
        autoreset: Autoreset,
    ) -> None:
        self._begin, self._flush, self._autoreset = begin, flush, autoreset
        self._wait = wait
        self._lanes = [_Lane(env_fields) for _ in range(n_envs)]
        self.model_version: int | None = None
        self.session_id: str | None = None

    def reset(self, observations: Values, is_reset: Sequence[Any] | NDArray[Any]) -> None:
        """Start again for environments that were reset; their open episodes were cut.

        Args:
            observations: Observations after the reset.
            is_reset: True for each environment that was reset.
        """
        for i, lane in enumerate(self._lanes):
            if is_reset[i]:
                lane.cut()
                lane.start(_row(observations, i))
        self._note_open()

    def wait(self) -> None:
        """Wait until the next step of each environment may be pending."""
        self._wait(len(self._lanes))

    def step(
        self,
        actions: Values,
        after: Values,
        outcome: tuple[Any, Any, Any],
        final: Callable[[int], Values | None],
    ) -> None:
        """Store a step of each environment that was in an episode.

        Args:
            actions: Action of each environment.
            after: Observation of each environment after the action.
            outcome: Arrays or lists of rewards, terminated and truncated.
            final: The final observation of an environment that was reset by the step that ended it.
        """
        for i, lane in enumerate(self._lanes):
            if lane.before is not None:
                values = [column[i] for column in outcome]
                self._step_of(lane, _row(actions, i), _row(after, i), values, partial(final, i))
            elif lane.awaits_reset:
                lane.start(_row(after, i))
        self._note_open()

    def _step_of(
        self,
        lane: _Lane,
        action: Values,
        after: Values,
        outcome: list[Any],
        final: Callable[[], Values | None],
    ) -> None:
        reward, terminated, truncated = outcome[0], bool(outcome[1]), bool(outcome[2])
        has_ended = terminated or truncated
        last = final() if has_ended and self._autoreset == "same_step" else after
        step = {
            **action,
            **lane.following(last),
            "reward": _number(reward),
            "terminated": terminated,
            "truncated": truncated,
        }
        lane.write(
            lambda: self._begin(model_version=self.model_version, session_id=self.session_id), step
        )
        if not has_ended:
            lane.start(after)
            return
        lane.end(last)
        if self._autoreset == "same_step":
            lane.start(after)
        lane.awaits_reset = self._autoreset == "next_step"

    def cut(self) -> None:
        """End every open episode as truncated."""
        with self.aborting():
            for lane in self._lanes:
                lane.cut()
        self._note_open()

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """Abort every open episode when the block raises: a step of it may be missing."""
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Mark every open episode as one that went wrong."""
        for lane in self._lanes:
            lane.abort()
        self._note_open()

    def close(self) -> None:
        """End every open episode as truncated, and store all that waits.

        Raises:
            StorageError: It could not be stored, and waits.
        """
        self.cut()
        self._flush()

    def forget(self) -> None:
        """Forget the open episodes: in a forked child, whose parent continues them."""
        for lane in self._lanes:
            lane.episode, lane.before = None, None

    def _note_open(self) -> None:
        if any(lane.episode is not None for lane in self._lanes):
            at_process_end(_end_all, priority=1)  # before what waits is stored
            _open.add(self)
        else:
            _open.discard(self)


def _row(values: Values, i: int) -> Values:
    return {name: value[i] for name, value in values.items()}


def _number(reward: Any) -> Any:
    """Return a reward as a number; environments give arrays of one and tensors as well."""
    if isinstance(reward, (float, int, np.number)) or reward is None:
        return reward
    array = np.asarray(reward)
    is_number = array.size == 1 and array.dtype.kind in "iuf"
    return array.reshape(())[()] if is_number else reward


# Recorders with an open episode, even if the program holds their wrapper no longer: when the
# process ends, the step that is held back is stored.
_open: set[Recorder] = set()


def _end_all() -> None:
    for recorder in list(_open):
        try:
            recorder.close()
        except SQLBufferError as error:
            logger.error("steps of a recorded environment were lost at the end: %s", error)


def _forget_all() -> None:
    for recorder in _open:
        recorder.forget()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
