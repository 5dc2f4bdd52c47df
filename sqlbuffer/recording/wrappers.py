"""Gymnasium wrappers that store steps; this module is imported on first use."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset as AutoresetWrapper

from sqlbuffer.checks import refused
from sqlbuffer.display import shown
from sqlbuffer.errors import BufferConfigError, FieldError
from sqlbuffer.recording.block_recorder import BlockRecorder
from sqlbuffer.recording.recorder import (
    Autoreset,
    Recorder,
    RecordOptions,
    StepTarget,
    Writing,
    environment_fields,
)
from sqlbuffer.recording.step_recorder import StepRecorder
from sqlbuffer.recording.step_values import ParallelValues, SingleValues, StepValues, VectorValues
from sqlbuffer.spaces import OF_ONE_AGENT, is_parallel

# Blocks of this few environments take longer to write than their single steps.
FEW_ENVS = 8


def recorded_env(env: Any, buffer: StepTarget, writing: Writing, options: RecordOptions) -> Any:
    """Return an environment that behaves as `env` and stores its steps."""
    is_vector, of_agents = isinstance(env, VectorEnv), is_parallel(env)
    if not is_vector and not of_agents and not isinstance(env, gymnasium.Env):
        raise refused(env, "env", "a gymnasium environment, such as gymnasium.make('CartPole-v1')")
    if of_agents and (options.info_fields or options.reward_field):
        raise FieldError(OF_ONE_AGENT)
    fields = environment_fields(env, buffer.fields, buffer.observation_fields, options)

    def recorder(n_envs: int, autoreset: Autoreset) -> Recorder:
        if n_envs <= FEW_ENVS:
            return StepRecorder(writing, buffer.flush, fields, n_envs, autoreset)
        return BlockRecorder(writing.vector(n_envs), fields, autoreset)

    if of_agents:
        return RecordParallelEnv(env, recorder(1, "disabled"), ParallelValues(env, fields, options))
    if is_vector:
        of_many = recorder(env.num_envs, _autoreset_of_vector(env))
        return RecordVectorEnv(env, of_many, VectorValues(env, fields, options))
    return RecordEnv(env, recorder(1, _autoreset_of_one(env)), SingleValues(env, fields, options))


def _autoreset_of_vector(env: Any) -> Autoreset:
    mode = env.metadata.get("autoreset_mode")
    try:
        return cast(Autoreset, AutoresetMode(mode).name.lower())
    except ValueError:
        raise FieldError(
            f"the vector environment does not say when it resets: its metadata['autoreset_mode'] "
            f"is {mode!r}; set it to a gymnasium.vector.AutoresetMode"
        ) from None


def _autoreset_of_one(env: Any) -> Autoreset:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, AutoresetWrapper):
            return "next_step"
        env = env.env
    return "disabled"


class _Records:
    """The part that the wrappers share."""

    env: Any
    _is_closed = False
    _recorder: Recorder
    _values: StepValues

    def __init__(self, env: Any, recorder: Recorder, values: StepValues) -> None:
        super().__init__(env)  # type: ignore[call-arg]
        self._recorder, self._values = recorder, values

    @property
    def model_version(self) -> int | None:
        """Version of the model that acts; it holds for the episodes that begin from now on."""
        return self._recorder.model_version

    @model_version.setter
    def model_version(self, version: int | None) -> None:
        self._recorder.model_version = version

    @property
    def session_id(self) -> str | None:
        """The training session of the episodes that begin from now on."""
        return self._recorder.session_id

    @session_id.setter
    def session_id(self, session_id: str | None) -> None:
        self._recorder.session_id = session_id

    @property
    def spec(self) -> Any:
        """The spec of the environment inside; environments made from it are not recorded."""
        return self.env.spec

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment; an episode in its middle ends as truncated."""
        self._check_open()
        is_reset = self._values.reset_mask(options)
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except BaseException:
            self._recorder.cut()  # there is no going on, and the steps so far are good
            raise
        with self._recorder.aborting():
            self._recorder.reset(self._values.observed(observation, info, is_reset), is_reset)
        return observation, info

    def step(self, action: Any) -> Any:
        """Take a step and store it."""
        self._check_open()
        self._recorder.wait()  # while nothing is lost
        with self._recorder.aborting():
            taken = deepcopy(action)  # an environment may change it
            acts = self._recorder.acts
            result = self.env.step(action)
            after, info, values = result[0], result[-1], self._values
            self._recorder.step(
                values.taken(taken, result, acts),
                values.observed(after, info, acts),
                values.outcome(result),
                lambda i: values.final(info, i),
            )
        return result

    def close(self, **options: Any) -> Any:
        """End open episodes as truncated, store all that waits and close the environment."""
        self._is_closed = True
        try:
            self._recorder.close()
        finally:
            closed = self.env.close(**options)
        return closed

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BufferConfigError(
                "this recorded environment was closed and stores nothing more; use the "
                "environment inside it, or record() it again"
            )


class RecordEnv(_Records, gymnasium.Wrapper):  # type: ignore[misc]
    """An environment whose steps are stored; `ReplayBuffer.record` makes one."""


class RecordVectorEnv(_Records, VectorWrapper):  # type: ignore[misc]
    """A vector environment whose steps are stored; `ReplayBuffer.record` makes one."""


class _Inside:
    """Holds an environment that gymnasium has no wrapper for."""

    def __init__(self, env: Any) -> None:
        self.env = env


class RecordParallelEnv(_Records, _Inside):
    """A parallel environment of PettingZoo whose steps are stored; `ReplayBuffer.record` makes one.

    A step is stored once for all agents. An agent that does not act has zeros, and False in its
    mask.
    """

    def step(self, actions: Any) -> Any:
        """Take a step and store it."""
        if not self.env.agents:
            return self.env.step(actions)  # as the environment does after the end
        if not isinstance(actions, Mapping) or actions.keys() != set(self.env.agents):
            raise FieldError(
                f"the actions are a dict with one of each agent that is there "
                f"({', '.join(map(str, self.env.agents))}), got {shown(actions)}"
            )
        return super().step(actions)
