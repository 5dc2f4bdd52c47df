"""Flat arrays in HDF5 and tensors, and the replay buffers of Stable-Baselines3 and cpprb."""

from pathlib import Path
from typing import Any

import cpprb
import gymnasium
import h5py
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer as SB3ReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from sqlbuffer import ReplayBuffer, fields_from_env
from sqlbuffer.errors import ArgumentError, FieldError, FileImportError, InsufficientDataError
from sqlbuffer.integrations.sb3 import SQLReplayBuffer
from sqlbuffer.interchange import (
    export_arrays,
    from_cpprb,
    from_sb3,
    import_arrays,
    to_cpprb,
    to_sb3,
)
from tests.cli.conftest import run
from tests.interchange.test_arrays import (
    expected_episodes,
    flat_arrays,
    stored_episodes,
)
from tests.peers.sb3.conftest import _one_thread
from tests.support.sql import run as run_sql

__all__ = ["_one_thread", "run"]
pytestmark = pytest.mark.filterwarnings("ignore")
LENGTH = 7  # steps until a time limit


def test_hdf5_goes_in_and_comes_out(schema_url: str, tmp_path: Path) -> None:
    arrays = flat_arrays(tail=0)
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
        file["metadata/algorithm"] = "sac"
    import_arrays(schema_url, tmp_path / "d4rl.hdf5")
    with ReplayBuffer(schema_url) as buffer:
        assert stored_episodes(buffer, arrays) == expected_episodes(arrays, "cut")
        for compress in (False, True):
            export_arrays(buffer, tmp_path / "out.h5", compress=compress, overwrite=True)
            with h5py.File(tmp_path / "out.h5") as file:
                for name, values in arrays.items():
                    np.testing.assert_array_equal(file[name][()], values)
                assert import_arrays(schema_url, file, "of the file").n_steps == 60


def test_a_damaged_file_is_named(sqlite_url: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for name, values in flat_arrays().items():
            file.create_dataset(name, data=values, fletcher32=True)
    raw = bytearray((tmp_path / "data.h5").read_bytes())
    place = raw.index(flat_arrays()["observations"].tobytes()[:64])
    raw[place] ^= 1
    (tmp_path / "damaged.h5").write_bytes(raw)
    for damaged in (tmp_path / "damaged.h5", tmp_path / "short.h5"):
        (tmp_path / "short.h5").write_bytes(raw[:900])
        with pytest.raises(FileImportError, match=r"\.h5 cannot be read, or is damaged"):
            import_arrays(sqlite_url, damaged)
    with h5py.File(tmp_path / "d3rlpy.h5", "w") as file:
        file["num_episodes"] = 1
    with pytest.raises(FileImportError, match="a dict of arrays for each of its"):
        import_arrays(sqlite_url, tmp_path / "d3rlpy.h5")


def test_tensors_are_arrays(sqlite_url: str) -> None:
    arrays = flat_arrays()
    import_arrays(sqlite_url, {name: torch.from_numpy(v) for name, v in arrays.items()})
    with ReplayBuffer(sqlite_url) as buffer:
        assert stored_episodes(buffer, arrays) == expected_episodes(arrays, "cut")
    with pytest.raises(FieldError, match="detach a tensor and move it to the CPU"):
        import_arrays(sqlite_url, {**arrays, "x": torch.zeros(60, requires_grad=True)})


def test_commands_import_and_export_arrays(run: Any, database_url: str) -> None:
    arrays = flat_arrays(tail=3)
    np.savez("data.npz", **{**arrays, "acts": arrays["actions"], "actions": np.array("discrete")})
    words = ["--buffer", "off", "--column", "acts=actions", "--tail", "drop"]
    run("db", "init", database_url)
    done = run("import", "data.npz", database_url, *words)
    assert done.exit_code == 0, done.stderr
    assert "57 of 60 steps, 1 episode without an end left out" in done.stdout
    for out in ("out.npz", "out.h5"):
        done = run("export", database_url, out, "--buffer", "off")
        assert done.exit_code == 0, done.stderr
        done = run("import", out, "again.db", "--buffer", "again", "--prefix", out)
        assert "57 of 57 steps" in done.stdout, done.stderr
    out = np.load("out.npz")
    np.testing.assert_array_equal(out["actions"], arrays["actions"][:57])
    assert run("import", "data.jsonl", "x.db", "--tail", "cut").exit_code == 2
    assert run("export", database_url, "out", "-f", "hdf5", "-b", "off").exit_code == 0
    done = run("import", "out.npz", "again.db", "-b", "b", "--column", "images=", "--store-next")
    assert done.exit_code == 0, done.stderr
    assert "next_obs" in ReplayBuffer("again.db", "b").fields


class Walk(gymnasium.Env):  # type: ignore[type-arg]
    """Random observations; episodes terminate at random, and are cut after some steps."""

    action_space = spaces.Discrete(5)

    def __init__(self, space: Any) -> None:
        self.observation_space = space
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.t += 1
        is_over = bool(self.np_random.random() < 0.1)
        reward = float(self.np_random.random())
        return self.observation_space.sample(), reward, is_over, self.t == LENGTH, {}


BOX = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "place": spaces.Box(0, 9, ())})


