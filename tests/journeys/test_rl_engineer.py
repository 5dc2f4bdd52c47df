"""An RL engineer trains DQN on one machine, looks at the data, and moves to a shared server."""

# Much of torch has parameters without types.
# pyright: reportUnknownMemberType=false

import copy
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from sqlbuffer import Batch, ReplayBuffer, fields_from_env
from tests.conftest import MakeDatabaseUrl
from tests.journeys.conftest import Terminal

GAMMA, BATCH, WARMUP = 0.99, 64, 200


class DQN:
    """A network, its target, and one step of gradient descent."""

    def __init__(self) -> None:
        self.network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        self.target = copy.deepcopy(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)

    def act(self, obs: np.ndarray[tuple[int], np.dtype[np.float32]]) -> int:
        with torch.no_grad():
            return int(self.network(torch.from_numpy(obs)).argmax())

    def learn(self, batch: Batch) -> float:
        drawn = batch.to_torch()
        with torch.no_grad():
            value = self.target(drawn.next_obs).max(1).values
            target = drawn.reward + drawn.discount * value
        chosen = self.network(drawn.obs).gather(1, drawn.action[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(chosen, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def make_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def train(buffer: ReplayBuffer, dqn: DQN, n_steps: int, seed: int) -> list[float]:
    """Play, and learn at every eighth step after the warm-up; return the losses."""
    env, rng = buffer.record(make_env()), np.random.default_rng(seed)
    losses: list[float] = []
    obs, _ = env.reset(seed=seed)
    for t in range(n_steps):
        epsilon = max(0.05, 1 - t / 1_000)
        action = int(rng.integers(2)) if rng.random() < epsilon else dqn.act(obs)
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
        if t >= WARMUP and t % 8 == 0:
            losses.append(dqn.learn(buffer.sample_transitions(BATCH, gamma=GAMMA)))
        if t % 200 == 0:
            dqn.target.load_state_dict(dqn.network.state_dict())
    env.close()
    return losses


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("here", "there"), [("sqlite", "postgresql"), ("postgresql", "sqlite")], ids=["up", "down"]
)
def test_trains_looks_copies_and_goes_on(
    terminal: Terminal, make_database_url: MakeDatabaseUrl, here: str, there: str
) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    url, there_url = make_database_url(here), make_database_url(there)
    spaces = fields_from_env(make_env())

    # Record and learn, in one process.
    buffer = ReplayBuffer(url, "cartpole", max_capacity=10_000, create=True, **spaces)
    dqn = DQN()
    losses = train(buffer, dqn, 1_000, seed=1)
    assert len(losses) == 100
    assert np.isfinite(losses).all()
    assert len(buffer) == 1_000

    # Look at it.
    (overview,) = json.loads(terminal(f"sqlbuffer ls {url} --json").out)
    assert (overview["buffer"], overview["rows"]) == ("cartpole", 1_000)
    newest, *others = json.loads(terminal(f"sqlbuffer ls {url} cartpole --limit 0 --json").out)
    assert sum(episode["steps"] for episode in (newest, *others)) == 1_000
    shown = terminal(f"sqlbuffer show {url} {newest['task_id']}").out
    assert shown.count("obs      float32(4,) [") == newest["steps"]
    # Where `env.close()` cut it, unless the pole fell at that step.
    assert shown.rstrip().splitlines()[-3].endswith(("truncated", "terminated"))

    # Copy it to the other database. A shared one is never changed unasked.
    copied = terminal(f"sqlbuffer copy {url} {there_url} --buffer cartpole")
    if there == "postgresql":
        assert copied.code == 4
        assert terminal(copied.err.split("`")[1]).code == 0  # what the message says to type
        copied = terminal(f"sqlbuffer copy {url} {there_url} --buffer cartpole")
    assert copied.code == 0
    assert "1,000 steps" in copied.out + copied.err

    # Go on there, with all that was there.
    moved = ReplayBuffer(there_url, "cartpole")
    assert list(moved) == list(buffer)
    assert moved.config == buffer.config
    losses = train(moved, dqn, 280, seed=2)
    assert len(losses) == 10
    assert len(moved) == 1_280
    answer = terminal(
        f"sqlbuffer sql {there_url} 'SELECT status, sum(length) AS steps FROM v_episodes "
        f"GROUP BY status' --csv"
    )
    assert answer.out.split() == ["status,steps", "complete,1280"]
    for opened in (buffer, moved):
        opened.close()
