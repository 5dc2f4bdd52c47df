"""Recorded values of `info`, vector rewards, and several agents."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sqlbuffer import ReplayBuffer, fields_from_env
from sqlbuffer.errors import FieldError
from tests.recording.envs import Scripted
from tests.recording.test_vector import MODES, way_of_recording
from tests.support.sql import run

__all__ = ["way_of_recording"]
INFOS = {"action_mask": ("int8", (3,)), "cost": ("float32", (), -1.0)}


class Informing(gymnasium.Env):
    """Says with observation t of episode e the mask (e, t, 0), and with step t the cost t."""

    observation_space = spaces.Box(0, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, first, length=3):
        self._episode, self._t, self._length = first - 1, 0, length

    def reset(self, *, seed=None, options=None):
        self._episode, self._t = self._episode + 1, 0
        return self._seen(), {"action_mask": self._mask()}

    def step(self, action):
        self._t += 1
        info = {"action_mask": self._mask(), "cost": np.float32(self._t)}
        return self._seen(), 1.0, self._t == self._length, False, info

    def _seen(self):
        return np.array([self._episode, self._t], np.float32)

    def _mask(self):
        return np.array([self._episode, self._t, 0], np.int8)


def play(env, n_steps, mode):
    env.reset()
    for _ in range(n_steps):
        n = getattr(env, "num_envs", None)
        *_, terminated, truncated, _ = env.step(0 if n is None else np.zeros(n, int))
        done = np.asarray(terminated) | np.asarray(truncated)
        if mode is AutoresetMode.DISABLED and done.any():
            env.reset(options=None if n is None else {"reset_mask": done})


def made_env(mode, n):
    if n is None:
        return Informing(0)
    makers = [lambda i=i: Informing(10 * i) for i in range(n)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 3])
def test_infos_belong_to_the_observation_that_they_come_with(sqlite_url, mode, n):
    env = made_env(mode, n)
    made = fields_from_env(env, info_fields=INFOS)
    assert made["observation_fields"] == ["obs", "action_mask", "cost"]
    with ReplayBuffer(sqlite_url, **made) as buffer:
        with buffer.record(env, info_fields=["action_mask", "cost"]) as recorded:
            play(recorded, 14, mode)
        batch = buffer.sample_transitions(500)
        for prefix in ("", "next_"):
            np.testing.assert_array_equal(
                batch[f"{prefix}action_mask"][:, :2], batch[f"{prefix}obs"].astype(np.int8)
            )
        np.testing.assert_array_equal(batch.next_cost, batch.next_obs[:, 1])
        first = batch.obs[:, 1] == 0
        np.testing.assert_array_equal(batch.cost, np.where(first, -1, batch.obs[:, 1]))
        assert set(batch.next_obs[:, 1]) == {1, 2, 3}  # final ones too


@pytest.mark.parametrize("mode", MODES)
def test_infos_that_are_no_observation_belong_to_the_step(sqlite_url, mode):
    env = made_env(mode, 3)
    made = fields_from_env(env)
    made["fields"]["cost"] = "float32"
    with ReplayBuffer(sqlite_url, **made) as buffer:
        with buffer.record(env, info_fields=["cost"]) as recorded:
            play(recorded, 14, mode)
        batch = buffer.sample_transitions(500)
        np.testing.assert_array_equal(batch.cost, batch.obs[:, 1] + 1)
        assert "next_cost" not in batch


def test_a_missing_info_without_a_default_says_so_and_aborts(sqlite_url):
    env = Informing(0)
    made = fields_from_env(env, info_fields={"cost": "float32"})
    with ReplayBuffer(sqlite_url, **made) as buffer:
        recorded = buffer.record(env, info_fields=["cost"])
        with pytest.raises(FieldError, match="the value of info 'cost' is missing"):
            recorded.reset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"info_fields": ["what"]}, "'what' is missing: declare it"),
        ({"reward_field": "rewards"}, "'rewards' is missing: declare it"),
    ],
)
def test_values_without_a_field_are_refused(sqlite_url, options, message):
    env = Scripted()
    with (
        ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer,
        pytest.raises(FieldError, match=message),
    ):
        buffer.record(env, **options)


def test_a_name_of_the_spaces_is_no_info_field():
    with pytest.raises(FieldError, match="field 'obs' is one of the spaces"):
        fields_from_env(Scripted(), info_fields={"obs": "float32"})


class Objectives(Scripted):
    """Rewards are vectors, as those of MO-Gymnasium."""

    reward_space = spaces.Box(-10, 10, (2,), np.float32)

    def __init__(self, first=0.0):
        super().__init__([(4, "terminated")])
        self._first = first

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, np.array([self._first, self._t], np.float32), *rest


def objectives(n):
    if n is None:
        return Objectives()
    return Vector([Objectives(float(i)) for i in range(n)])


class Vector(gymnasium.vector.VectorEnv):
    """The environments as one that returns vector rewards, as MO-Gymnasium's does."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, envs):
        self._envs, self.num_envs = envs, len(envs)
        self.single_observation_space = envs[0].observation_space
        self.single_action_space = envs[0].action_space
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, len(envs)
        )
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, len(envs))
        self.reward_space = envs[0].reward_space

    def reset(self, *, seed=None, options=None):
        return np.stack([env.reset()[0] for env in self._envs]), {}

    def step(self, actions):
        results = [env.step(a) for env, a in zip(self._envs, actions, strict=True)]
        *arrays, _ = [np.array(values) for values in zip(*results, strict=True)]
        return *arrays, {}


