"""An RL engineer trains DQN on one machine, looks at the data, and moves to a shared server; then
learns by priority from an environment with parts, and goes on where the program stopped; then
brings data of others, and fills a buffer from a simulator of many environments.
"""

# Much of torch has parameters without types.
# pyright: reportUnknownMemberType=false

import copy
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from sqlbuffer import Batch, HindsightGoals, PrioritizedSampler, ReplayBuffer, fields_from_env
from sqlbuffer.errors import ArgumentError, BufferConfigError, FieldError
from sqlbuffer.interchange import export_arrays, import_arrays
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
    declared = fields_from_env(make_env())

    # Record and learn, in one process.
    buffer = ReplayBuffer(url, "cartpole", max_capacity=10_000, create=True, **declared)
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


PARTS: dict[str, Any] = {
    "camera": spaces.Box(0, 255, (1, 8), np.uint8),
    "arm": spaces.Dict({"pose": spaces.Box(-1, 1, (3,), np.float32)}),
}


class Room(gymnasium.Env[dict[str, Any], Any]):
    """A robot in a corridor of eight places, with a camera and an arm; it walks to the last one."""

    observation_space = spaces.Dict(PARTS)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.t = 0, 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.place, self.t = max(0, self.place + (1 if action else -1)), self.t + 1
        is_there = self.place == 7
        return self.seen(), float(is_there), is_there, self.t == 30, {}

    def seen(self) -> dict[str, Any]:
        camera = np.zeros((1, 8), np.uint8)
        camera[0, self.place] = 255
        return {"camera": camera, "arm": {"pose": np.full(3, self.place / 7, np.float32)}}


def walk(buffer: ReplayBuffer, n_steps: int, seed: int) -> None:
    env, rng = buffer.record(Room(), agent_id="walker"), np.random.default_rng(seed)
    env.reset(seed=seed)
    for _ in range(n_steps):
        *_, terminated, truncated, _ = env.step(int(rng.random() < 0.7))
        if terminated or truncated:
            env.reset()
    env.close()


