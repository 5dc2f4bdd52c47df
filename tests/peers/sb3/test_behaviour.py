"""What `SQLReplayBuffer` stores, returns and refuses."""

import importlib
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import (
    BufferConfigError,
    BufferNotFoundError,
    FieldError,
    InsufficientDataError,
    MissingExtraError,
    SchemaMissingError,
    StorageUnreachableError,
    URLError,
)
from sqlbuffer.integrations.sb3 import SQLReplayBuffer
from tests.peers.sb3.steps import ACTIONS, SPACES, Step, numbers_of, steps
from tests.support.processes import FRESH, running
from tests.support.proxy import Proxy
from tests.support.sql import run, scalar
from tests.support.storage_hooks import close_pool

BOX, ACTION = SPACES["vector"], ACTIONS["box"]


def opened(url, n_envs=1, size=1_000, **options):
    return SQLReplayBuffer(size, BOX, ACTION, "cpu", n_envs, url=url, **options)


def made(n_envs=1, n=20, **options):
    return list(steps(BOX, ACTION, n_envs, n, **options))


def model(url, algorithm=SAC, env="Pendulum-v1", **options):
    replay = {"url": url, **options.pop("replay", {})}
    return algorithm(
        "MlpPolicy", env, seed=0, device="cpu", policy_kwargs={"net_arch": [8]}, batch_size=16,
        replay_buffer_class=SQLReplayBuffer, replay_buffer_kwargs=replay, **options,
    )  # fmt: skip


def add_all(replay, given):
    for each in given:
        replay.add(*each)


# What is stored.


@pytest.mark.parametrize("n_envs", [1, 3])
def test_steps_are_episodes_of_each_environment(schema_url, n_envs):
    given = made(n_envs, 60)
    with opened(schema_url, n_envs, task_id="pendulum", agent_id="actor-1") as replay:
        replay.model_version = 7
        add_all(replay, given)
    ends = np.array([each.done for each in given]).sum(axis=0)
    open_ones = np.array([not done for done in given[-1].done])
    found = run(
        schema_url,
        "SELECT task_id, agent_id, model_version, status, length, meta FROM v_episodes",
    )
    assert {row[:4] for row in found} == {("pendulum", "actor-1", 7, "complete")}
    envs = [(json.loads(row[5]) if isinstance(row[5], str) else row[5])["env"] for row in found]
    assert [envs.count(env) for env in range(n_envs)] == (ends + open_ones).tolist()
    assert sum(row[4] for row in found) == 60 * n_envs


def test_flags_and_rewards_are_stored_as_the_environment_gave_them(schema_url):
    given = made(1, 60)
    with opened(schema_url) as replay:
        add_all(replay, given)
    with ReplayBuffer(schema_url) as buffer:
        rows = list(buffer)
    cut = [each.infos[0]["TimeLimit.truncated"] for each in given]
    assert sum(cut)
    assert [bool(row.exp_data.truncated) for row in rows] == cut
    assert [bool(row.exp_data.terminated) for row in rows] == [
        bool(each.done[0]) and not was_cut for each, was_cut in zip(given, cut, strict=True)
    ]
    assert [row.exp_data.reward_t for row in rows] == [float(each.reward[0]) for each in given]


def test_an_environment_that_was_reset_begins_an_episode(schema_url):
    with opened(schema_url, 2) as replay:
        first, second = made(2, 4), made(2, 4, first=1_000)
        for each in (*first, *second):
            replay.add(*each._replace(done=np.zeros(2, bool)))
    lengths = run(schema_url, "SELECT length FROM v_episodes")
    assert sum(length for (length,) in lengths) == 16
    assert len(lengths) >= 4
    flags = "SELECT count(*) FROM v_experiences WHERE terminated"
    assert scalar(schema_url, flags) == 0


def test_transitions_of_any_order_can_be_added(schema_url):
    rng = np.random.default_rng(0)
    with opened(schema_url) as replay:
        for _ in range(5):
            obs, after = rng.normal(size=(2, 1, 3)).astype(np.float32)
            replay.add(obs, after, np.zeros((1, 2)), np.ones(1), np.zeros(1), [{}])
        assert replay.size() == 5
        assert replay.sample(32).rewards.mean() == 1.0