def collected(space: Any, n_envs: int, size: int, n: int, **options: Any) -> Any:
    """Return a buffer of Stable-Baselines3 with n steps of each environment."""
    envs = DummyVecEnv([lambda: Walk(space)] * n_envs)
    kind = DictReplayBuffer if isinstance(space, spaces.Dict) else SB3ReplayBuffer
    memory = kind(size * n_envs, space, Walk.action_space, "cpu", n_envs, **options)
    envs.seed(1)
    obs, rng = envs.reset(), np.random.default_rng(0)
    for _ in range(n):
        actions = rng.integers(0, 5, n_envs)
        after, rewards, dones, infos = envs.step(actions)
        following = {k: v.copy() for k, v in after.items()} if kind is DictReplayBuffer else (
            after.copy()
        )  # fmt: skip
        for i in np.flatnonzero(dones):
            terminal = infos[i]["terminal_observation"]
            for key, values in following.items() if isinstance(following, dict) else ():
                values[i] = terminal[key]
            if not isinstance(following, dict):
                following[i] = terminal
        memory.add(obs, following, actions, rewards, dones, infos)
        obs = after
    return memory


@pytest.mark.parametrize(("n_envs", "n"), [(1, 30), (1, 75), (3, 30), (3, 75)])
@pytest.mark.parametrize("space", [BOX, IMAGE])
def test_each_transition_of_stable_baselines3_is_in_the_buffer(
    schema_url: str, space: Any, n_envs: int, n: int
) -> None:
    memory = collected(space, n_envs, 50, n)
    report = from_sb3(memory, schema_url)
    assert report.n_stored == min(n, 50) * n_envs == memory.size() * n_envs
    assert from_sb3(memory, schema_url).n_duplicates == report.n_stored
    declared = fields_from_env(Walk(space))
    with ReplayBuffer(schema_url, **declared) as buffer:
        batch = buffer.sample_transitions(4_000)
        rows = list(buffer)
    names = [name for name in declared["fields"] if name.startswith("obs")]
    stored = transitions_of_sb3(memory)
    drawn = {}
    for i in range(batch.n_rows):
        place = b"".join(batch[name][i].tobytes() for name in names)
        following = [batch[f"next_{name}"][i].tolist() for name in names]
        own = batch.action[i], batch.reward[i], batch.terminated[i], following
        drawn[place] = tuple(own)
    assert len(drawn) == len(stored)
    assert all(drawn[key] == value for key, value in stored.items())
    agents = {f"env-{i}" for i in range(n_envs)} if n_envs > 1 else {"default"}
    assert {row.exp_meta.agent_id for row in rows} == agents
    timeouts = sum(bool(row.exp_data.truncated) for row in rows)
    assert memory.timeouts.sum() <= timeouts <= memory.timeouts.sum() + n_envs


