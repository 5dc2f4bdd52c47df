"""Saving keeps the address of the steps, and loading finds them there."""

import copy
import os
import pickle
import signal
import zipfile
from contextlib import suppress

import gymnasium
import numpy as np
import pytest
import torch
from sqlalchemy import make_url
from stable_baselines3 import SAC
from stable_baselines3.common.save_util import load_from_pkl

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import BufferConfigError, BufferNotFoundError
from sqlbuffer.integrations.sb3 import SQLReplayBuffer
from tests.peers.sb3.steps import ACTIONS, SPACES, numbers_of, steps
from tests.support.processes import FRESH, running, wait_until
from tests.support.sql import run, scalar

BOX, ACTION = SPACES["vector"], ACTIONS["box"]


def opened(url, **options):
    return SQLReplayBuffer(1_000, BOX, ACTION, url=url, **options)


def sac(url, **options):
    return SAC(
        "MlpPolicy", "Pendulum-v1", seed=0, device="cpu", learning_starts=20, batch_size=16,
        policy_kwargs={"net_arch": [8]}, replay_buffer_class=SQLReplayBuffer,
        replay_buffer_kwargs={"url": url, **options},
    )  # fmt: skip


def with_steps(url, n=50, **options):
    replay = opened(url, **options)
    for each in steps(BOX, ACTION, 1, n):
        replay.add(*each)
    return replay


def test_a_pickle_is_the_address_and_stores_what_waits(schema_url):
    replay = with_steps(
        schema_url, n=500, n_steps=3, gamma=0.9, task_id="t", agent_id="a", model_version=4,
        handle_timeout_termination=False, mirror={"max_bytes": 2**20}, flush_s=60.0,
    )  # fmt: skip
    saved = pickle.dumps(replay)
    assert len(saved) < 5_000
    with ReplayBuffer(schema_url) as other:
        assert len(other) == 500
    loaded = pickle.loads(saved)
    assert loaded.size() == 500
    assert loaded.sample(8).discounts.shape == (8, 1)
    for name in ("n_steps", "gamma", "model_version", "handle_timeout_termination", "n_envs"):
        assert getattr(loaded, name) == getattr(replay, name), name
    assert loaded.buffer.connection.flush_s == 60.0
    assert (loaded.observation_space, loaded.action_space) == (BOX, ACTION)
    for each in steps(BOX, ACTION, 1, 1, first=9_000):
        loaded.add(*each)
    replay.close()
    loaded.close()
    keys = "SELECT task_id, agent_id, model_version, count(*) FROM v_experiences GROUP BY 1, 2, 3"
    assert run(schema_url, keys) == [("t", "a", 4, 501)]


def test_a_replay_buffer_is_saved_and_loaded_with_its_algorithm(schema_url, tmp_path):
    model = sac(schema_url)
    model.learn(60)
    model.save_replay_buffer(tmp_path / "replay")
    model.save(tmp_path / "model")
    model.replay_buffer.close()
    assert (tmp_path / "replay.pkl").stat().st_size < 5_000

    again = SAC.load(tmp_path / "model", env=gymnasium.make("Pendulum-v1"), device="cpu")
    assert again.replay_buffer.size() == 60
    again.load_replay_buffer(tmp_path / "replay")
    assert again.replay_buffer.size() == 60
    again.learn(40, reset_num_timesteps=False)
    assert again.num_timesteps == again.replay_buffer.size() == 100
    again.replay_buffer.close()


def test_a_model_loads_where_its_database_is_not(tmp_path):
    sac(f"sqlite:///{tmp_path}/replay.db").save(tmp_path / "model")
    os.remove(tmp_path / "replay.db")
    other = {"url": "sqlite://"}
    model = SAC.load(tmp_path / "model", device="cpu", replay_buffer_kwargs=other)
    action, _ = model.predict(np.zeros(3, np.float32), deterministic=True)
    assert action.shape == (1,)
    assert not (tmp_path / "replay.db").exists()


def test_a_file_is_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replay = with_steps("sqlite:///replay.db")
    saved = pickle.dumps(replay)
    replay.close()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pickle.loads(saved) as loaded:
        assert loaded.size() == 50
    assert list((tmp_path / "other").iterdir()) == []


def test_a_database_that_is_gone_is_an_error_and_not_an_empty_one(schema_url, tmp_path):
    url = f"sqlite:///{tmp_path}/replay.db"
    replay = with_steps(url)
    replay.close()
    saved = pickle.dumps(replay)
    for path in tmp_path.glob("replay.db*"):
        path.unlink()
    with pytest.raises(BufferNotFoundError, match=r"replay\.db"):
        pickle.loads(saved)
    assert list(tmp_path.glob("replay*")) == []

    saved = pickle.dumps(opened(schema_url, name="gone"))
    ReplayBuffer.drop(schema_url, "gone")
    with pytest.raises(BufferNotFoundError, match="gone"):
        pickle.loads(saved)


def test_a_database_in_memory_is_not_saved():
    with (
        with_steps("sqlite://") as replay,
        pytest.raises(BufferConfigError, match=r"sqlite:///replay\.db"),
    ):
        pickle.dumps(replay)


