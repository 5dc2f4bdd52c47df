"""Values of the steps of environments, as a recorder stores them: by field, of n environments."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.fields import value_or_default
from sqlbuffer.recording.recorder import EnvironmentFields, RecordOptions, Values
from sqlbuffer.spaces import SpaceFields, agent_field, values_of_all, values_of_one

Flags = NDArray[np.bool_]


class StepValues(Protocol):
    """Reads the values of a step out of what an environment returns."""

    def reset_mask(self, options: dict[str, Any] | None) -> Flags:
        """Return True for each environment that a reset with these options resets."""

    def observed(self, observation: Any, info: Any, needed: Flags) -> Values:
        """Return the observation fields, with the infos that belong to them.

        Args:
            observation: The observation.
            info: What came with it.
            needed: True for each environment whose infos are needed.
        """

    def taken(self, action: Any, result: Any, acts: Flags) -> Values:
        """Return the action and the other values of a step, which returned a result.

        Args:
            action: The action.
            result: What `step` returned.
            acts: True for each environment whose step is stored.
        """

    def outcome(self, result: Any) -> tuple[Any, Any, Any]:
        """Return the rewards and the two flags of each environment."""

    def final(self, info: Any, i: int) -> Values | None:
        """Return the observation that an environment ended with, if the step has reset it."""


class SingleValues:
    """Values of one environment; see `StepValues`.

    Args:
        env: The environment.
        fields: Its fields.
        options: What else is stored.
    """

    def __init__(self, env: Any, fields: EnvironmentFields, options: RecordOptions) -> None:
        self._env, self._fields, self._options = env, fields, options

    def reset_mask(self, options: dict[str, Any] | None) -> Flags:
        return np.ones(1, bool)

    def observed(self, observation: Any, info: Any, needed: Flags) -> Values:
        with_observation, _ = self._fields.infos
        values = self._of_spaces(self._fields.observation, observation)
        return self._with_infos(values, info, with_observation, needed)

    def taken(self, action: Any, result: Any, acts: Flags) -> Values:
        values, (_, with_step) = self._of_spaces(self._fields.action, action), self._fields.infos
        if self._options.reward_field is not None:
            values[self._options.reward_field] = self._of_all(np.array(result[1]))
        return self._with_infos(values, result[-1], with_step, acts)

    def outcome(self, result: Any) -> tuple[Any, Any, Any]:
        _, reward, terminated, truncated, _ = result
        return self._reward(reward), self._of_all(terminated), self._of_all(truncated)

    def final(self, info: Any, i: int) -> Values | None:
        return None  # it is reset by a call of its own

    def _of_spaces(self, fields: SpaceFields, value: Any) -> Values:
        return values_of_one(fields, value)

    def _of_all(self, value: Any) -> Any:
        """Return a value as that of n environments."""
        return value[None] if isinstance(value, np.ndarray) else [value]

    def _reward(self, reward: Any) -> Any:
        """Return the reward of each environment; None where a vector is not made a number."""
        if self._options.reward is not None:
            return self._of_all(self._options.reward(reward))
        if self._options.reward_field is not None:
            return None
        rewards = self._of_all(reward)
        if isinstance(reward, np.ndarray) and reward.ndim and reward.size > len(rewards):
            raise FieldError(
                f"the environment gives rewards of shape {np.shape(rewards)[1:]}; store them with "
                f"record(.., reward_field=..), and make a number of each with reward=.."
            )
        return rewards

    def _with_infos(
        self, values: Values, info: Any, names: tuple[str, ...], needed: Flags
    ) -> Values:
        for name in names:
            values[name] = self._info(info, name, needed)
        return values

    def _info(self, info: Any, name: str, needed: Flags) -> NDArray[Any]:
        """Return a value of `info` of each environment."""
        if name in info:
            return np.array(info[name])[None]
        spec = self._fields.specs[name]
        return np.asarray(value_or_default(spec, None, "the value of info"))[None]


class VectorValues(SingleValues):
    """Values of several environments in one; see `StepValues`."""

    def reset_mask(self, options: dict[str, Any] | None) -> Flags:
        n, mask = self._env.num_envs, (options or {}).get("reset_mask")  # which the env takes out
        if isinstance(mask, np.ndarray) and mask.shape == (n,):
            return mask.astype(bool)
        return np.ones(n, bool)

    def taken(self, action: Any, result: Any, acts: Flags) -> Values:
        info = result[-1]
        if "final_info" not in info:
            return super().taken(action, result, acts)
        has_final = self._has_final(info)
        values = super().taken(action, result, acts & ~has_final)
        for i in np.flatnonzero(has_final).tolist():  # the step reset it: its infos are apart
            for name in self._fields.infos[1]:
                values[name][i] = self._info(info["final_info"], name, self._only(i))[i]
        return values

    def final(self, info: Any, i: int) -> Values | None:
        finals, mask = info.get("final_obs"), info.get("_final_obs")
        if finals is None or (mask is not None and not mask[i]):
            return None
        if isinstance(finals, np.ndarray) and finals.dtype == object:
            of_one = values_of_one(self._fields.observation, finals[i])
            observed = {name: value[0] for name, value in of_one.items()}
        else:
            of_all = values_of_all(self._fields.observation, finals)
            observed = {name: value[i] for name, value in of_all.items()}
        names, of_end = self._fields.infos[0], info.get("final_info", {})
        infos = self._with_infos({}, of_end, names, self._only(i))
        return {**observed, **{name: values[i] for name, values in infos.items()}}

    def _of_spaces(self, fields: SpaceFields, value: Any) -> Values:
        return values_of_all(fields, value)

    def _of_all(self, value: Any) -> Any:
        return value

    def _reward(self, reward: Any) -> Any:
        number = super()._reward(reward)
        if number is not None and np.shape(number)[:1] != np.shape(reward)[:1]:
            raise FieldError(
                f"reward: the function returns a number for each environment, got shape "
                f"{np.shape(number)} of rewards of shape {np.shape(reward)}"
            )
        return number

    def _only(self, i: int) -> Flags:
        only: Flags = np.arange(self._env.num_envs) == i
        return only

    def _has_final(self, info: Any) -> Flags:
        """Return True for each environment that the step has reset."""
        return np.asarray(info.get("_final_info", np.ones(self._env.num_envs)), bool)

    def _info(self, info: Any, name: str, needed: Flags) -> NDArray[Any]:
        spec, values, n = self._fields.specs[name], info.get(name), self._env.num_envs
        is_there = np.asarray(info.get(f"_{name}", np.full(n, values is not None)))
        if values is not None and is_there.all():
            return np.array(values)
        default = np.zeros(spec.shape, spec.dtype)
        if (needed & ~is_there).any() or spec.default is not None:
            default = np.asarray(value_or_default(spec, None, "the value of info"))
        filled = np.array([default] * n)
        if values is not None:
            filled[is_there] = np.array(values)[is_there]
        return filled


class ParallelValues(SingleValues):
    """Values of all agents of a parallel environment; see `StepValues`."""

    def observed(self, observation: Any, info: Any, needed: Flags) -> Values:
        alive = {
            agent_field("mask", agent): np.array([agent in self._env.agents])
            for agent in self._env.possible_agents
        }
        return {**_of_agents(self._fields.observation, observation), **alive}

    def taken(self, action: Any, result: Any, acts: Flags) -> Values:
        _, rewards, terminations, *_ = result
        values = _of_agents(self._fields.action, action)
        for agent in self._env.possible_agents:
            values[agent_field("reward", agent)] = np.array([rewards.get(agent, 0.0)], np.float32)
            has_ended = bool(terminations.get(agent, False))
            values[agent_field("terminated", agent)] = np.array([has_ended])
        return values

    def outcome(self, result: Any) -> tuple[Any, Any, Any]:
        """Return the reward, and the ends: no agent is left, and one was truncated or none."""
        _, rewards, _, truncations, _ = result
        number = self._options.reward or (lambda of_agents: float(sum(of_agents.values())))
        has_ended, is_cut = not self._env.agents, any(truncations.values())
        return [number(rewards)], [has_ended and not is_cut], [has_ended and is_cut]


def _of_agents(fields: SpaceFields, value: Any) -> Values:
    """Return the fields of all agents; zeros of those that are not in the value."""
    of_present = values_of_one(
        {name: field for name, field in fields.items() if field.path[0] in value}, value
    )
    return {name: of_present.get(name, field.empty()) for name, field in fields.items()}
