"""Store the steps of one or several environments that take their steps together."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.fields import FieldSpec, takes
from sqlbuffer.spaces import ACTION, NEXT, OBSERVATION, SpaceFields, fields_from_env
from sqlbuffer.vector_writer import VectorWriter

# Values by field; those of several environments have them along the first axis.
Values = dict[str, NDArray[Any]]


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
# Makes the writer of a number of environments.
MakeWriter = Callable[[int], VectorWriter]


class StepTarget(Protocol):
    """A buffer that stores the steps of a recorded environment."""

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """The declared fields of a step by name."""

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """The fields that an observation is made of."""


class Recorder:
    """Stores the steps of environments; use it from one thread.

    Args:
        writer: Writes the steps.
        env_fields: Fields of a step of one environment.
        autoreset: Gymnasium's mode of automatic resets.

    Attributes:
        writer: The writer.
    """

    def __init__(
        self, writer: VectorWriter, env_fields: EnvironmentFields, autoreset: Autoreset
    ) -> None:
        self.writer, self._env_fields, self._autoreset = writer, env_fields, autoreset
        # The observations before the next step; those of environments that do not act mean nothing.
        self._before: Values = {}
        self._acts = np.zeros(writer.n_envs, bool)  # in an episode
        self._awaits_reset = np.zeros(writer.n_envs, bool)  # which the next step is
        writer.at_end = self.close
        _recorders.add(self)

    def reset(self, observations: Values, is_reset: NDArray[np.bool_]) -> None:
        """Start again for environments that were reset; their open episodes are cut.

        Args:
            observations: Observations after the reset.
            is_reset: True for each environment that was reset.
        """
        self.cut(is_reset)
        self._start(observations, is_reset)

    @property
    def acts(self) -> NDArray[np.bool_]:
        """True for each environment that is in an episode, so that its next step is stored."""
        return self._acts

    def wait(self) -> None:
        """Wait until the next step of each environment may be pending."""
        self.writer.wait_for_room(self.writer.n_envs)

    def step(
        self,
        taken: Values,
        after: Values,
        outcome: tuple[Any, Any, Any],
        final: Callable[[int], Values | None],
    ) -> None:
        """Store a step of each environment that was in an episode.

        Args:
            taken: Action of each environment, and other values of the step.
            after: Observation of each environment after the action.
            outcome: Arrays or lists of rewards, terminated and truncated.
            final: The final observation of an environment that was reset by the step that ended it.
        """
        reward, terminated, truncated = self._outcome(*outcome)
        acts, awaited_reset = self._acts, self._awaits_reset
        ends = acts & (terminated | truncated)
        step = {**taken, "reward": reward, "terminated": terminated, "truncated": truncated}
        last, lacks_final = after, np.zeros_like(acts)
        if self._autoreset == "same_step" and ends.any():
            last, lacks_final = self._last(after, ends, final)
        for mask, observed in ((acts & ~lacks_final, last), (acts & lacks_final, None)):
            if mask.any():
                self._write({**self._before, **step}, observed, mask)
        self._acts = acts & ~ends if self._autoreset != "same_step" else acts
        self._awaits_reset = ends if self._autoreset == "next_step" else np.zeros_like(acts)
        self._start(after, self._acts | awaited_reset)

    def cut(self, chosen: NDArray[np.bool_] | None = None) -> None:
        """End open episodes as truncated: those of some environments, or all."""
        self.writer.cut(chosen, self._final(self._before))
        if chosen is None:
            chosen = np.ones_like(self._acts)
        self._acts, self._awaits_reset = self._acts & ~chosen, self._awaits_reset & ~chosen

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """Abort every open episode when the block raises: a step of it may be missing."""
        try:
            yield
        except BaseException:
            self._acts[:], self._awaits_reset[:] = False, False
            self.writer.abort_after_error()
            raise

    def close(self) -> None:
        """End every open episode as truncated, and store all that waits.

        Raises:
            StorageError: It could not be stored, and waits.
        """
        self._acts[:], self._awaits_reset[:] = False, False
        self.writer.close(self._final(self._before))

    def forget(self) -> None:
        """Forget the open episodes: in a forked child, whose parent continues them."""
        self._acts[:], self._awaits_reset[:] = False, False

    def _write(self, step: Values, after: Values | None, mask: NDArray[np.bool_]) -> None:
        following = self._env_fields.following
        if after is None and following:
            raise FieldError(
                "the environment gave no final observation for 'next_obs'; make a buffer without "
                "it, of fields_from_env(env)"
            )
        repeated = {NEXT + name: after[name] for name in following} if after else {}
        self.writer.write({**step, **repeated}, final=self._final(after), mask=mask)

    def _start(self, observations: Values, chosen: NDArray[np.bool_]) -> None:
        """Take the observations before the next steps of some environments."""
        if self._before and not chosen.all():
            observations = {
                name: _where(chosen, values, self._before[name])
                for name, values in observations.items()
            }
        self._before = observations
        self._acts = self._acts | chosen

    def _last(
        self, after: Values, ends: NDArray[np.bool_], final: Callable[[int], Values | None]
    ) -> tuple[Values, NDArray[np.bool_]]:
        """Return the observations after the steps, with the final ones of ended episodes; and True
        for each of these that is not known.
        """
        last = {name: values.copy() for name, values in after.items()}
        is_unknown = np.zeros_like(ends)
        for i in np.flatnonzero(ends).tolist():
            observed = final(i)
            is_unknown[i] = observed is None
            for name, value in (observed or {}).items():
                if last[name].dtype.kind == "U":  # as long as the longest text in it
                    last[name] = last[name].astype(np.promote_types(last[name].dtype, value.dtype))
                last[name][i] = value
        return last, is_unknown

    def _final(self, observations: Values | None) -> Values | None:
        names = self._env_fields.final
        return {name: observations[name] for name in names} if observations and names else None

    def _outcome(
        self, rewards: Any, terminated: Any, truncated: Any
    ) -> tuple[Any, NDArray[np.bool_], NDArray[np.bool_]]:
        n = self.writer.n_envs
        flags = (np.asarray(values, bool).reshape(n) for values in (terminated, truncated))
        return _numbers(rewards, n), *flags


def _where(chosen: NDArray[np.bool_], values: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return the values of chosen environments, and the others of the rest."""
    return np.where(chosen.reshape(-1, *[1] * (values.ndim - 1)), values, others)


def _numbers(rewards: Any, n: int) -> Any:
    """Return rewards as numbers; environments give arrays of one and tensors as well."""
    if rewards is None or all(reward is None for reward in rewards):
        return None
    array = np.asarray(rewards)
    if array.dtype.kind in "iufb" and array.size == n:
        return array.reshape(n).astype(np.float64)
    return rewards


_recorders: "WeakSet[Recorder]" = WeakSet()


def _forget_all() -> None:
    for recorder in _recorders:
        recorder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
