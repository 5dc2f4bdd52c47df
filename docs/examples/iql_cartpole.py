"""Offline reinforcement learning in one file: implicit Q-learning (IQL) on CartPole.

    python docs/examples/iql_cartpole.py --url sqlite:///iql.db

A scripted policy that acts at random most of the time makes a data set: flat arrays in an `.npz`
file, the form of D4RL. They are imported into a buffer as whole episodes. IQL (Kostrikov et al.
2021, equations 5 to 7) passes over the buffer and never plays. Its policy is then evaluated next to
the scripted one. Run it again: the data set is not stored twice. It needs gymnasium and torch. The
exit code is 0 if IQL is better, and 1 if it is not."""

import argparse
import sys
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn

from sqlbuffer import ReplayBuffer
from sqlbuffer.interchange import import_arrays

GAMMA, EXPECTILE, BETA, MOST_WEIGHT = 0.99, 0.8, 10.0, 100.0
RANDOM = 0.7  # share of the scripted policy's actions that are random


def scripted(obs: np.ndarray, rng: np.random.Generator) -> int:
    """Push towards the side to which the pole falls, or at random."""
    return int(rng.integers(2)) if rng.random() < RANDOM else int(obs[2] + obs[3] > 0)


def play(policy, n_steps: int, seed: int) -> dict[str, np.ndarray]:
    """Return steps as flat arrays; the last episode may have no end."""
    env, rows = gymnasium.make("CartPole-v1"), []
    obs, _ = env.reset(seed=seed)
    for _ in range(n_steps):
        action = policy(obs)
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, terminated, truncated, after))
        obs = env.reset()[0] if terminated or truncated else after
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    return {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def mean_return(policy, n_steps: int) -> float:
    """Return the mean return of the episodes that end; a step of CartPole is worth 1."""
    steps = play(policy, n_steps, seed=1_000)
    return n_steps / max(1, int((steps["terminals"] | steps["timeouts"]).sum()))


def network(n_outputs: int) -> nn.Module:
    hidden = (nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(64, n_outputs))


class IQL:
    """The networks of IQL for two actions, and their updates."""

    def __init__(self, learning_rate: float = 1e-3) -> None:
        self.q, self.target, self.value, self.actor = (network(n) for n in (2, 2, 1, 2))
        self.target.load_state_dict(self.q.state_dict())
        parts = nn.ModuleList([self.q, self.value, self.actor])
        self.optimizer = torch.optim.Adam(parts.parameters(), lr=learning_rate)

    def update(self, batch) -> float:
        action = batch.action[:, None]
        with torch.no_grad():
            targets = batch.reward + batch.discount * self.value(batch.next_obs)[:, 0]
            quality = self.target(batch.obs).gather(1, action)[:, 0]
        value = self.value(batch.obs)[:, 0]
        advantage = quality - value
        weight = torch.where(advantage > 0, EXPECTILE, 1 - EXPECTILE)
        value_loss = (weight * advantage**2).mean()
        q_loss = nn.functional.mse_loss(self.q(batch.obs).gather(1, action)[:, 0], targets)
        log_probability = self.actor(batch.obs).log_softmax(1).gather(1, action)[:, 0]
        importance = (BETA * advantage.detach()).exp().clamp(max=MOST_WEIGHT)
        actor_loss = -(importance * log_probability).mean()
        loss = value_loss + q_loss + actor_loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, quick in zip(self.target.parameters(), self.q.parameters(), strict=True):
                slow.lerp_(quick, 0.01)
        return loss.item()

    def act(self, obs: np.ndarray) -> int:
        with torch.no_grad():
            return int(self.actor(torch.from_numpy(obs)).argmax())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///iql.db", help="of the database")
    parser.add_argument("--data", help="file of the data set")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data set")
    parser.add_argument("--quick", action="store_true", help="a fifth of the data set")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    data = Path(args.data or f"cartpole{'-quick' * args.quick}.npz")
    if not data.exists():
        n_steps = 10_000 if args.quick else 50_000
        np.savez(data, **play(lambda obs: scripted(obs, rng), n_steps, args.seed))
    print(import_arrays(args.url, data, data.stem))
    iql, before = IQL(), mean_return(lambda obs: scripted(obs, rng), 5_000)
    with ReplayBuffer(args.url, data.stem) as buffer:
        passes = {"epochs": args.epochs, "seed": args.seed, "mirror": True, "device": "cpu"}
        losses = [iql.update(b) for b in buffer.loader("transition", 256, gamma=GAMMA, **passes)]
    after = mean_return(iql.act, 5_000)
    print(f"{len(losses):,} updates, mean return: scripted {before:.0f}, IQL {after:.0f}")
    return 0 if after > before else 1


if __name__ == "__main__":
    sys.exit(main())