@pytest.mark.thorough
@pytest.mark.combinations
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_learns_by_priority_from_an_environment_with_parts_and_goes_on(
    terminal: Terminal,
    make_database_url: MakeDatabaseUrl,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    url = make_database_url(kind)
    parts = fields_from_env(Room())
    assert sorted(parts["observation_fields"]) == ["obs_arm_pose", "obs_camera"]

    buffer = ReplayBuffer(url, "room-walker", create=True, priorities=True, **parts)
    walk(buffer, 400, seed=1)
    assert len(buffer) == 400

    # A slip in the name is a new and empty buffer, and the log says so.
    slip = ReplayBuffer(url, "room_walker")
    assert "next to 'room-walker', which has nearly its name" in caplog.text
    ReplayBuffer.drop(url, slip.name)
    with pytest.raises(KeyError, match="no buffer 'room_walker'"):
        ReplayBuffer(url, "room_walker", create=False)

    # Learn three-step values from the arm's pose: where the error is large, draw more often.
    values = np.zeros(8)

    def learn(batch: Batch) -> None:
        places = (batch.obs_arm_pose[:, 0] * 7).round().astype(int)
        after = (batch.next_obs_arm_pose[:, 0] * 7).round().astype(int)
        np.testing.assert_array_equal(batch.obs_camera[:, 0].argmax(1), places)
        errors = batch.reward + batch.discount * values[after] - values[places]
        np.add.at(values, places, 0.1 * batch.weights * errors)
        buffer.update_priorities(batch.seq, np.abs(errors), eps=0.01)

    sampler = PrioritizedSampler(beta=0.4, beta_anneal_steps=60, seed=3)
    for _ in range(40):
        learn(buffer.sample_transitions(32, n_step=3, gamma=0.9, sampler=sampler))
    assert sampler.beta == pytest.approx(0.8)
    saved = json.dumps({"values": values.tolist(), "sampler": sampler.state_dict()})
    expected = buffer.sample_transitions(32, n_step=3, gamma=0.9, sampler=sampler)

    # What is left out by mistake is refused, and the message says what to type.
    with pytest.raises(ArgumentError, match=r"batch_size is an integer from 1 to .*, got 0"):
        buffer.sample_transitions(0)
    buffer.close()
    with pytest.raises(BufferConfigError, match="is closed") as refused:
        buffer.sample_transitions(32)
    assert "ReplayBuffer(" in str(refused.value)
    assert "'room-walker')" in str(refused.value)

    # The next day: the same draws and weights, and the rest of the annealing.
    state = json.loads(saved)
    values[:] = state["values"]
    sampler = PrioritizedSampler(beta=0.4, beta_anneal_steps=60, seed=3)
    sampler.load_state_dict(state["sampler"])
    with ReplayBuffer(url, "room-walker", create=False) as buffer, buffer.mirror() as mirror:
        batch = buffer.sample_transitions(32, n_step=3, gamma=0.9, sampler=sampler)
        assert batch.seq.tolist() == expected.seq.tolist()
        assert batch.weights.tolist() == expected.weights.tolist()
        learn(batch)
        for _ in range(60):
            learn(mirror.sample_transitions(32, n_step=3, gamma=0.9, sampler=sampler))
        assert sampler.beta == 1.0
    assert (np.diff(values[:7]) > 0).all()  # nearer to the end is worth more

    # What was drawn often is what was surprising: the analyst sees the priorities too.
    answer = terminal(
        f"sqlbuffer sql {url} 'SELECT count(*) AS steps, count(DISTINCT episode_id) AS episodes "
        f"FROM v_experiences' --json"
    )
    (counted,) = json.loads(answer.out)
    assert counted["steps"] == 400
    (drawn,) = json.loads(terminal(f"sqlbuffer sample {url} -n 1 --eq reward=1.0 --json").out)
    assert drawn["terminated"] is True


@pytest.mark.thorough
@pytest.mark.combinations
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_brings_arrays_of_others_and_learns_offline(
    terminal: Terminal, make_database_url: MakeDatabaseUrl, tmp_path: Path, kind: str
) -> None:
    url, rng = make_database_url(kind), np.random.default_rng(1)
    if kind == "postgresql":
        assert terminal(f"sqlbuffer db init {url}").code == 0

    # Someone's data set: a walk of five episodes of 40 steps in one array, and a tail.
    n = 220
    moves = rng.choice([-1.0, 1.0], n)
    data: dict[str, Any] = {
        "observations": np.zeros((n, 1), np.float32),
        "actions": (moves > 0).astype(np.int64),
        "rewards": np.zeros(n),
        "terminals": np.zeros(n, bool),
        "timeouts": np.arange(n) % 40 == 39,
    }
    for t in range(1, n):
        is_first = t % 40 == 0
        data["observations"][t] = 0 if is_first else data["observations"][t - 1] + moves[t - 1]
    data["rewards"] = data["observations"][:, 0] + moves
    np.savez(tmp_path / "walk.npz", **data)

    imported = terminal(f"sqlbuffer import walk.npz {url} --buffer walk --tail drop")
    assert imported.code == 0, imported.err
    assert "200" in imported.out + imported.err
    assert terminal(f"sqlbuffer import walk.npz {url} --buffer walk --tail drop").code == 0

    walk = ReplayBuffer(url, "walk", create=False)
    assert len(walk) == 200  # the second run added nothing
    stats = walk.stats()
    assert (stats.episodes, stats.rows) == (5, 200)

    # A mistake in the data is named, and adds nothing.
    short = data | {"rewards": data["rewards"][:-1]}
    with pytest.raises(FieldError, match="rewards"):
        import_arrays(url, short, "walk")
    assert len(walk) == 200

    # Passes over all steps, in another order with each seed: the value of the two actions.
    means: list[float] = []
    for seed in (1, 2):
        total, count = np.zeros(2), np.zeros(2)
        for batch in walk.loader("transition", 64, epochs=2, seed=seed, drop_last=False):
            gained = batch.reward - batch.obs[:, 0]
            np.add.at(total, batch.action, gained)
            np.add.at(count, batch.action, 1)
        assert count.sum() == 2 * batch_steps(walk)
        means += (total / count).tolist()
    assert means == pytest.approx([-1, 1, -1, 1])

    # And out again, for the next one.
    arrays = export_arrays(walk)
    np.testing.assert_array_equal(arrays["observations"], data["observations"][:200])
    np.testing.assert_array_equal(arrays["timeouts"], data["timeouts"][:200])
    walk.close()


def batch_steps(buffer: ReplayBuffer) -> int:
    """Return how many steps have an observation after them: the others end without one."""
    batches = buffer.loader("transition", 1_000, epochs=1, drop_last=False)
    return sum(batch.n_rows for batch in batches)


class Reach(gymnasium.Env[dict[str, Any], Any]):
    """A point on a line that is to reach a goal; `info` says which moves are possible."""

    observation_space = spaces.Dict(
        {
            name: spaces.Box(-9, 9, (1,), np.float32)
            for name in ("observation", "achieved_goal", "desired_goal")
        }
    )
    action_space = spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.t = 0, 0
        self.goal = int(self.np_random.integers(-6, 7))
        return self.seen(), self.info()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.at, self.t = self.at + int(action) - 1, self.t + 1
        reward = float(reached(np.array([[self.at]]), np.array([[self.goal]]), {})[0])
        return self.seen(), reward, False, self.t == 12, self.info()

    def seen(self) -> dict[str, Any]:
        place, goal = (np.array([value], np.float32) for value in (self.at, self.goal))
        return {"observation": place, "achieved_goal": place, "desired_goal": goal}

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.at > -9, True, self.at < 9], np.int8)}


