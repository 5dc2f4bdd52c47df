"""Environments of PettingZoo's parallel API, recorded."""

import functools

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test

from sqlbuffer import ReplayBuffer, fields_from_env


class Tag(ParallelEnv):
    """Agents walk on a line; the one that is caught leaves, and time is up after 20 steps."""

    metadata = {"name": "tag_v0"}  # noqa: RUF012
    possible_agents = ["fox", "hare_0", "hare_1"]  # noqa: RUF012

    def __init__(self):
        self.agents, self._at, self._t = [], {}, 0

    @functools.cache  # noqa: B019
    def observation_space(self, agent):
        return spaces.Box(-100, 100, (3,), np.float32)

    @functools.cache  # noqa: B019
    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        rng = np.random.default_rng(seed)
        self.agents, self._t = list(self.possible_agents), 0
        self._at = {agent: float(rng.integers(-4, 5)) for agent in self.agents}
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self._t += 1
        for agent, action in actions.items():
            self._at[agent] += int(action) - 1
        caught = {
            agent: agent != "fox" and self._at[agent] == self._at["fox"] for agent in self.agents
        }
        if all(caught[agent] for agent in self.agents if agent != "fox"):
            caught["fox"] = True
        late = dict.fromkeys(self.agents, self._t == 20)
        rewards = {agent: float(caught["fox"] if agent == "fox" else 1) for agent in self.agents}
        seen, infos = self._seen(), {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (caught[agent] or late[agent])]
        return seen, rewards, caught, late, infos

    def _seen(self):
        return {
            agent: np.array([self._at[other] for other in self.possible_agents], np.float32)
            for agent in self.agents
        }


def test_a_recorded_environment_keeps_to_the_parallel_api(sqlite_url):
    with ReplayBuffer(sqlite_url, **fields_from_env(Tag())) as buffer:
        recorded = buffer.record(Tag())
        parallel_api_test(recorded, num_cycles=200)
        recorded.close()
        assert len(buffer) > 20


@pytest.mark.parametrize("seed", range(3))
def test_steps_are_those_of_a_loop_of_ones_own(database_url, seed):
    rng = np.random.default_rng(seed)
    actions = [{agent: int(rng.integers(3)) for agent in Tag.possible_agents} for _ in range(120)]
    expected, plain = [], Tag()
    observations, _ = plain.reset(seed=seed)
    for chosen in actions:
        taken = {agent: chosen[agent] for agent in plain.agents}
        after, rewards, *_ = plain.step(taken)
        for agent in taken:
            expected.append((agent, observations[agent].tolist(), taken[agent], rewards[agent]))
        observations = after
        if not plain.agents:
            observations, _ = plain.reset(seed=seed)
    with ReplayBuffer(database_url, create=True, **fields_from_env(Tag())) as buffer:
        with buffer.record(Tag()) as env:
            env.reset(seed=seed)
            for chosen in actions:
                env.step({agent: chosen[agent] for agent in env.agents})
                if not env.agents:
                    env.reset(seed=seed)
        stored = [
            (agent, step[f"obs_{agent}"].tolist(), int(step[f"action_{agent}"]),
             float(step[f"reward_{agent}"]))
            for step in (row.fields for row in buffer)
            for agent in Tag.possible_agents
            if step[f"mask_{agent}"]
        ]  # fmt: skip
        assert stored == expected
        assert buffer.spaces.action["fox"] == spaces.Discrete(3)