def test_a_step_is_drawn_right_after_it_was_added(schema_url):
    with opened(schema_url) as replay:
        for n, each in enumerate(made(1, 10), 1):
            replay.add(*each)
            drawn = replay.sample(256)
            assert len(set(numbers_of(BOX, drawn.observations).tolist())) == n


def test_extend_adds_many(schema_url):
    given = made(2, 10)
    with opened(schema_url, 2) as replay:
        replay.extend(*map(list, zip(*given, strict=True)))
        assert replay.size() == 10
        assert len(replay.buffer) == 20


def test_what_is_added_is_copied(schema_url):
    each = made(1, 1)[0]
    obs = each.obs.copy()
    with opened(schema_url) as replay:
        replay.add(obs, *each[1:])
        obs[:] = 99
        assert (replay.sample(4).observations.numpy() == each.obs).all()


# Sizes, seeds and batches.


@pytest.mark.parametrize("n_envs", [1, 3])
def test_sizes_are_those_of_one_environment(schema_url, n_envs):
    with opened(schema_url, n_envs, size=30) as replay:
        assert (replay.size(), replay.pos, replay.full) == (0, 0, False)
        add_all(replay, made(n_envs, 4))
        assert (replay.size(), replay.pos, replay.full) == (4, 4, False)
        add_all(replay, made(n_envs, 40, first=1_000))
        assert replay.buffer_size == 30 // n_envs
        assert (replay.size(), replay.pos, replay.full) == (30 // n_envs, 0, True)
        assert len(replay.buffer) == 30


def test_a_seed_repeats_the_draws(schema_url):
    with opened(schema_url) as replay:
        add_all(replay, made(1, 100))
    found = []
    for _ in range(2):
        np.random.seed(3)  # noqa: NPY002  (as `set_random_seed` does)
        with opened(schema_url) as replay:
            found.append([replay.sample(8).rewards.numpy() for _ in range(3)])
    np.testing.assert_array_equal(*found)
    assert (found[0][0] != found[0][1]).any()


def test_batches_of_any_size_are_drawn(schema_url):
    with opened(schema_url) as replay:
        add_all(replay, made(1, 30))
        assert [len(replay.sample(n).rewards) for n in (1, 256, 7, 256)] == [1, 256, 7, 256]


def test_nothing_to_draw_is_an_error_until_there_is(schema_url):
    with opened(schema_url, n_steps=3, gamma=0.99) as replay:
        with pytest.raises(InsufficientDataError, match="0"):
            replay.sample(4)
        add_all(replay, made(1, 30))
        assert replay.sample(4).discounts.shape == (4, 1)


def test_a_closed_buffer_stores_but_gives_no_samples_until_it_is_opened_again(schema_url):
    with opened(schema_url) as replay:
        add_all(replay, made(1, 30))
        assert len(replay.sample(4).rewards) == 4
        replay.close()
        with pytest.raises(BufferConfigError, match=r"buffer 'default' is closed.*open it again"):
            replay.sample(4)
        add_all(replay, made(1, 5, first=1_000))
        assert replay.size() == 35
    with opened(schema_url) as replay:
        assert len(replay.sample(35).rewards) == 35


def test_without_a_url_a_warning_says_where_the_steps_are(tmp_path):
    program = (
        "import gymnasium\nfrom sqlbuffer.integrations.sb3 import SQLReplayBuffer\n"
        "env = gymnasium.make('CartPole-v1')\n"
        "SQLReplayBuffer(100, env.observation_space, env.action_space).close()\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "SQLBUFFER_URL"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=variables, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert f"buffer 'default' is in sqlite:///{tmp_path}/sqlbuffer.db" in done.stderr


def test_a_buffer_that_will_not_fit_into_its_mirror_warns(schema_url):
    with opened(schema_url, size=1_000_000, mirror={"max_bytes": 2**20}) as replay:
        add_all(replay, made())
        with pytest.warns(UserWarning, match=r"1,000,000 steps take 0\.1 GiB.*buffer_size"):
            assert replay.sample(4).rewards.shape == (4, 1)
        replay.sample(8)


def test_a_mirror_that_is_full_is_an_error(schema_url):
    with opened(schema_url, size=1_000_000, mirror={"max_bytes": 10}) as replay:
        add_all(replay, made())
        with (
            pytest.warns(UserWarning, match="max_bytes"),
            pytest.raises(MemoryError, match="max_bytes"),
        ):
            replay.sample(4)


def test_processes_of_a_machine_share_a_mirror(schema_url):
    with (
        opened(schema_url, mirror={"shared": True}) as first,
        opened(schema_url, mirror={"shared": True}) as second,
    ):
        add_all(first, made())
        first.buffer.flush()
        for replay in (first, second):
            assert len(set(numbers_of(BOX, replay.sample(512).observations).tolist())) == 20


# Several processes.


def collect(url, number):
    with opened(url, 2, agent_id=f"actor-{number}") as replay:
        add_all(replay, made(2, 100, seed=number, first=10_000 * number + 1))
    return True


def test_collectors_in_other_processes_write_the_same_buffer(schema_url):
    with opened(schema_url) as learner:
        assert learner.size() == 0
        with running([(collect, schema_url, n) for n in (1, 2)], FRESH) as workers:
            assert workers.results() == [True, True]
        add_all(learner, made(1, 50))
        drawn = numbers_of(BOX, learner.sample(4_096).observations)
    assert {1, 2, 0} == {number // 10_000 for number in drawn.tolist()}
    episodes = "SELECT count(*), count(DISTINCT episode_id) FROM v_episodes"
    assert len(set(run(schema_url, episodes)[0])) == 1
    agents = "SELECT agent_id, count(*) FROM v_experiences GROUP BY 1 ORDER BY 1"
    assert run(schema_url, agents) == [("actor-1", 200), ("actor-2", 200), ("default", 50)]


def test_a_collector_that_starts_again_adds_other_episodes(schema_url):
    for _ in range(2):  # the same steps, by the same agent
        with opened(schema_url, agent_id="actor") as replay:
            add_all(replay, made(1, 40))
    assert scalar(schema_url, "SELECT count(*) FROM v_experiences") == 80


def draw_and_add(replay):
    before = replay.sample(8)
    add_all(replay, made(1, 10, first=1_000))
    return len(before.rewards), replay.size()


def test_a_forked_process_opens_a_mirror_and_episodes_of_its_own(schema_url):
    with opened(schema_url) as replay:
        add_all(replay, made(1, 10))
        replay.sample(8)
        with running([(draw_and_add, replay)], "fork") as workers:
            assert workers.results() == [(8, 20)]
        add_all(replay, made(1, 10, first=2_000))
        assert replay.size() == 30


# A database that is away.


@pytest.fixture
def proxy(postgres_url):
    ReplayBuffer(postgres_url, create=True).close()
    found = Proxy(postgres_url)
    yield found
    close_pool(found.url)
    found.close()


def test_draws_go_on_and_steps_wait_while_the_database_is_away(proxy):
    given = iter(made(2, 2_000))
    replay = opened(proxy.url, 2, size=10_000, retry_s=0.1, flush_s=0.05, name="cut")
    for _ in range(50):
        replay.add(*next(given))
    assert replay.sample(8).rewards.shape == (8, 1)
    proxy.closed = True
    proxy.cut_all()
    n_added, errors = 100, []
    for each in given:
        try:
            replay.add(*each)
            n_added += 2
        except StorageUnreachableError as error:
            errors.append(error)
        assert replay.sample(8).rewards.shape == (8, 1)
        if errors:
            break
        time.sleep(0.001)
    assert errors
    proxy.closed = False
    for _, each in zip(range(20), given, strict=False):
        try:
            replay.add(*each)
            n_added += 2
        except StorageUnreachableError as error:
            errors.append(error)
    replay.close()
    with ReplayBuffer(proxy.url, name="cut") as buffer:
        stored = buffer.loader("trajectory", 1, epochs=1, shuffle=False)
        lengths = 0
        for episode in stored:
            n = int(episode.lens[0])
            lengths += n
            np.testing.assert_array_equal(episode.obs[0, 1:n], episode.next_obs[0, : n - 1])
        assert n_added <= lengths <= n_added + len(errors)


# Algorithms.


@pytest.mark.parametrize("n_envs", [1, 3])
def test_an_algorithm_stores_each_step_that_it_takes(schema_url, n_envs):
    env = make_vec_env("CartPole-v1", n_envs, seed=0)
    dqn = model(schema_url, DQN, env, learning_starts=20, train_freq=1)
    dqn.learn(120)
    assert len(dqn.replay_buffer.buffer) == 120
    dqn.learn(60, reset_num_timesteps=False)
    dqn.replay_buffer.close()
    query = "SELECT status, sum(length), sum(episode_return) FROM v_episodes GROUP BY status"
    assert run(schema_url, query) == [("complete", 180, 180.0)]


def test_n_steps_reach_an_algorithm(schema_url):
    sac = model(schema_url, replay={"n_steps": 3, "gamma": 0.9}, learning_starts=20)
    sac.learn(40)
    assert sac.replay_buffer.sample(64).discounts.min() == np.float32(0.9) ** np.float32(3)
    sac.replay_buffer.close()


def test_normalized_observations_are_stored_as_they_were(schema_url):
    env = VecNormalize(make_vec_env("Pendulum-v1", 1, seed=0))
    sac = model(schema_url, env=env, learning_starts=50)
    sac.learn(80)
    replay = sac.replay_buffer
    stored = replay.buffer.sample_arrays(80)
    assert (stored.reward <= 0).all()
    assert (np.linalg.norm(stored.obs[:, :2], axis=1) < 1.0001).all()
    np.testing.assert_allclose(np.linalg.norm(stored.obs[:, :2], axis=1), 1, rtol=1e-5)
    normal = replay.sample(256, env).observations.numpy()
    assert abs(np.linalg.norm(normal[:, :2], axis=1) - 1).max() > 0.05
    replay.close()


def test_dict_observations_train(schema_url):
    from stable_baselines3.common.envs import SimpleMultiObsEnv

    env = SimpleMultiObsEnv(random_start=False)
    replay = {"url": schema_url}
    dqn = DQN(
        "MultiInputPolicy", env, learning_starts=20, batch_size=8, device="cpu",
        replay_buffer_class=SQLReplayBuffer, replay_buffer_kwargs=replay,
    )  # fmt: skip
    dqn.learn(40)
    assert set(dqn.replay_buffer.buffer.fields) >= {"obs_img", "obs_vec", "next_obs_img"}
    dqn.replay_buffer.close()


# What is refused.


@pytest.mark.parametrize("n_envs", [1, 2, 4])
def test_steps_of_another_number_of_environments_are_refused(schema_url, n_envs):
    (each,) = made(3, 1)
    with opened(schema_url, n_envs) as replay:
        with pytest.raises(FieldError, match=rf"obs: expected shape \({n_envs}, 3\).*\(3, 3\)"):
            replay.add(*each)
        assert replay.size() == 0


@pytest.mark.parametrize("name", ["next_obs", "action", "reward", "done", "infos"])
def test_an_argument_of_another_shape_is_named(schema_url, name):
    (each,) = made(2, 1)
    wrong = {"infos": [{}]}.get(name, np.zeros((7,), np.float32))
    with opened(schema_url, 2) as replay:
        with pytest.raises(FieldError, match=f"{name}: expected shape"):
            replay.add(*each._replace(**{name: wrong}))
        assert replay.size() == 0


def test_a_dict_observation_without_a_key_is_refused(schema_url):
    space = SPACES["dict"]
    (each,) = steps(space, ACTION, 1, 1)
    del each.obs["camera"]
    with (
        SQLReplayBuffer(10, space, ACTION, url=schema_url) as replay,
        pytest.raises(FieldError, match="obs\\['camera'\\] is missing"),
    ):
        replay.add(*each)


@pytest.mark.parametrize("other", ["double", "frames", "dict"])
def test_another_space_than_the_stored_one_is_refused(schema_url, other):
    opened(schema_url).close()
    with pytest.raises(FieldError, match="obs"):
        SQLReplayBuffer(1_000, SPACES[other], ACTION, url=schema_url)
    with pytest.raises(FieldError, match="action"):
        SQLReplayBuffer(1_000, BOX, spaces.Discrete(2), url=schema_url)


def test_another_size_than_the_stored_one_is_refused(schema_url):
    opened(schema_url).close()
    with pytest.raises(BufferConfigError, match=r"1000.*2000.*resize"):
        opened(schema_url, size=2_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimize_memory_usage": True}, "leave it out.*compression"),
        ({"n_sampled_goal": 4}, "achieved_goal and desired_goal"),
        ({"goal_selection_strategy": "future"}, "achieved_goal and desired_goal"),
        ({"max_capacity": 5}, "buffer_size"),
        ({"fields": {"x": "int64"}}, "spaces"),
        ({"n_steps": 0}, "n_step"),
        ({"gamma": 1.5}, "gamma"),
        ({"n_steps": 3}, "n_steps=3 needs gamma"),
        ({"task_id": 5}, "task_id"),
        ({"size": 0}, "buffer_size"),
        ({"n_envs": 0}, "n_envs"),
    ],
)
def test_what_it_cannot_do_is_refused_at_construction(schema_url, options, message):
    with pytest.raises((BufferConfigError, FieldError, ValueError), match=message):
        opened(schema_url, **options)
    assert ReplayBuffer.list(schema_url) == [] or "task_id" in options


@pytest.mark.parametrize(
    ("given", "meant"),
    [("flush", "flush_s"), ("nane", "name"), ("ulr", "url"), ("agent", "agent_id")],
)
def test_an_unknown_argument_is_refused(schema_url, given, meant):
    with pytest.raises(TypeError, match=f"did you mean {meant}"):
        opened(schema_url, **{given: 1})


def test_an_unknown_argument_like_none_lists_all_once(schema_url):
    with pytest.raises(TypeError) as found:
        opened(schema_url, zzz=1)
    listed = str(found.value).partition("there are ")[2].split(", ")
    assert {"url", "name", "agent_id", "n_steps", "gamma", "flush_s"} <= set(listed)
    assert len(listed) == len(set(listed))


def test_the_gamma_of_an_algorithm_is_not_guessed(schema_url):
    with pytest.raises(BufferConfigError, match="the algorithm's own gamma"):
        model(schema_url, replay={"n_steps": 3}, gamma=0.5)


def test_without_the_library_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("sqlbuffer.integrations")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.buffers", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[sb3\]'"):
        importlib.import_module("sqlbuffer.integrations.sb3")


def test_databases_that_cannot_be_opened_are_refused(tmp_path, postgres_url):
    with pytest.raises(URLError, match="postgresql://"):
        opened("mysql://me@127.0.0.1/db")
    with pytest.raises(StorageUnreachableError):
        opened("postgresql://me@127.0.0.1:1/db", retry_s=0)
    with pytest.raises(StorageUnreachableError):
        opened(f"sqlite:///{tmp_path}/none/replay.db")
    with pytest.raises(BufferNotFoundError, match="there is no file"):
        opened(f"sqlite:///{tmp_path}/new.db", create=False)
    with pytest.raises(SchemaMissingError, match="sqlbuffer db init"):
        opened(postgres_url)


def test_reset_is_refused_and_clear_deletes(schema_url):
    with opened(schema_url) as replay:
        add_all(replay, made(1, 10))
        with pytest.raises(BufferConfigError, match=r"buffer\.clear\(\)"):
            replay.reset()
        assert replay.size() == 10
        replay.buffer.clear()
        assert (replay.size(), replay.pos) == (0, 0)
        add_all(replay, made(1, 3, first=1_000))
        assert replay.sample(4).rewards.shape == (4, 1)


def test_arrays_and_indices_that_there_are_not_say_where_steps_are(schema_url):
    with opened(schema_url) as replay:
        for name in ("observations", "rewards", "dones"):
            with pytest.raises(AttributeError, match=r"sample_arrays\(\)"):
                getattr(replay, name)
        with pytest.raises(BufferConfigError, match=r"sample\(\)"):
            replay._get_samples(np.arange(3))
        with pytest.raises(AttributeError):
            replay.pos = 0
        assert not hasattr(replay, "nothing")


def test_its_text_shows_no_password(schema_url):
    with opened(schema_url) as replay:
        assert replay.buffer.url in repr(replay)


def test_a_single_environment_may_leave_out_its_axis(schema_url):
    with opened(schema_url) as replay:
        replay.add(*Step(np.zeros(3), np.ones(3), np.zeros(2), 1.0, True, [{}]))
        drawn = replay.sample(2)
    assert drawn.observations.shape == (2, 3)
    assert drawn.dones.tolist() == [[1.0], [1.0]]
