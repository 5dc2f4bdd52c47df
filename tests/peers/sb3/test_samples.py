"""Samples equal those of Stable-Baselines3's own buffers, of the same steps."""

from collections.abc import Mapping
from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sqlbuffer.integrations.sb3 import SQLReplayBuffer
from tests.peers.sb3.steps import ACTIONS, SPACES, numbers_of, steps

SIZE, N, BATCHES = 100_000, 300, 1_000


class Pair:
    """A buffer of Stable-Baselines3 and one of ours, with the same steps."""

    def __init__(self, url, space, action, n_envs=1, size=SIZE, **options):
        self.space = SPACES[space]
        given = (size, self.space, ACTIONS[action], "cpu", n_envs)
        if "n_steps" in options:
            theirs = NStepReplayBuffer
        else:
            theirs = DictReplayBuffer if space == "dict" else ReplayBuffer
        self.theirs = theirs(*given, **options)
        self.ours = SQLReplayBuffer(*given, url=url, **options)
        self.places = {}

    def add(self, each):
        """Add a step to both; remember where theirs has it."""
        for env, number in enumerate(self._numbers(each.obs)):
            self.places[number] = (self.theirs.pos, env)
        self.theirs.add(*each)
        self.ours.add(*each)

    def _numbers(self, observations):
        return numbers_of(self.space, observations).tolist()

    def play(self, n=N, seed=0):
        for each in steps(self.space, self.theirs.action_space, self.theirs.n_envs, n, seed):
            self.add(each)
        self.ours.buffer.flush()
        return self

    def check(self, n_batches, env=None, batch_size=64):
        """Draw from ours, and compare with theirs at the same indices; return all numbers drawn."""
        found = set()
        for _ in range(n_batches):
            state = np.random.get_state()  # noqa: NPY002
            ours = self.ours.sample(batch_size, env)
            observed = ours.observations
            if env is not None:
                observed = unnormalized(env, observed)
            numbers = self._numbers(observed)
            found.update(numbers)
            where, envs = np.array([self.places[number] for number in numbers]).T
            with drawn_envs(envs):
                theirs = self.theirs._get_samples(where, env)
            np.random.set_state(state)  # noqa: NPY002
            assert_equal(ours, theirs)
        return found


def unnormalized(env, observations):
    """Return observations that hold their numbers again."""
    as_arrays = (
        {key: value.numpy() for key, value in observations.items()}
        if isinstance(observations, dict)
        else observations.numpy()
    )
    found = env.unnormalize_obs(as_arrays)
    return {k: np.rint(v) for k, v in found.items()} if isinstance(found, dict) else np.rint(found)


@contextmanager
def drawn_envs(envs):
    """Have Stable-Baselines3 draw these environments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *_, **__: envs)
        yield


def assert_equal(ours, theirs):
    assert type(ours) is type(theirs)
    for name, expected in theirs._asdict().items():
        found = getattr(ours, name)
        if isinstance(expected, Mapping):
            assert list(found) == list(expected)
            pairs = [(found[key], expected[key]) for key in expected]
        else:
            pairs = [(found, expected)]
        for one, other in pairs:
            if other is None:
                assert one is None, name
                continue
            assert one.dtype == other.dtype, name
            assert torch.equal(one, other), name


@pytest.mark.parametrize("handle_timeout_termination", [True, False])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_thousand_batches_equal_theirs(schema_url, n_envs, handle_timeout_termination):
    pair = Pair(
        schema_url, "vector", "box", n_envs, handle_timeout_termination=handle_timeout_termination
    ).play()
    assert len(pair.check(BATCHES)) == N * n_envs


@pytest.mark.parametrize("handle_timeout_termination", [True, False])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_thousand_batches_of_n_steps_equal_theirs(schema_url, n_envs, handle_timeout_termination):
    pair = Pair(
        schema_url, "vector", "discrete", n_envs, n_steps=4, gamma=0.97,
        handle_timeout_termination=handle_timeout_termination,
    ).play()  # fmt: skip
    # The newest steps of open episodes wait for those that follow.
    assert len(pair.check(BATCHES)) >= (N - 3) * n_envs


def test_a_thousand_batches_of_dict_observations_equal_theirs(schema_url):
    pair = Pair(schema_url, "dict", "box", n_envs=2).play()
    assert len(pair.check(BATCHES)) == 2 * N


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_space_of_actions_equals_theirs(schema_url, action):
    Pair(schema_url, "vector", action, n_envs=2).play().check(20)


@pytest.mark.parametrize("space", sorted(SPACES))
@pytest.mark.parametrize("n_envs", [1, 2])
def test_every_space_of_observations_equals_theirs(schema_url, space, n_envs):
    Pair(schema_url, space, "box", n_envs).play().check(20)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_full_buffer_equals_theirs(schema_url, n_steps):
    options = {"n_steps": n_steps, "gamma": 0.99} if n_steps > 1 else {}
    pair = Pair(schema_url, "vector", "box", size=100, **options).play()
    assert len(pair.check(200)) >= 100 - n_steps + 1
    assert pair.ours.size() == pair.theirs.size() == 100
    assert pair.ours.full is pair.theirs.full is True


class Numbers(gymnasium.Env):
    """An environment whose spaces are those of the steps."""

    def __init__(self, space):
        self.observation_space, self.action_space = space, ACTIONS["box"]


@pytest.mark.parametrize(("space", "n_steps"), [("vector", 1), ("vector", 3), ("dict", 1)])
def test_normalized_batches_equal_theirs(schema_url, space, n_steps):
    options = {"n_steps": n_steps, "gamma": 0.9} if n_steps > 1 else {}
    pair = Pair(schema_url, space, "box", n_envs=2, **options).play()
    keys = ["achieved-goal"] if space == "dict" else None
    made = DummyVecEnv([lambda: Numbers(SPACES[space])] * 2)
    env = VecNormalize(made, norm_obs_keys=keys, clip_obs=1e9, clip_reward=0.5)
    env.obs_rms = (
        {key: moved(rms) for key, rms in env.obs_rms.items()}
        if space == "dict"
        else moved(env.obs_rms)
    )
    env.ret_rms.var = np.float64(4.0)
    pair.check(BATCHES, env)


def moved(rms):
    rms.mean, rms.var = rms.mean + 2.0, rms.var * 4.0
    return rms


def test_rewards_that_are_no_numbers_come_back(schema_url):
    pair = Pair(schema_url, "vector", "box")
    made = steps(pair.space, pair.theirs.action_space, 1, 3)
    for reward, each in zip((np.nan, np.inf, -np.inf), made, strict=True):
        pair.add(each._replace(reward=np.array([reward], np.float32)))
    found = pair.ours.sample(64).rewards.numpy()
    assert np.isnan(found).any()
    assert np.isposinf(found).any()
    assert np.isneginf(found).any()
