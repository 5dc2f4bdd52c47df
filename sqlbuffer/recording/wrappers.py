"""Gymnasium wrappers that store steps; this module is imported on first use."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset as AutoresetWrapper

from sqlbuffer.arguments import checked_session
from sqlbuffer.checks import refused
from sqlbuffer.encoding.records import encode_step
from sqlbuffer.errors import FieldError
from sqlbuffer.recording.recorder import (
    Autoreset,
    Begin,
    EnvironmentFields,
    Recorder,
    StepTarget,
    Values,
    environment_fields,
)
from sqlbuffer.spaces import values_of_all, values_of_one


def recorded(
    env: Any,
    buffer: StepTarget,
    begin: Begin,
    wait: Callable[[int], None],
    model_version: int | None,
    session_id: str | None,
) -> Any:
    """Return an environment that behaves as `env` and stores its steps."""
    is_vector = isinstance(env, VectorEnv)
    if not is_vector and not isinstance(env, gymnasium.Env):
        raise refused(env, "env", "a gymnasium environment, such as gymnasium.make('CartPole-v1')")
    env_fields = environment_fields(env, buffer.fields, buffer.observation_fields)
    autoreset = _autoreset_of_vector(env) if is_vector else _autoreset_of_one(env)
    n_envs = env.num_envs if is_vector else 1
    recorder = Recorder(begin, buffer.flush, wait, env_fields, n_envs, autoreset)
    made = (RecordVectorEnv if is_vector else RecordEnv)(env, recorder, env_fields)
    made.model_version, made.session_id = model_version, session_id
    return made


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
    """The part that both wrappers share."""

    env: Any
    _is_closed = False
    _recorder: Recorder
    _env_fields: EnvironmentFields
    _values: Callable[[Any, Any], Values]

    @property
    def model_version(self) -> int | None:
        """Version of the model that acts; it holds for the episodes that begin from now on."""
        return self._recorder.model_version

    @model_version.setter
    def model_version(self, version: int | None) -> None:
        checked = None if version is None else encode_step(version, "model_version")
        self._recorder.model_version = checked

    @property
    def session_id(self) -> str | None:
        """The training session of the episodes that begin from now on."""
        return self._recorder.session_id

    @session_id.setter
    def session_id(self, session_id: str | None) -> None:
        checked = None if session_id is None else checked_session(session_id)
        self._recorder.session_id = checked

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
            self._recorder.reset(self._values(self._env_fields.observation, observation), is_reset)
        return observation, info

    def step(self, action: Any) -> Any:
        """Take a step and store it."""
        self._check_open()
        self._recorder.wait()  # while nothing is lost
        with self._recorder.aborting():
            taken = deepcopy(action)  # an environment may change it
            result = self.env.step(action)
            after, reward, terminated, truncated, info = result
            self._recorder.step(
                self._values(self._env_fields.action, taken),
                self._values(self._env_fields.observation, after),
                self._outcome(reward, terminated, truncated),
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

    def _reset_mask(self, options: dict[str, Any] | None) -> Any:
        raise NotImplementedError

    def _outcome(self, *values: Any) -> Any:
        raise NotImplementedError

    def _final(self, info: dict[str, Any], i: int) -> Values | None:
        raise NotImplementedError


class RecordEnv(_Records, gymnasium.Wrapper):  # type: ignore[misc]
    """An environment whose steps are stored; `ReplayBuffer.record` makes one."""

    _values = staticmethod(values_of_one)

    def __init__(self, env: Any, recorder: Recorder, env_fields: EnvironmentFields) -> None:
        super().__init__(env)
        self._recorder, self._env_fields = recorder, env_fields

    def _reset_mask(self, options: dict[str, Any] | None) -> Any:
        return [True]

    def _outcome(self, *values: Any) -> Any:
        return tuple([value] for value in values)


class RecordVectorEnv(_Records, VectorWrapper):  # type: ignore[misc]
    """A vector environment whose steps are stored; `ReplayBuffer.record` makes one."""

    _values = staticmethod(values_of_all)

    def __init__(self, env: Any, recorder: Recorder, env_fields: EnvironmentFields) -> None:
        super().__init__(env)
        self._recorder, self._env_fields = recorder, env_fields

    def _reset_mask(self, options: dict[str, Any] | None) -> Any:
        mask = (options or {}).get("reset_mask")  # which the environment takes out
        if isinstance(mask, np.ndarray) and mask.shape == (self.num_envs,):
            return mask.astype(bool)
        return np.ones(self.num_envs, bool)

    def _outcome(self, *values: Any) -> Any:
        return values

    def _final(self, info: dict[str, Any], i: int) -> Values | None:
        """Return the observation that an environment ended with, if it is known."""
        finals, mask = info.get("final_obs"), info.get("_final_obs")
        if finals is None or (mask is not None and not mask[i]):
            return None
        if isinstance(finals, np.ndarray) and finals.dtype == object:
            one = values_of_one(self._env_fields.observation, finals[i])
            return {name: value[0] for name, value in one.items()}
        return {
            name: value[i]
            for name, value in values_of_all(self._env_fields.observation, finals).items()
        }