@pytest.mark.parametrize("n", [None, 2])
@pytest.mark.parametrize("weighs", [False, True])
def test_vector_rewards_are_a_field_and_a_function_makes_the_reward(sqlite_url, n, weighs):
    env = objectives(n)
    made = fields_from_env(env, reward_field="rewards")
    weights = np.array([1.0, 10.0])
    options = {"reward": lambda rewards: rewards @ weights} if weighs else {}
    with ReplayBuffer(sqlite_url, **made) as buffer:
        with buffer.record(env, reward_field="rewards", **options) as recorded:
            recorded.reset()
            for _ in range(3):
                recorded.step(0 if n is None else [0] * n)
        batch = buffer.sample_arrays(200)
        assert batch.rewards.shape == (200, 2)
        assert set(batch.rewards[:, 1]) == {1.0, 2.0, 3.0}
        assert set(batch.rewards[:, 0]) == set(range(n or 1))
        expected = batch.rewards @ weights if weighs else np.full(200, np.nan)
        np.testing.assert_allclose(batch.reward, expected)


@pytest.mark.parametrize("n", [None, 2])
def test_a_vector_reward_without_a_field_says_how_to_store_it(sqlite_url, n):
    env = objectives(n)
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        recorded = buffer.record(env)
        recorded.reset()
        with pytest.raises(FieldError, match=r"rewards of shape \(2,\); .* reward_field="):
            recorded.step(0 if n is None else [0] * n)


def test_an_environment_without_a_space_of_rewards_needs_a_declaration():
    with pytest.raises(FieldError, match="no reward_space"):
        fields_from_env(Scripted(), reward_field="rewards")


def test_a_function_may_change_plain_rewards(sqlite_url):
    env = Scripted(reward=3.0)
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        with buffer.record(env, reward=np.sign) as recorded:
            recorded.reset()
            recorded.step(0)
        assert [row.exp_data.reward_t for row in buffer] == [1.0]