def reached(achieved_goal: Any, desired_goal: Any, infos: Any) -> Any:
    return (achieved_goal == desired_goal).all(axis=-1) - 1.0


@pytest.mark.thorough
@pytest.mark.combinations
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_learns_goals_in_hindsight_and_fills_a_buffer_from_a_simulator(
    terminal: Terminal, make_database_url: MakeDatabaseUrl, kind: str
) -> None:
    url = make_database_url(kind)

    # Goals that were hardly ever reached: most rewards are -1.
    fields = fields_from_env(Reach(), info_fields={"action_mask": ("int8", (3,))})
    reach = ReplayBuffer(url, "reach", create=True, **fields)
    with reach.record(Reach(), info_fields=["action_mask"]) as env:
        rng = np.random.default_rng(0)
        _, info = env.reset(seed=0)
        for _ in range(480):
            action = rng.choice(np.flatnonzero(info["action_mask"]))
            *_, truncated, info = env.step(action)
            if truncated:
                _, info = env.reset()
    assert reach.spaces is not None
    assert reach.spaces.action == spaces.Discrete(3)

    goals = HindsightGoals(n_sampled_goal=4, strategy="future", reward_fn=reached)
    plain = reach.sample_transitions(256)
    relabelled = reach.sample_transitions(256, relabel=goals)
    assert relabelled.obs["desired_goal"].shape == relabelled.next_obs["observation"].shape
    assert relabelled.action_mask.shape == relabelled.next_action_mask.shape == (256, 3)
    assert (relabelled.reward == 0).mean() > (plain.reward == 0).mean()
    with pytest.raises(ArgumentError, match="n_step=1"):
        reach.sample_transitions(256, n_step=3, relabel=goals)
    with reach.mirror() as mirror:
        batch = mirror.sample_transitions(64, relabel=goals)
        rows = np.flatnonzero(batch.info["relabelled"])
        expected = reached(batch.next_obs["achieved_goal"], batch.obs["desired_goal"], {})
        np.testing.assert_array_equal(batch.reward[rows], expected[rows])

    # A simulator steps 32 bodies at a time and returns arrays.
    bodies = ReplayBuffer(
        url, "bodies", fields={"obs": ("float32", (2,)), "action": ("float32", (1,))}
    )
    rng = np.random.default_rng(3)
    with bodies.vector_writer(32, model_version=7) as writer:
        place, age = np.zeros((32, 2), np.float32), np.zeros(32, int)
        for _ in range(60):
            action = rng.normal(size=(32, 1)).astype(np.float32)
            after, age = place + action, age + 1
            falls, is_old = rng.random(32) < 0.02, age == 25
            step = {"obs": place, "action": action, "reward": after.sum(axis=1)}
            writer.write({**step, "terminated": falls, "truncated": is_old}, final={"obs": after})
            done = falls | is_old
            place, age = np.where(done[:, None], 0, after).astype(np.float32), age * ~done
        with pytest.raises(FieldError, match=r"obs: expected shape \(32, 2\)"):
            writer.write({"obs": place[:3], "action": place[:3, :1]})
    assert len(bodies) == 32 * 60
    batch = bodies.sample_transitions(500)
    np.testing.assert_allclose(batch.next_obs, batch.obs + batch.action, rtol=1e-6)
    answer = terminal(
        f'sqlbuffer sql {url} "SELECT max(length) AS longest, min(model_version) AS version, '
        f"count(DISTINCT status) AS statuses FROM v_episodes WHERE buffer = 'bodies'\" --json"
    )
    assert json.loads(answer.out) == [{"longest": 25, "version": 7, "statuses": 1}]
    for opened in (reach, bodies):
        opened.close()