def transitions_of_sb3(memory: Any) -> dict[bytes, tuple[Any, ...]]:
    """Return what each step leads to, by its observation."""
    found = {}
    is_dict = isinstance(memory.observations, dict)
    for i in range(memory.size()):
        for env in range(memory.n_envs):
            obs, after = (
                [values[i, env] for values in (part.values() if is_dict else [part])]
                for part in (memory.observations, memory.next_observations)
            )
            is_over = bool(memory.dones[i, env] and not memory.timeouts[i, env])
            own = memory.actions[i, env, 0], memory.rewards[i, env], is_over
            after = [np.asarray(a).tolist() for a in after]
            found[b"".join(np.asarray(o).tobytes() for o in obs)] = (*own, after)
    return found


@pytest.mark.parametrize("n", [30, 75])
def test_a_buffer_of_one_array_of_observations_is_read(sqlite_url: str, n: int) -> None:
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    memory = collected(BOX, 2, 50, n, **options)
    report = from_sb3(memory, sqlite_url)
    assert report.n_stored == (30 if n == 30 else 49) * 2
    with ReplayBuffer(sqlite_url) as buffer:
        batch = buffer.sample_transitions(4_000)
    place = {memory.observations[i, env].tobytes(): (i, env) for i in range(50) for env in (0, 1)}
    seen = set()
    for obs, after, terminated in zip(batch.obs, batch.next_obs, batch.terminated, strict=True):
        i, env = place[obs.tobytes()]
        seen.add((i, env))
        assert terminated == memory.dones[i, env]
        if not terminated:
            np.testing.assert_array_equal(after, memory.observations[(i + 1) % 50, env])
    assert len(seen) == report.n_stored


@pytest.mark.parametrize("space", [BOX, IMAGE])
@pytest.mark.parametrize("n", [30, 75])
def test_a_buffer_of_stable_baselines3_survives_the_round_trip(
    sqlite_url: str, space: Any, n: int
) -> None:
    memory = collected(space, 1, 50, n)
    from_sb3(memory, sqlite_url)
    with ReplayBuffer(sqlite_url) as buffer:
        kind = type(memory)
        again = kind(50, space, Walk.action_space, "cpu")
        assert to_sb3(buffer, again) == memory.size()
    order = (np.arange(memory.size()) + memory.pos * memory.full) % 50
    for name in ("observations", "next_observations", "actions", "rewards", "timeouts", "dones"):
        ours, theirs = getattr(again, name), getattr(memory, name)
        pairs = [(ours, theirs)] if not isinstance(ours, dict) else zip(
            ours.values(), theirs.values(), strict=True
        )  # fmt: skip
        for one, other in pairs:
            n_same = memory.size() - (name in ("timeouts", "dones"))  # the tail is cut
            np.testing.assert_array_equal(one[: memory.size()][:n_same], other[order][:n_same])


def test_steps_of_a_model_and_of_her_are_stored(sqlite_url: str) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=900, device="cpu")
    model.learn(300)
    assert from_sb3(model.replay_buffer, sqlite_url, "dqn", tail="drop").n_open <= 1
    first = len(ReplayBuffer(sqlite_url, "dqn"))
    model.learn(100, reset_num_timesteps=False)
    report = from_sb3(model.replay_buffer, sqlite_url, "dqn", tail="drop")
    assert report.n_duplicates == first
    env = DummyVecEnv([lambda: BitFlippingEnv(4, continuous=True, max_steps=4)])
    memory = HerReplayBuffer(40, env.observation_space, env.action_space, env, "cpu")
    obs = env.reset()
    for _ in range(20):
        action = np.array([env.action_space.sample()])
        after, reward, done, infos = env.step(action)
        memory.add(obs, after, action, reward, done, infos)
        obs = after
    assert from_sb3(memory, sqlite_url, "her").n_stored == 20
    fields = ReplayBuffer(sqlite_url, "her").fields
    assert list(fields) == [
        "obs_achieved_goal", "obs_desired_goal", "obs_observation", "action"
    ]  # fmt: skip