class Pair:
    """A parallel environment, with the attributes and calls of PettingZoo's `ParallelEnv`.

    Agent `b` leaves after two steps, `a` after `length`.
    """

    metadata = {"name": "pair"}  # noqa: RUF012
    possible_agents = ("a", "b 2")

    def __init__(self, length=4, how="terminated"):
        self.agents, self._t, self._length, self._how = [], 0, length, how

    def observation_space(self, agent):
        return (
            spaces.Dict({"at": spaces.Box(0, 9, (1,), np.float32)})
            if agent == "a"
            else (spaces.Discrete(9))
        )

    def action_space(self, agent):
        return spaces.Discrete(5)

    def reset(self, seed=None, options=None):
        self.agents, self._t = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self._t += 1
        ends = {"a": self._t == self._length, "b 2": self._t == 2}
        seen = self._seen()
        none = dict.fromkeys(self.agents, False)
        ended = {agent: ends[agent] for agent in self.agents}
        flags = (ended, none) if self._how == "terminated" else (none, ended)
        rewards = {agent: 10.0 * actions[agent] for agent in self.agents}
        infos = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ends[agent]]
        return seen, rewards, *flags, infos

    def _seen(self):
        values = {"a": {"at": np.array([self._t], np.float32)}, "b 2": self._t}
        return {agent: values[agent] for agent in self.agents}

    def close(self):
        self.agents = []


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_a_step_of_all_agents_is_one_step_with_masks(database_url, how):
    env = Pair(how=how)
    made = fields_from_env(env)
    with ReplayBuffer(database_url, create=True, **made) as buffer:
        with buffer.record(env, task_id="pair") as recorded:
            for _ in range(3):
                recorded.reset(seed=1)
                while recorded.agents:
                    recorded.step({agent: 1 + (agent == "a") for agent in recorded.agents})
            recorded.reset()
            recorded.step({"a": 4, "b 2": 4})
        assert recorded.possible_agents == ("a", "b 2")
        steps = [row.fields for row in buffer]
        assert len(steps) == 3 * 4 + 1
        assert [bool(step["mask_b_2"]) for step in steps[:4]] == [True, True, False, False]
        assert all(step["mask_a"] for step in steps)
        assert [int(step["action_b_2"]) for step in steps[:4]] == [1, 1, 0, 0]
        assert [float(step["reward_b_2"]) for step in steps[:4]] == [10, 10, 0, 0]
        ends = [False, how == "terminated", False, False]
        assert [bool(step["terminated_b_2"]) for step in steps[:4]] == ends
        episodes = run(
            database_url,
            "SELECT status, length, episode_return FROM v_episodes ORDER BY first_seq",
        )
        assert episodes == [("complete", 4, 100.0)] * 3 + [("complete", 1, 80.0)]
        batch = buffer.sample_transitions(300)
        assert batch.obs["a"]["at"].shape == batch.next_obs["a"]["at"].shape == (300, 1)
        assert batch.action["b 2"].shape == (300,)
        last = batch.obs["a"]["at"][:, 0] == 3
        np.testing.assert_array_equal(batch.next_obs["a"]["at"][:, 0], batch.obs_a_at[:, 0] + 1)
        assert not batch.next_mask_a[last].any()
        assert (batch.discount[last] == (0 if how == "terminated" else np.float32(0.99))).all()


@pytest.mark.parametrize("actions", [{"a": 3}, {"a": 3, "b 2": 1, "c": 0}, [3, 2]])
def test_each_agent_that_is_there_needs_an_action(sqlite_url, actions):
    env = Pair()
    with (
        ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer,
        buffer.record(env) as recorded,
    ):
        recorded.reset()
        with pytest.raises(FieldError, match=r"one of each agent that is there \(a, b 2\)"):
            recorded.step(actions)
        recorded.step({"a": 1, "b 2": 1})


def test_agents_that_act_in_turn_are_refused():
    class InTurn(Pair):
        def agent_iter(self):
            return iter(())

    with pytest.raises(FieldError, match="aec_to_parallel"):
        fields_from_env(InTurn())


def test_options_of_one_agent_are_refused_for_several(sqlite_url):
    env = Pair()
    with (
        ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer,
        pytest.raises(FieldError, match="environments of one agent"),
    ):
        buffer.record(env, info_fields=["x"])
    with pytest.raises(FieldError, match="environments of one agent"):
        fields_from_env(env, reward_field="rewards")