def test_a_pickle_has_no_password(postgres_url, monkeypatch):
    secret = "s3cret-of-me"
    url = make_url(postgres_url).set(password=secret).render_as_string(hide_password=False)
    replay = with_steps(url, create=True)
    assert secret not in repr(replay)
    saved = pickle.dumps(replay)
    assert secret.encode() not in saved
    # The server of the tests asks for none. That of the variable is used, if it is the same one.
    with pickle.loads(saved) as loaded:
        assert loaded.size() == 50
        assert secret.encode() not in pickle.dumps(loaded.buffer)
    monkeypatch.setenv("SQLBUFFER_URL", url)
    with pickle.loads(saved) as loaded:
        assert loaded.size() == 50
        assert secret.encode() in pickle.dumps(loaded.buffer)
    for other in (f"{postgres_url}&application_name=x", "nothing that is an URL"):
        monkeypatch.setenv("SQLBUFFER_URL", other)
        with pickle.loads(saved) as loaded:
            assert loaded.size() == 50
            assert secret.encode() not in pickle.dumps(loaded.buffer)
    replay.close()


def test_an_address_can_come_from_the_environment(schema_url, tmp_path, monkeypatch):
    monkeypatch.setenv("SQLBUFFER_URL", schema_url)
    model = sac(None)
    model.learn(25)
    model.save(tmp_path / "model")
    model.replay_buffer.close()
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert schema_url not in archive.read("data").decode()
    again = SAC.load(tmp_path / "model", device="cpu")
    assert again.replay_buffer.size() == 25
    again.replay_buffer.close()


def test_a_copy_opens_the_same_buffer(schema_url):
    with with_steps(schema_url) as replay, copy.deepcopy(replay) as other:
        assert other.size() == 50
        assert other.buffer is not replay.buffer


# A process that is killed.


def train_until_killed(url, folder):
    torch.set_num_threads(1)
    model = sac(url, flush_s=0.2)
    model.save(folder / "model")
    model.save_replay_buffer(folder / "replay")
    model.learn(1_000_000)


def go_on(folder):
    torch.set_num_threads(1)
    model = SAC.load(folder / "model", env=gymnasium.make("Pendulum-v1"), device="cpu")
    model.load_replay_buffer(folder / "replay")
    found = model.replay_buffer.size()
    before = set(model.replay_buffer.sample(1_000).rewards.flatten().tolist())
    model.learn(50)
    size = model.replay_buffer.size()
    model.replay_buffer.close()
    return found, len(before), size


@pytest.mark.slow
def test_training_goes_on_with_what_is_stored_after_kill_9(schema_url, tmp_path):
    with running([(train_until_killed, schema_url, tmp_path)], FRESH) as workers:
        count = "SELECT count(*) FROM v_experiences"
        wait_until(lambda: scalar(schema_url, count) > 200, "it stores")
        (process,) = workers.processes
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
    stored = scalar(schema_url, count)
    with running([(go_on, tmp_path)], FRESH) as workers:
        ((found, n_drawn, size),) = workers.results()
    assert found == stored > 200
    assert n_drawn > 100
    assert size == stored + 50
    # What was open when it was killed stays open; the rest is complete.
    statuses = dict(run(schema_url, "SELECT status, count(*) FROM v_episodes GROUP BY status"))
    assert statuses["complete"] >= 2
    assert statuses.get("open", 0) <= 1


def collect_forever(url, number):
    replay = opened(url, agent_id=f"actor-{number}", flush_s=0.1)
    first = 10_000_000 * number + 1
    while True:
        for each in steps(BOX, ACTION, 1, 200, seed=first, first=first):
            replay.add(*each)
        first += 10_000


@pytest.mark.slow
def test_a_learner_goes_on_when_a_collector_is_killed(schema_url):
    calls = [(collect_forever, schema_url, number) for number in (0, 1)]
    with opened(schema_url, mirror={"refresh_s": 0.05}) as learner, running(calls) as workers:
        agents = "SELECT count(DISTINCT agent_id) FROM v_experiences"
        wait_until(lambda: scalar(schema_url, agents) == 2, "both collect")
        os.kill(workers.processes[0].pid, signal.SIGKILL)
        workers.processes[0].join(60)
        seen = set()

        def is_new():
            drawn = numbers_of(BOX, learner.sample(256).observations)
            seen.update((drawn // 10_000_000).tolist())
            return 1 in seen

        wait_until(is_new, "steps of the other one are drawn")
        with suppress(ProcessLookupError):
            os.kill(workers.processes[1].pid, signal.SIGKILL)


def test_the_file_of_a_saved_buffer_is_what_others_load(schema_url, tmp_path):
    model = sac(schema_url)
    model.save_replay_buffer(tmp_path / "replay")
    with load_from_pkl(tmp_path / "replay") as loaded:
        assert isinstance(loaded, SQLReplayBuffer)
        assert loaded.size() == 0
    model.replay_buffer.close()
