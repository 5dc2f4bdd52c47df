"""Collectors and a learner as actors of Ray, with one buffer between them.

    python docs/examples/ray_cartpole.py --url postgresql://me@db.internal/replay
    python docs/examples/ray_cartpole.py --url sqlite:///ray.db --updates 200

Four collectors play CartPole and record their steps. The learner draws n-step transitions from a
mirror of the buffer and hands its weights to the collectors through Ray. One collector is killed in
the middle of an episode, and Ray restarts it. The steps that it had stored are there; the episode
that it did not finish is not drawn. At the end Ray Data reads the buffer in parallel, each step
once.

It needs `pip install '.[ray,demo,torch]'` in the checkout. With SQLite all actors are on one
machine.
"""

import argparse
import os
import time

import gymnasium
import numpy as np
import ray
import torch

from sqlbuffer import ReplayBuffer, fields_from_env
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.integrations.ray import read_buffer

BUFFER = "ray-cartpole"
GAMMA, N_STEP, BATCH_SIZE = 0.99, 3, 64


def open_buffer(url: str) -> ReplayBuffer:
    fields = fields_from_env(gymnasium.make("CartPole-v1"))
    return ReplayBuffer(url, name=BUFFER, max_capacity=50_000, create=True, **fields)


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Collector:
    """Plays CartPole; Ray restarts it when its process dies."""

    def __init__(self, url: str, number: int) -> None:
        torch.set_num_threads(1)
        self._number, self._policy = number, network()
        self._rng = np.random.default_rng([number, os.getpid()])
        self._buffer = open_buffer(url)
        env = gymnasium.make("CartPole-v1")
        self._env = self._buffer.record(env, agent_id=f"collector-{number}")

    def play(self, weights: dict, version: int, epsilon: float) -> tuple[int, float]:
        """Play an episode; return the number of the collector and the return."""
        self._policy.load_state_dict(weights)
        self._env.model_version = version
        obs, _ = self._env.reset(seed=int(self._rng.integers(2**31)))
        total, has_ended = 0.0, False
        while not has_ended:
            with torch.no_grad():
                best = int(self._policy(torch.from_numpy(obs)).argmax())
            action = int(self._rng.integers(2)) if self._rng.random() < epsilon else best
            obs, reward, terminated, truncated, _ = self._env.step(action)
            total, has_ended = total + float(reward), terminated or truncated
        return self._number, total

    def close(self) -> None:
        """Store the steps that wait."""
        self._env.close()
        self._buffer.close()


@ray.remote(num_cpus=0)
class Learner:
    """Learns from a mirror of the buffer: double DQN on n-step transitions."""

    def __init__(self, url: str) -> None:
        torch.set_num_threads(1)
        self._online, self._target, self._updates = network(), network(), 0
        self._target.load_state_dict(self._online.state_dict())
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=1e-3)
        self._buffer = open_buffer(url)
        self._mirror = self._buffer.mirror(refresh_s=0.1)

    def learn(self, n_updates: int) -> tuple[int, dict]:
        """Make some updates; return the number of all updates, and the weights."""
        for _ in range(n_updates):
            try:
                batch = self._mirror.sample_transitions(BATCH_SIZE, n_step=N_STEP, gamma=GAMMA)
            except InsufficientDataError:
                time.sleep(0.1)  # the collectors have just started
                continue
            self._update(batch.to_torch())
        return self._updates, self._online.state_dict()

    def _update(self, batch) -> None:
        with torch.no_grad():
            best = self._online(batch.next_obs).argmax(1, keepdim=True)
            following = self._target(batch.next_obs).gather(1, best)[:, 0]
        target = batch.reward.float() + batch.discount.float() * following
        values = self._online(batch.obs).gather(1, batch.action[:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss(values, target)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._updates += 1
        with torch.no_grad():
            pairs = zip(self._target.parameters(), self._online.parameters(), strict=True)
            for old, new in pairs:
                old.lerp_(new, 0.01)


def train(url: str, n_collectors: int, n_updates: int) -> list[float]:
    """Collect and learn at the same time; return the returns of the episodes."""
    learner = Learner.remote(url)
    collectors = [Collector.remote(url, i) for i in range(n_collectors)]
    version, weights = ray.get(learner.learn.remote(0))
    learning = learner.learn.remote(20)
    playing = [collector.play.remote(weights, version, 1.0) for collector in collectors]
    returns, is_killed = [], False
    while version < n_updates:
        (done,), _ = ray.wait([learning, *playing], num_returns=1)
        if done == learning:
            version, weights = ray.get(learning)
            learning = learner.learn.remote(20)
            continue
        number, total = ray.get(done)
        returns.append(total)
        epsilon = max(0.05, 1.0 - version / (0.5 * n_updates))
        playing.remove(done)
        playing.append(collectors[number].play.remote(weights, version, epsilon))
        if len(returns) == 20 and not is_killed:
            is_killed = True
            ray.kill(collectors[number], no_restart=False)  # Ray plays its episode again
            print(f"killed collector {number} while it played; Ray restarts it")
    ray.get([learning, *playing])
    ray.get([collector.close.remote() for collector in collectors])
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///ray.db", help="of the database")
    parser.add_argument("--collectors", type=int, default=4)
    parser.add_argument("--updates", type=int, default=3000)
    args = parser.parse_args()
    url = args.url
    if url.startswith("sqlite:///"):  # actors have working directories of their own
        url = "sqlite:///" + os.path.abspath(url.removeprefix("sqlite:///"))

    ray.init(ignore_reinit_error=True, include_dashboard=False, log_to_driver=False)
    with open_buffer(url) as buffer:
        returns = train(url, args.collectors, args.updates)
        first, last = np.mean(returns[:20]), np.mean(returns[-20:])
        print(f"{len(returns)} episodes; mean return of 20: {first:.0f} first, {last:.0f} last")
        steps = read_buffer(url, BUFFER, columns=["seq", "agent_id", "reward"])
        by_agent = steps.groupby("agent_id").count().take_all()
        for row in sorted(by_agent, key=lambda row: row["agent_id"]):
            print(f"{row['agent_id']}: {row['count()']} steps read by Ray Data")
        assert sum(row["count()"] for row in by_agent) == len(buffer)


if __name__ == "__main__":
    main()