NAMES = {
    "obs": {"shape": (3,)}, "act": {"shape": 2}, "rew": {}, "done": {}, "cost": {"dtype": np.int64},
}  # fmt: skip


def filled_cpprb(n: int, kind: Any = cpprb.ReplayBuffer, *, has_next: bool) -> Any:
    """Return a buffer of cpprb with n steps of episodes that terminate or are cut."""
    memory = kind(50, NAMES, **({"next_of": "obs"} if has_next else {}))
    arrays = flat_arrays(seed=n, n=n)
    for i in range(n):
        after = {"next_obs": arrays["next_observations"][i]} if has_next else {}
        memory.add(
            obs=arrays["observations"][i], act=arrays["actions"][i], rew=arrays["rewards"][i],
            done=arrays["terminals"][i], cost=i, **after,
        )  # fmt: skip
        if arrays["terminals"][i] or arrays["timeouts"][i]:
            memory.on_episode_end()
    return memory


@pytest.mark.parametrize("n", [30, 75])
@pytest.mark.parametrize("kind", [cpprb.ReplayBuffer, cpprb.PrioritizedReplayBuffer])
def test_a_buffer_of_cpprb_survives_the_round_trip(sqlite_url: str, kind: Any, n: int) -> None:
    memory = filled_cpprb(n, kind, has_next=True)
    assert from_cpprb(memory, sqlite_url).n_stored == min(n, 50)
    assert from_cpprb(memory, sqlite_url).n_stored == 0
    with ReplayBuffer(sqlite_url) as buffer:
        again = kind(50, NAMES, next_of="obs")
        assert to_cpprb(buffer, again) == min(n, 50)
        assert "next_obs" not in buffer.fields
    theirs, ours = memory.get_all_transitions(), again.get_all_transitions()
    order = np.argsort(theirs["cost"][:, 0])
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values[order], err_msg=name)


@pytest.mark.parametrize("n_step", [2, 5])
def test_returns_of_several_steps_are_those_of_cpprb(sqlite_url: str, n_step: int) -> None:
    size = {"size": n_step, "gamma": 0.9, "rew": "rew", "next": "next_obs"}
    single = cpprb.ReplayBuffer(100, NAMES, next_of="obs")
    several = cpprb.ReplayBuffer(100, {**NAMES, "next_obs": {"shape": (3,)}}, Nstep=size)
    arrays = flat_arrays(seed=n_step, n=60, tail=0)
    for i in range(60):
        step = {
            "obs": arrays["observations"][i], "act": arrays["actions"][i],
            "rew": arrays["rewards"][i], "next_obs": arrays["next_observations"][i],
            "done": arrays["terminals"][i], "cost": i,
        }  # fmt: skip
        for memory in (single, several):
            memory.add(**step)
            if arrays["terminals"][i] or arrays["timeouts"][i]:
                memory.on_episode_end()
    from_cpprb(single, sqlite_url)
    with ReplayBuffer(sqlite_url) as buffer:
        options = {"n_step": n_step, "gamma": 0.9, "epochs": 1}
        (ours,) = buffer.loader("transition", 60, **options)
    theirs = several.get_all_transitions()
    order, rows = np.argsort(ours.cost[:, 0]), np.argsort(theirs["cost"][:, 0])
    assert len(order) == len(rows) == 60
    np.testing.assert_allclose(ours.reward[order], theirs["rew"][rows, 0], rtol=1e-5)
    # Those of cpprb are ones, not the last observation, for the last steps of an episode.
    is_known = (theirs["next_obs"][rows] != 1).any(1)
    assert is_known.sum() > 20
    after = theirs["next_obs"][rows][is_known]
    np.testing.assert_array_equal(ours.next_obs[order][is_known], after)


