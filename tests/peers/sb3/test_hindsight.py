"""Transitions with goals in hindsight equal those of HerReplayBuffer, and algorithms learn."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, SAC, HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her import GoalSelectionStrategy

from sqlbuffer.errors import ArgumentError, BufferConfigError, InsufficientDataError
from sqlbuffer.integrations.sb3 import SQLHerReplayBuffer, SQLReplayBuffer
from tests.peers.sb3.test_samples import assert_equal

GOAL = spaces.Box(-np.inf, np.inf, (2,))
NUMBERED = spaces.Dict({"observation": GOAL, "achieved_goal": GOAL, "desired_goal": GOAL})
ACTION = spaces.Box(-1, 1, (2,))
N, BATCHES = 200, 200


class Numbered(gymnasium.Env):
    """Its goals hold the number of the step before them; those that are meant are negative."""

    observation_space, action_space = NUMBERED, ACTION

    def compute_reward(self, achieved_goal, desired_goal, info):
        assert info == [{}] * len(achieved_goal)
        distance = np.abs(achieved_goal - desired_goal).sum(axis=-1)
        return -(distance > 3).astype(np.float64) - distance / 7


def observed(numbers, episodes):
    return {
        "observation": np.stack([numbers, np.sin(numbers)], 1).astype(np.float32),
        "achieved_goal": np.stack([numbers, np.cos(numbers)], 1).astype(np.float32),
        "desired_goal": np.stack([-1.0 - episodes, episodes], 1).astype(np.float32),
    }


class Pair:
    """A buffer of Stable-Baselines3 and one of ours, with the same steps."""

    def __init__(self, url, n_envs, strategy, size=100_000, handles=True, **options):
        self.env = DummyVecEnv([Numbered] * n_envs)
        given = {
            "device": "cpu", "n_envs": n_envs, "env": self.env, "n_sampled_goal": 3,
            "goal_selection_strategy": strategy, "handle_timeout_termination": handles,
        }  # fmt: skip
        self.theirs = HerReplayBuffer(size, NUMBERED, ACTION, **given)
        self.ours = SQLHerReplayBuffer(size, NUMBERED, ACTION, url=url, **given, **options)
        self.places, self.after, self.episode_of, self.last_of = {}, {}, {}, {}

    def play(self, n=N):
        n_envs, rng = self.env.num_envs, np.random.default_rng(0)
        now, episodes, number = np.arange(1.0, n_envs + 1), np.arange(n_envs), n_envs + 1
        for _ in range(n):
            after = np.arange(number, number + n_envs, dtype=float)
            number += n_envs
            done = rng.random(n_envs) < 0.15
            infos = [{"TimeLimit.truncated": bool(each)} for each in done & (after % 2 == 0)]
            step = (
                observed(now, episodes), observed(after, episodes), rng.normal(size=(n_envs, 2)),
                rng.normal(size=n_envs).astype(np.float32), done, infos,
            )  # fmt: skip
            for i in range(n_envs):
                self.places[now[i]] = self.after[after[i]] = self.theirs.pos, i
                self.episode_of[now[i]] = self.episode_of[after[i]] = episodes[i]
                self.last_of[episodes[i]] = after[i]
            self.theirs.add(*step)
            self.ours.add(*step)
            fresh = np.arange(number, number + n_envs, dtype=float)
            number += n_envs
            now = np.where(done, fresh, after)
            episodes = np.where(done, episodes.max() + 1 + np.arange(n_envs), episodes)
        self.ours.buffer.flush()
        return self

    def check(self, strategy, n_batches=BATCHES, env=None):
        """Draw from ours, and compare with theirs at the same steps and goals."""
        n_virtual = 0
        for _ in range(n_batches):
            sample = self.ours.sample(64, env)
            numbers = sample.observations["observation"][:, 0].double().numpy()
            if env is not None:
                numbers = numbers * 2.0
            goals = sample.observations["desired_goal"][:, 0].double().numpy()
            where, envs = np.array([self.places[number] for number in numbers]).T
            is_virtual = goals > 0
            n_virtual += int(is_virtual.sum())
            chosen = np.array([self.after[goal] for goal in goals[is_virtual]])
            achieved = self.theirs.next_observations["achieved_goal"][chosen[:, 0], chosen[:, 1]]
            for number, goal in zip(numbers[is_virtual], goals[is_virtual], strict=True):
                episode = self.episode_of[number]
                assert self.episode_of[goal] == episode
                assert strategy != "future" or goal > number
                assert strategy != "final" or goal == self.last_of[episode]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(self.theirs, "_sample_goals", lambda *_, goals=achieved: goals)
                virtual = self.theirs._get_virtual_samples(where[is_virtual], envs[is_virtual], env)
            real = self.theirs._get_real_samples(where[~is_virtual], envs[~is_virtual], env)
            for rows, theirs in ((is_virtual, virtual), (~is_virtual, real)):
                assert_equal(rows_of(sample, rows), theirs)
        return n_virtual / (64 * n_batches)


def rows_of(sample, rows):
    at = torch.from_numpy(rows)
    return type(sample)(
        *(
            {key: values[at] for key, values in part.items()}
            if isinstance(part, dict)
            else None if part is None else part[at]
            for part in sample
        )
    )  # fmt: skip


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize(("n_envs", "handles"), [(1, True), (3, False)])
def test_batches_equal_theirs(schema_url, strategy, n_envs, handles):
    pair = Pair(schema_url, n_envs, strategy, handles=handles).play()
    share = pair.check(strategy)
    assert share == pytest.approx(0.75, abs=0.001)
    pair.ours.close()


def test_a_full_buffer_relabels_the_steps_that_are_left(schema_url):
    pair = Pair(schema_url, 1, "episode", size=64).play()
    pair.places = dict(list(pair.places.items())[-64:])
    pair.after = dict(list(pair.after.items())[-64:])
    pair.check("episode", 50)
    pair.ours.close()


def test_normalized_batches_equal_theirs(schema_url):
    pair = Pair(schema_url, 2, GoalSelectionStrategy.FUTURE).play()
    env = VecNormalize(pair.env, norm_obs_keys=["observation"], clip_obs=1e9, clip_reward=0.5)
    env.obs_rms["observation"].var = np.full(2, 4.0 - env.epsilon)
    env.ret_rms.var = np.float64(4.0)
    pair.check("future", 50, env)
    pair.ours.close()


class Reach(gymnasium.Env):
    """A point that is to be moved to another within 20 steps; it ends there."""

    observation_space = spaces.Dict(
        {name: spaces.Box(-1, 1, (2,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        self.t = 0
        return self._observed(), {}

    def _observed(self):
        place = self.place.copy()
        return {"observation": place, "achieved_goal": place, "desired_goal": self.goal.copy()}

    def step(self, action):
        self.place = np.clip(self.place + 0.2 * np.asarray(action, np.float32), -1, 1)
        self.t += 1
        reward = float(self.compute_reward(self.place[None], self.goal[None], [{}])[0])
        return self._observed(), reward, False, self.t == 20, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal, desired_goal, info):
        is_far = np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.15
        return -is_far.astype(np.float32)


def trained(kind, buffer, n_steps, **replay):
    model = kind(
        "MultiInputPolicy", Reach(), seed=0, device="cpu", learning_starts=200, gamma=0.95,
        learning_rate=2e-3, batch_size=128, policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=buffer, replay_buffer_kwargs=replay,
    )  # fmt: skip
    return model.learn(n_steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("buffer", "low", "high"), [(SQLHerReplayBuffer, -8, 0), (SQLReplayBuffer, -20, -14)]
)
def test_ddpg_learns_to_reach_goals_in_hindsight_alone(sqlite_url, buffer, low, high):
    model = trained(DDPG, buffer, 1_200, url=sqlite_url)
    mean, _ = evaluate_policy(model, model.get_env(), 30)
    model.replay_buffer.close()
    assert low < mean <= high  # -20 where goals are never reached


def test_a_buffer_is_saved_and_loaded_with_its_algorithm(schema_url, tmp_path):
    options = {"url": schema_url, "goal_selection_strategy": "final", "n_sampled_goal": 2}
    model = trained(SAC, SQLHerReplayBuffer, 250, **options)
    model.save_replay_buffer(tmp_path / "replay")
    model.save(tmp_path / "model")
    model.replay_buffer.close()
    assert (tmp_path / "replay.pkl").stat().st_size < 6_000

    again = SAC.load(tmp_path / "model", env=Reach(), device="cpu")
    again.load_replay_buffer(tmp_path / "replay")
    assert isinstance(again.replay_buffer, SQLHerReplayBuffer)
    assert again.replay_buffer.size() == 250
    again.learn(30, reset_num_timesteps=False)
    again.replay_buffer.close()
    assert again.replay_buffer.size() == 280
    with pytest.raises(ValueError, match="already"):
        again.replay_buffer.set_env(again.get_env())


def test_the_plain_class_relabels_once_it_has_an_environment(sqlite_url):
    env, space = Reach(), Reach.observation_space
    with SQLReplayBuffer(
        1_000, space, env.action_space, "cpu", url=sqlite_url, n_sampled_goal=4
    ) as replay:
        play(replay, env, 20)
        with pytest.raises(BufferConfigError, match=r"SQLHerReplayBuffer.*set_env"):
            replay.sample(8)
        replay.set_env(DummyVecEnv([Reach]))
        assert (replay.sample(100).rewards == 0).any()


def play(replay, env, n):
    """Play episodes of 20 steps that stay where they are; return the last observation."""
    obs, _ = env.reset(seed=0)
    for _ in range(n):
        action = np.zeros(2, np.float32)
        after, reward, _, cut, _ = env.step(action)
        replay.add(obs, after, action[None], reward, cut, [{"TimeLimit.truncated": cut}])
        obs = env.reset()[0] if cut else after


def test_steps_of_an_open_episode_are_not_drawn(sqlite_url):
    env = Reach()
    with SQLHerReplayBuffer(
        1_000, env.observation_space, env.action_space, "cpu", url=sqlite_url,
        env=DummyVecEnv([Reach]),
    ) as replay:  # fmt: skip
        play(replay, env, 19)
        with pytest.raises(InsufficientDataError, match="episodes that have not ended"):
            replay.sample(8)
        play(replay, env, 25)
        assert replay.sample(8).rewards.shape == (8, 1)
        assert replay.size() == 44


def test_a_discrete_goal_is_relabelled(sqlite_url):
    model = DQN(
        "MultiInputPolicy", BitFlippingEnv(4, discrete_obs_space=True), learning_starts=20, seed=0,
        device="cpu", replay_buffer_class=SQLHerReplayBuffer,
        replay_buffer_kwargs={"url": sqlite_url},
    )  # fmt: skip
    model.learn(40)
    sample = model.replay_buffer.sample(200)
    model.replay_buffer.close()
    reached = sample.next_observations["achieved_goal"] == sample.observations["desired_goal"]
    assert torch.equal(reached.float(), sample.rewards + 1)
    assert 0 < reached.float().mean() < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copy_info_dict": True}, "stores no info"),
        ({"n_steps": 3, "gamma": 0.9}, "n_steps=1, got n_steps=3"),
        ({"n_sampled_goal": 0}, "n_sampled_goal is an integer from 1"),
        ({"goal_selection_strategy": "past"}, "strategy"),
        ({"observation_space": ACTION}, "achieved_goal and desired_goal"),
    ],
)
def test_what_hindsight_cannot_do_is_refused(schema_url, options, message):
    given = {"observation_space": NUMBERED, "action_space": ACTION, "url": schema_url, **options}
    with pytest.raises((BufferConfigError, ArgumentError), match=message):
        SQLHerReplayBuffer(100, device="cpu", **given)
