"""Gymnasium wrappers that store steps; this module is imported on first use."""

from copy import deepcopy
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset as AutoresetWrapper
from numpy.typing import NDArray

from sqlbuffer.checks import refused
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import value_or_default
from sqlbuffer.recording.recorder import (
    Autoreset,
    EnvironmentFields,
    MakeWriter,
    RecordedValues,
    Recorder,
    StepTarget,
    Values,
    environment_fields,
)
from sqlbuffer.spaces import (
    SpaceFields,
    agent_field,
    is_parallel,
    values_of_all,
    values_of_one,
)


def recorded(env: Any, buffer: StepTarget, make_writer: MakeWriter, values: RecordedValues) -> Any:
    """Return an environment that behaves as `env` and stores its steps."""
    is_vector, of_agents = isinstance(env, VectorEnv), is_parallel(env)
    if not is_vector and not of_agents and not isinstance(env, gymnasium.Env):
        raise refused(env, "env", "a gymnasium environment, such as gymnasium.make('CartPole-v1')")
    if of_agents and (values.info_fields or values.reward_field):
        raise FieldError(
            "info_fields and reward_field are for environments of one agent; a parallel "
            "environment has a reward of each agent"
        )
    env_fields = environment_fields(env, buffer.fields, buffer.observation_fields, values)
    if of_agents:
        recorder = Recorder(make_writer(1), env_fields, "disabled")
        return RecordParallelEnv(env, recorder, env_fields, values)
    autoreset = _autoreset_of_vector(env) if is_vector else _autoreset_of_one(env)
    recorder = Recorder(make_writer(env.num_envs if is_vector else 1), env_fields, autoreset)
    return (RecordVectorEnv if is_vector else RecordEnv)(env, recorder, env_fields, values)


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
    _env_fields: EnvironmentFields
    _recorded: RecordedValues

    @property
    def model_version(self) -> int | None:
        """Version of the model that acts; it holds for the episodes that begin from now on."""
        return self._recorder.writer.model_version

    @model_version.setter
    def model_version(self, version: int | None) -> None:
        self._recorder.writer.model_version = version

    @property
    def session_id(self) -> str | None:
        """The training session of the episodes that begin from now on."""
        return self._recorder.writer.session_id

    @session_id.setter
    def session_id(self, session_id: str | None) -> None:
        self._recorder.writer.session_id = session_id

    @property
    def spec(self) -> Any:
        """The spec of the environment inside; environments made from it are not recorded."""
        return self.env.spec

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment; an episode in its middle ends as truncated."""
        self._check_open()
        is_reset = self._reset_mask(options)
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except BaseException:
            self._recorder.cut()  # there is no going on, and the steps so far are good
            raise
        with self._recorder.aborting():
            self._recorder.reset(self._observed(observation, info, is_reset), is_reset)
        return observation, info

    def step(self, action: Any) -> Any:
        """Take a step and store it."""
        self._check_open()
        self._recorder.wait()  # while nothing is lost
        with self._recorder.aborting():
            taken = deepcopy(action)  # an environment may change it
            acts = self._recorder.acts
            result = self.env.step(action)
            after, reward, terminated, truncated, info = result
            self._recorder.step(
                self._step(taken, result, acts),
                self._observed(after, info, acts),
                (self._reward(reward), *self._flags(terminated, truncated)),
                lambda i: self._final(info, i),
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
            raise FieldError(
                "this recorded environment was closed and stores nothing more; use the "
                "environment inside it, or record() it again"
            )

    def _reset_mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        return np.ones(1, bool)

    def _observed(self, observation: Any, info: Any, needed: NDArray[np.bool_]) -> Values:
        """Return the observation fields, with the infos that belong to them."""
        infos = self._infos(info, self._env_fields.infos[0], needed)
        return {**self._values(self._env_fields.observation, observation), **infos}

    def _step(self, action: Any, result: Any, acts: NDArray[np.bool_]) -> Values:
        """Return the action, and the other values of a step."""
        taken = self._values(self._env_fields.action, action)
        if self._recorded.reward_field is not None:
            reward = np.array(result[1])
            taken[self._recorded.reward_field] = reward if self._is_of_all else reward[None]
        return {**taken, **self._infos(result[-1], self._env_fields.infos[1], acts)}

    def _reward(self, reward: Any) -> Any:
        """Return the reward of each environment; None where a vector is not made a number."""
        of_env = reward
        if self._recorded.reward is not None:
            reward = self._recorded.reward(reward)
        elif self._recorded.reward_field is not None:
            return None
        if not self._is_of_all:
            return [reward]
        if np.shape(reward)[:1] != np.shape(of_env)[:1]:
            raise FieldError(
                f"reward: the function returns a number for each environment, got shape "
                f"{np.shape(reward)} of rewards of shape {np.shape(of_env)}"
            )
        return reward

    def _flags(self, *flags: Any) -> Any:
        return flags if self._is_of_all else tuple([flag] for flag in flags)

    _is_of_all = False  # whether values are those of several environments

    def _values(self, fields: SpaceFields, value: Any) -> Values:
        return values_of_one(fields, value)

    def _infos(self, info: Any, names: tuple[str, ...], needed: NDArray[np.bool_]) -> Values:
        return {name: self._info(info, name, needed) for name in names}

    def _info(self, info: Any, name: str, needed: NDArray[np.bool_]) -> NDArray[Any]:
        """Return a value of `info` of each environment."""
        spec = self._env_fields.specs[name]
        if name in info:
            return np.array(info[name])[None]
        return np.asarray(value_or_default(spec, None, "the value of info"))[None]

    def _final(self, info: dict[str, Any], i: int) -> Values | None:
        """Return the observation that an environment ended with, if it is known."""
        return None  # that of the step is it


class RecordEnv(_Records, gymnasium.Wrapper):  # type: ignore[misc]
    """An environment whose steps are stored; `ReplayBuffer.record` makes one."""

    def __init__(
        self, env: Any, recorder: Recorder, env_fields: EnvironmentFields, recorded: RecordedValues
    ) -> None:
        super().__init__(env)
        self._recorder, self._env_fields, self._recorded = recorder, env_fields, recorded


class RecordVectorEnv(_Records, VectorWrapper):  # type: ignore[misc]
    """A vector environment whose steps are stored; `ReplayBuffer.record` makes one."""

    _is_of_all = True

    def __init__(
        self, env: Any, recorder: Recorder, env_fields: EnvironmentFields, recorded: RecordedValues
    ) -> None:
        super().__init__(env)
        self._recorder, self._env_fields, self._recorded = recorder, env_fields, recorded

    def _reset_mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        mask = (options or {}).get("reset_mask")  # which the environment takes out
        if isinstance(mask, np.ndarray) and mask.shape == (self.num_envs,):
            return mask.astype(bool)
        return np.ones(self.num_envs, bool)

    def _values(self, fields: SpaceFields, value: Any) -> Values:
        return values_of_all(fields, value)

    def _step(self, action: Any, result: Any, acts: NDArray[np.bool_]) -> Values:
        info, final = result[-1], result[-1].get("final_info")
        taken = super()._step(action, result, acts & ~self._has_final(info))
        if final is not None:  # a step that reset its environment has its own infos there
            for i in np.flatnonzero(self._has_final(info)).tolist():
                for name in self._env_fields.infos[1]:
                    taken[name][i] = self._info(final, name, np.arange(self.num_envs) == i)[i]
        return taken

    def _has_final(self, info: dict[str, Any]) -> NDArray[np.bool_]:
        """Return True for each environment whose last infos are apart: the step has reset it."""
        if "final_info" not in info:
            return np.zeros(self.num_envs, bool)
        return np.asarray(info.get("_final_info", np.ones(self.num_envs)), bool)

    def _info(self, info: Any, name: str, needed: NDArray[np.bool_]) -> NDArray[Any]:
        spec = self._env_fields.specs[name]
        values = info.get(name)
        is_there = np.asarray(info.get(f"_{name}", np.full(self.num_envs, values is not None)))
        if values is not None and is_there.all():
            return np.array(values)
        default = np.zeros(spec.shape, spec.dtype)
        if (needed & ~is_there).any() or spec.default is not None:
            default = np.asarray(value_or_default(spec, None, "the value of info"))
        filled = np.array([default] * self.num_envs)
        if values is not None:
            filled[is_there] = np.array(values)[is_there]
        return filled

    def _final(self, info: dict[str, Any], i: int) -> Values | None:
        finals, mask = info.get("final_obs"), info.get("_final_obs")
        if finals is None or (mask is not None and not mask[i]):
            return None
        if isinstance(finals, np.ndarray) and finals.dtype == object:
            finals_of_one = values_of_one(self._env_fields.observation, finals[i])
            observed = {name: value[0] for name, value in finals_of_one.items()}
        else:
            every = values_of_all(self._env_fields.observation, finals)
            observed = {name: value[i] for name, value in every.items()}
        is_env = np.arange(self.num_envs) == i
        infos = self._infos(info.get("final_info", {}), self._env_fields.infos[0], is_env)
        return {**observed, **{name: values[i] for name, values in infos.items()}}


class RecordParallelEnv(_Records):
    """A parallel environment of PettingZoo whose steps are stored; `ReplayBuffer.record` makes one.

    A step is stored once for all agents. An agent that does not act has zeros, and False in its
    mask.
    """

    def __init__(
        self, env: Any, recorder: Recorder, env_fields: EnvironmentFields, recorded: RecordedValues
    ) -> None:
        self.env, self._recorder = env, recorder
        self._env_fields, self._recorded = env_fields, recorded

    def step(self, actions: Any) -> Any:
        """Take a step and store it."""
        if not self.env.agents:
            return self.env.step(actions)  # as the environment does after the end
        return super().step(actions)

    def _values(self, fields: SpaceFields, value: Any) -> Values:
        """Return the fields of all agents; zeros of those that are not in the value."""
        values = values_of_one(
            {name: field for name, field in fields.items() if field.path[0] in value}, value
        )
        return {name: values.get(name, field.empty()) for name, field in fields.items()}

    def _observed(self, observation: Any, info: Any, needed: NDArray[np.bool_]) -> Values:
        alive = {
            agent_field("mask", agent): np.array([agent in self.env.agents])
            for agent in self.env.possible_agents
        }
        return {**self._values(self._env_fields.observation, observation), **alive}

    def _step(self, action: Any, result: Any, acts: NDArray[np.bool_]) -> Values:
        _, rewards, terminations, *_ = result
        taken = self._values(self._env_fields.action, action)
        for agent in self.env.possible_agents:
            taken[agent_field("reward", agent)] = np.array([rewards.get(agent, 0.0)], np.float32)
            has_ended = bool(terminations.get(agent, False))
            taken[agent_field("terminated", agent)] = np.array([has_ended])
        return taken

    def _reward(self, reward: Any) -> Any:
        if self._recorded.reward is not None:
            return [self._recorded.reward(reward)]
        return [float(sum(reward.values()))]

    def _flags(self, *flags: Any) -> Any:
        """Return the ends of the episode: no agent is left, and some were cut or none."""
        _, truncations = flags
        has_ended, is_cut = not self.env.agents, any(truncations.values())
        return [has_ended and not is_cut], [has_ended and is_cut]