def test_a_buffer_of_cpprb_without_next_observations_is_stored(sqlite_url: str) -> None:
    memory = filled_cpprb(30, has_next=False)
    from_cpprb(memory, sqlite_url, columns={"cost": None})
    n_terminal = int(memory.get_all_transitions()["done"].sum())
    (row,) = run_sql(sqlite_url, "SELECT count(*), sum(length) FROM v_episodes")
    assert row == (n_terminal + 1, 30)  # the last one is cut
    assert list(ReplayBuffer(sqlite_url).fields) == ["obs", "action"]


def test_replay_buffers_that_cannot_be_stored_are_named(sqlite_url: str) -> None:
    n_step = cpprb.ReplayBuffer(
        50, {**NAMES, "next_obs": {"shape": 3}},
        Nstep={"size": 3, "gamma": 0.9, "rew": "rew", "next": "next_obs"},
    )  # fmt: skip
    with pytest.raises(FieldError, match="has n-step returns"):
        from_cpprb(n_step, sqlite_url)
    for call, empty in (
        (from_cpprb, cpprb.ReplayBuffer(50, NAMES)),
        (from_sb3, SB3ReplayBuffer(50, BOX, Walk.action_space, "cpu")),
    ):
        with pytest.raises(InsufficientDataError, match="replay_buffer is empty"):
            call(empty, sqlite_url)
        for other in (None, 3, SB3ReplayBuffer, object(), "sqlite://"):
            with pytest.raises(ArgumentError, match=r"^replay_buffer is a .*, got "):
                call(other, sqlite_url)
        with pytest.raises(ArgumentError, match="tail is one of"):
            call(filled_cpprb(5, has_next=True) if call is from_cpprb else empty, tail="x")
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()
    buffer = ReplayBuffer(sqlite_url, fields={"obs": ("float32", (3,)), "action": "int64"})
    with pytest.raises(InsufficientDataError, match="no whole episode"):
        to_cpprb(buffer, cpprb.ReplayBuffer(50, NAMES))
    columns = {"obs": np.zeros((2, 3)), "action": [0, 1], "truncated": [False, True]}
    buffer.store_episode(columns)
    with pytest.raises(FieldError, match="replay_buffer has 'cost', and buffer 'default' has"):
        to_cpprb(buffer, cpprb.ReplayBuffer(50, NAMES))
    memory = SB3ReplayBuffer(50, BOX, Walk.action_space, "cpu")
    assert to_sb3(buffer, memory) == 1  # what came after the last step is unknown
    with pytest.raises(ArgumentError, match=r"^replay_buffer.n_envs is 1"):
        to_sb3(buffer, SB3ReplayBuffer(50, BOX, Walk.action_space, "cpu", n_envs=2))


def walked(memory: Any, n: int, seed: int) -> None:
    """Add n steps of environments whose episodes begin alike."""
    rng = np.random.default_rng(seed)
    n_envs = memory.n_envs
    t = np.zeros(n_envs) if memory.pos == 0 else memory.next_observations[memory.pos - 1, :, 0]
    t = t if memory.pos == 0 else np.where(memory.dones[memory.pos - 1], 0, t)
    for _ in range(n):
        dones = (t > 0) & (rng.random(n_envs) < 0.3)
        memory.add(t[:, None], t[:, None] + 1, np.zeros(n_envs), np.zeros(n_envs), dones,
                   [{}] * n_envs)  # fmt: skip
        t = np.where(dones, 0, t + 1)


@pytest.mark.parametrize("tail", ["open", "drop"])
def test_environments_whose_episodes_begin_alike_are_stored_again_and_again(
    sqlite_url: str, tail: Any
) -> None:
    space = spaces.Box(0, 99, (1,), np.float32)
    memory = SB3ReplayBuffer(600, space, Walk.action_space, "cpu", n_envs=3)
    for seed in range(5):
        walked(memory, 13, seed)
        report = from_sb3(memory, sqlite_url, tail=tail)
        assert report.n_conflicts == 0
        again = from_sb3(memory, sqlite_url, tail=tail)
        assert (again.n_stored, again.n_conflicts) == (0, 0)
    from_sb3(memory, sqlite_url)
    with ReplayBuffer(sqlite_url) as buffer:
        assert len(buffer) == 5 * 13 * 3
        stored: dict[tuple[str, str], list[float]] = {}
        for row in buffer:
            episode = stored.setdefault((row.exp_meta.agent_id, row.exp_meta.episode_id), [])
            episode.append(float(row.fields["obs"][0]))
    assert all(steps == [*range(len(steps))] for steps in stored.values())
    starts = (memory.observations[: memory.pos] == 0).sum(0)[:, 0]
    assert [sum(agent == f"env-{i}" for agent, _ in stored) for i in range(3)] == starts.tolist()


def test_a_replay_buffer_with_more_steps_than_were_cut_is_named(sqlite_url: str) -> None:
    memory = SB3ReplayBuffer(100, spaces.Box(0, 99, (1,)), Walk.action_space, "cpu")
    for n in (1, 2):
        memory.add(np.full((1, 1), n), np.full((1, 1), n + 1), np.zeros(1), np.zeros(1),
                   np.array([False]), [{}])  # fmt: skip
        if n == 1:
            from_sb3(memory, sqlite_url)
    with pytest.raises(FileImportError, match="arrays that grow need tail='open'"):
        from_sb3(memory, sqlite_url)


KEYS = spaces.Dict({
    "front camera": spaces.Box(0, 255, (2, 2), np.uint8), "a/b": spaces.Box(-1, 1, (3,)),
    "größe": spaces.Box(0, 9, ()), "x_lens": spaces.Box(-9, 9, (1,)), "3": spaces.Discrete(4),
    "obs_x": spaces.MultiBinary(3),
})  # fmt: skip


def test_keys_of_observations_become_the_same_fields_everywhere(sqlite_url: str) -> None:
    memory = collected(KEYS, 1, 50, 40)
    from_sb3(memory, sqlite_url, "from_sb3")
    declared = fields_from_env(Walk(KEYS))
    ours = SQLReplayBuffer(50, KEYS, Walk.action_space, "cpu", url=sqlite_url, name="sql")
    for i in range(40):
        obs, after = (
            {key: values[i] for key, values in observations.items()}
            for observations in (memory.observations, memory.next_observations)
        )
        infos = [{"TimeLimit.truncated": bool(memory.timeouts[i, 0])}]
        ours.add(obs, after, memory.actions[i], memory.rewards[i], memory.dones[i], infos)
    ours.close()
    with (
        ReplayBuffer(sqlite_url, "from_sb3", **declared) as one,
        ReplayBuffer(sqlite_url, "sql") as other,
    ):
        names = set(declared["observation_fields"])
        assert set(one.observation_fields) == set(other.observation_fields) == names
        assert "obs_front_camera" in names
        for buffer in (one, other):
            again = DictReplayBuffer(50, KEYS, Walk.action_space, "cpu")
            n = to_sb3(buffer, again)
            assert n >= 39  # the last episode of the second one has no end
            for name in ("observations", "next_observations"):
                for key, values in getattr(memory, name).items():
                    np.testing.assert_array_equal(getattr(again, name)[key][:n], values[:n])
            np.testing.assert_array_equal(again.actions[:n], memory.actions[:n])


def test_keys_that_would_be_one_field_are_refused(sqlite_url: str) -> None:
    both = spaces.Dict({"a b": spaces.Box(0, 1, (1,)), "a_b": spaces.Box(0, 1, (1,))})
    with pytest.raises(FieldError, match="two parts of the space would be the field"):
        SQLReplayBuffer(50, both, Walk.action_space, "cpu", url=sqlite_url)
    memory = collected(both, 1, 50, 20)
    with pytest.raises(FieldError, match=r"are both 'obs_a_b'; leave one of them"):
        from_sb3(memory, sqlite_url)
    columns = {"observations/a b": "obs_first", "next_observations/a b": "next_obs_first"}
    assert from_sb3(memory, sqlite_url, columns=columns).n_stored == 20
    assert list(ReplayBuffer(sqlite_url).observation_fields) == ["obs_first", "obs_a_b"]
