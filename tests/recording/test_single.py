"""Recorded environments, one at a time."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import Autoreset, ClipAction, FlattenObservation, RecordEpisodeStatistics

from sqlbuffer import ReplayBuffer, fields_from_env
from sqlbuffer.errors import BufferConfigError, FieldError, MissingExtraError, StorageError
from tests.recording.envs import Rooms, Scripted, Shapes
from tests.recording.episodes import plain, played, stored
from tests.support.processes import FRESH, run_at_once, wait_until
from tests.support.sql import run, scalar
from tests.support.waiting_steps import NEVER_S, refusing_inserts

LONG = ((99, "terminated"),)


def buffer_for(url, env, next_observation=False, **options):
    fields = fields_from_env(env, next_observation=next_observation)
    return ReplayBuffer(url, create=True, **fields, **options)


def take(env, n, action=0):
    """Take steps, and reset whenever an episode ends."""
    for _ in range(n):
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def flags(episode):
    return [step[3:] for step in episode.steps]


def ends(url):
    return run(url, "SELECT status, length FROM v_episodes ORDER BY first_seq")


@pytest.mark.each_value
@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make("CartPole-v1"),
        lambda: gymnasium.make("Pendulum-v1", max_episode_steps=20),
        Rooms,
        Shapes,
    ],
    ids=["CartPole", "Pendulum", "parts", "shapes"],
)
@pytest.mark.parametrize("next_observation", [False, True])
def test_steps_and_episodes_are_those_of_a_plain_loop(schema_url, make, next_observation):
    env = make()
    env.action_space.seed(3)
    actions = [env.action_space.sample() for _ in range(70)]
    with buffer_for(schema_url, env, next_observation) as buffer:
        with buffer.record(env) as recorded:
            recorded.reset(seed=11)
            for action in actions:
                _, _, terminated, truncated, _ = recorded.step(action)
                if terminated or truncated:
                    recorded.reset()
        found = stored(schema_url, buffer)
        for episode in found if next_observation else []:
            seen = [obs for obs, *_ in episode.steps]
            for obs, after in zip(seen, [*seen[1:], episode.final], strict=True):
                for name in buffer.observation_fields:
                    np.testing.assert_array_equal(obs.pop(f"next_{name}"), after[name])
        expected = played(make(), 11, actions)
        assert len(expected) > 1
        assert plain(found) == plain(expected)


@pytest.mark.parametrize("how", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("length", [1, 3])
def test_an_episode_ends_as_the_environment_says(sqlite_url, how, length):
    env = Scripted([(length, how)])
    with buffer_for(sqlite_url, env) as buffer:
        with buffer.record(env) as recorded:
            recorded.reset()
            take(recorded, 2 * length)
        last = (how != "truncated", how != "terminated")
        for number, episode in enumerate(stored(sqlite_url, buffer)):
            assert flags(episode) == [(False, False)] * (length - 1) + [last]
            assert episode.final["obs"].tolist() == [number, length]
        assert ends(sqlite_url) == [("complete", length)] * 2


def test_a_reset_in_the_middle_cuts_the_episode(schema_url):
    env = Scripted(LONG)
    with buffer_for(schema_url, env) as buffer:
        with buffer.record(env) as recorded:
            for n in (3, 0, 1, 2):
                recorded.reset()
                take(recorded, n)
        episodes = stored(schema_url, buffer)
        assert [len(episode.steps) for episode in episodes] == [3, 1, 2]
        assert flags(episodes[0]) == [(False, False), (False, False), (False, True)]
        assert flags(episodes[1]) == [(False, True)]
        finals = [episode.final["obs"].tolist() for episode in episodes]
        assert finals == [[0, 3], [2, 1], [3, 2]]
        assert ends(schema_url) == [("complete", 3), ("complete", 1), ("complete", 2)]
        batch = buffer.sample_transitions(40, n_step=3)
        np.testing.assert_array_equal(batch.next_obs[:, 0], batch.obs[:, 0])
        assert (batch.discount > 0).all()


def test_the_newest_step_waits_for_the_next_call(sqlite_url):
    env = Scripted(LONG)
    with buffer_for(sqlite_url, env, flush_s=NEVER_S) as buffer, buffer.record(env) as recorded:
        recorded.reset()
        for n in range(4):
            recorded.step(0)
            buffer.flush()
            assert len(buffer) == n
        recorded.reset()
        buffer.flush()
        assert ends(sqlite_url) == [("complete", 4)]


def test_closing_stores_what_waits_and_closes_the_environment(sqlite_url):
    env = Scripted(LONG)
    with buffer_for(sqlite_url, env, flush_s=NEVER_S) as buffer:
        recorded = buffer.record(env)
        recorded.reset()
        take(recorded, 2)
        recorded.close()
        assert ends(sqlite_url) == [("complete", 2)]
        assert env.closings == 1
        recorded.close()
        assert env.closings == 2
        assert len(buffer) == 2


def test_an_exception_in_a_step_aborts_the_episode(schema_url):
    env = Scripted(LONG, fails_at=(0, 3))
    with buffer_for(schema_url, env) as buffer:
        recorded = buffer.record(env)
        recorded.reset()
        take(recorded, 2)
        with pytest.raises(OSError, match="the simulator is gone"):
            recorded.step(0)
        assert ends(schema_url) == [("aborted", 2)]
        recorded.step(0)  # not reset: belongs to no episode
        recorded.reset()
        take(recorded, 4)
        recorded.close()
        assert ends(schema_url) == [("aborted", 2), ("complete", 4)]


def test_an_exception_in_a_reset_cuts_the_episode(sqlite_url):
    env = Scripted(LONG)
    with buffer_for(sqlite_url, env) as buffer:
        recorded = buffer.record(env)
        recorded.reset()
        take(recorded, 2)
        with pytest.raises(gymnasium.error.Error, match="Seed must be"):
            recorded.reset(seed="x", options={})
        take(recorded, 1)
        recorded.close()
        assert ends(sqlite_url) == [("complete", 2)]


def test_a_step_that_cannot_be_stored_aborts_the_episode(sqlite_url):
    env = Scripted(LONG)
    with buffer_for(sqlite_url, env) as buffer, buffer.record(env) as recorded:
        recorded.reset()
        take(recorded, 2)
        env._reward = "much"
        with pytest.raises(FieldError, match="reward: expected a number, got 'much'"):
            recorded.step(0)
        assert ends(sqlite_url) == [("aborted", 2)]


def test_a_database_that_refuses_aborts_the_episode_and_stores_its_steps_later(buffer_url):
    env = Scripted(LONG)
    with buffer_for(buffer_url, env, flush_s=NEVER_S) as buffer:
        recorded = buffer.record(env)
        recorded.reset()
        with refusing_inserts(buffer_url):
            take(recorded, 3)
            with pytest.raises(StorageError, match="no rows today"):
                recorded.close()
            assert env.closings == 1
        buffer.flush()
        assert ends(buffer_url) == [("complete", 3)]


def test_an_error_of_the_timer_is_raised_before_the_next_step_which_loses_nothing(
    sqlite_url, caplog
):
    env = Scripted([(1, "terminated")])
    with buffer_for(sqlite_url, env, flush_s=0.02) as buffer:
        recorded = buffer.record(env)
        recorded.reset()
        with refusing_inserts(sqlite_url):
            take(recorded, 1)
            wait_until(lambda: "could not be stored yet" in caplog.text, "the timer fails")
            with pytest.raises(StorageError, match="no rows today"):
                take(recorded, 1_000)
            n_taken = env._episode  # each has one step
        buffer.flush()
        take(recorded, 2)
        recorded.close()
        assert ends(sqlite_url) == [("complete", 1)] * len(buffer)
        assert len(buffer) == n_taken + 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3), 2),
        (spaces.Discrete(3), np.int64(1)),
        (spaces.MultiDiscrete([3, 4]), np.array([1, 2])),
        (spaces.MultiBinary(2), np.array([0, 1], np.int8)),
        (spaces.Box(-1, 1, (2,)), np.array([0.5, -0.5], np.float32)),
        (spaces.Box(-1, 1, (2,)), [0.5, -0.5]),
    ],
)
def test_actions_are_stored_as_they_were_given(sqlite_url, space, action):
    """This environment changes arrays of floats in place."""
    given = np.array(action).tolist()
    env = Scripted(action_space=space, reuses=True)
    with buffer_for(sqlite_url, env) as buffer:
        with buffer.record(env) as recorded:
            recorded.reset()
            recorded.step(action)
        (episode,) = stored(sqlite_url, buffer)
        assert [step[1]["action"].tolist() for step in episode.steps] == [given]


def test_observations_are_copied_where_the_environment_reuses_them(sqlite_url):
    env = Scripted([(4, "terminated")], reuses=True)
    with buffer_for(sqlite_url, env) as buffer:
        with buffer.record(env) as recorded:
            recorded.reset()
            take(recorded, 4)
        (episode,) = stored(sqlite_url, buffer)
        assert [step[0]["obs"][1] for step in episode.steps] == [0, 1, 2, 3]
        assert episode.final["obs"].tolist() == [0, 4]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "reward", [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), np.array([2.0])]
)
def test_rewards_are_numbers_of_any_kind(sqlite_url, reward):
    env = Scripted(reward=reward)
    with buffer_for(sqlite_url, env) as buffer, buffer.record(env) as recorded:
        recorded.reset()
        take(recorded, 3)
        buffer.flush()
        assert scalar(sqlite_url, "SELECT episode_return FROM v_episodes") == 6.0


def test_keys_and_meta_go_with_every_episode(sqlite_url):
    env = Scripted([(1, "terminated")])
    with buffer_for(sqlite_url, env) as buffer:
        with buffer.record(env, task_id="t", agent_id="a", model_version=3, level=2) as recorded:
            recorded.reset()
            take(recorded, 2)
        columns = "task_id, agent_id, model_version, meta"
        found = run(sqlite_url, f"SELECT {columns} FROM v_episodes")
        assert found == [("t", "a", 3, '{"level":2}')] * 2


def test_another_model_version_holds_from_the_next_episode(sqlite_url):
    env = Scripted([(2, "terminated")])
    with buffer_for(sqlite_url, env) as buffer:
        with gymnasium.wrappers.TimeLimit(buffer.record(env), 100) as outer:
            outer.reset()
            outer.step(0)
            outer.set_wrapper_attr("model_version", 7)
            outer.step(0)
            outer.reset()
            take(outer, 2)
            inner = outer.env
            assert inner.model_version == 7
            inner.model_version = np.int64(8)
            take(outer, 2)
            for wrong in ("new", 1.5, 2**63):
                with pytest.raises(FieldError, match="model_version: expected an integer"):
                    inner.model_version = wrong
        rows = "SELECT model_version FROM v_experiences ORDER BY seq"
        assert [v for (v,) in run(sqlite_url, rows)] == [None, None, 7, 7, 8, 8]
        rows = "SELECT model_version FROM v_episodes ORDER BY first_seq"
        assert [v for (v,) in run(sqlite_url, rows)] == [None, 7, 8]


def test_it_behaves_as_the_environment(sqlite_url):
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    inner = Scripted()
    inner.secret = 5
    with buffer_for(sqlite_url, env) as buffer:
        recorded = buffer.record(env)
        for name in ("observation_space", "action_space", "metadata", "render_mode", "spec"):
            assert getattr(recorded, name) == getattr(env, name)
        assert recorded.unwrapped is env.unwrapped
        plain_obs, plain_info = env.reset(seed=4)
        obs, info = recorded.reset(seed=4)
        np.testing.assert_array_equal(obs, plain_obs)
        assert info == plain_info
        assert recorded.np_random is env.np_random
        recorded.close()
    with buffer_for(sqlite_url, inner, name="other") as buffer, buffer.record(inner) as recorded:
        assert recorded.reset(options={"level": 3})[1] == {"options": {"level": 3}}
        assert recorded.step(0)[4] == {"t": 1}
        assert recorded.render() == "episode 0, step 1"
        assert recorded.metadata["purpose"] == "tests"
        assert recorded.secret == recorded.get_wrapper_attr("secret") == 5
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = recorded.nothing
        with pytest.raises(AttributeError, match="no attribute '_ends'"):
            _ = recorded._ends


def test_wrappers_inside_and_outside_see_what_they_should(sqlite_url):
    """What is inside has changed what is stored; what is outside has not."""
    env = ClipAction(FlattenObservation(gymnasium.make("Pendulum-v1", max_episode_steps=5)))
    with buffer_for(sqlite_url, env) as buffer:
        outer = RecordEpisodeStatistics(buffer.record(env))
        obs, _ = outer.reset(seed=1)
        for _ in range(5):
            *_, info = outer.step(np.array([9.0], np.float32))
        assert info["episode"]["l"] == 5
        outer.close()
        (episode,) = stored(sqlite_url, buffer)
        assert [step[1]["action"].tolist() for step in episode.steps] == [[9.0]] * 5
        np.testing.assert_array_equal(episode.steps[0][0]["obs"], obs)


def test_an_environment_is_recorded_twice(sqlite_url):
    env = Scripted([(2, "terminated")])
    with (
        buffer_for(sqlite_url, env) as one,
        buffer_for(sqlite_url, env, name="other") as other,
        other.record(one.record(env)) as both,
    ):
        both.reset()
        take(both, 4)
        one.flush()
        other.flush()
        assert len(one) == len(other) == 4
        again = one.record(env)
        again.reset()
        take(again, 2)
        one.flush()
        assert (len(one), len(other)) == (6, 4)


def test_a_single_environment_that_resets_itself_stores_nothing_for_that_step(sqlite_url):
    env = gymnasium.wrappers.TimeLimit(Autoreset(Scripted([(2, "terminated")])), 1_000)
    with buffer_for(sqlite_url, env) as buffer:
        with buffer.record(env) as recorded:
            recorded.reset()
            for _ in range(6):
                recorded.step(0)
        assert [len(episode.steps) for episode in stored(sqlite_url, buffer)] == [2, 2]


FIELDS = {"obs": ("float32", (2,)), "action": "int64"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"'obs' is missing: float32\(2,\); 'action' is missing: int64"),
        ({"fields": {"obs": ("float32", (2,))}}, "'action' is missing: int64"),
        (
            {"fields": {**FIELDS, "obs": ("float32", (3,))}},
            r"'obs' is float32\(3,\), and the environment has float32\(2,\)",
        ),
        ({"fields": {**FIELDS, "action": "bool"}}, "'action' is bool, and the environment has int"),
        ({"fields": {**FIELDS, "speed": "float32"}}, "the environment has no 'speed'"),
        (
            {"fields": {**FIELDS, "next_obs": "float32"}},
            r"'next_obs' is float32, .*fields_from_env\(env, next_observation=True\)",
        ),
        (
            {"fields": FIELDS, "observation_fields": ["obs", "action"]},
            "does not have the observation field 'action'",
        ),
    ],
)
def test_a_buffer_of_other_fields_is_refused_with_the_way_to_make_one(sqlite_url, options, message):
    with (
        ReplayBuffer(sqlite_url, **options) as buffer,
        pytest.raises(FieldError, match=message) as raised,
    ):
        buffer.record(Scripted())
    assert "make one with ReplayBuffer(url, **fields_from_env(env" in str(raised.value)


def test_a_buffer_may_have_more_fields_with_defaults_and_smaller_floats(sqlite_url):
    fields = {**FIELDS, "obs": ("float16", (2,)), "level": ("uint8", (), 1)}
    with ReplayBuffer(sqlite_url, fields=fields) as buffer:
        with buffer.record(Scripted()) as env:
            env.reset()
            take(env, 3)
        assert buffer.sample_arrays(3).level.tolist() == [1, 1, 1]


@pytest.mark.parametrize("env", [None, 3, Scripted, object()])
def test_something_else_is_no_environment(sqlite_url, env):
    with (
        ReplayBuffer(sqlite_url) as buffer,
        pytest.raises(TypeError, match=r"env is a gymnasium environment, .* got"),
    ):
        buffer.record(env)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_id": 3}, "task_id: expected text, got 3"),
        ({"agent_id": b"a"}, "agent_id: expected text"),
        ({"model_version": 1.5}, "model_version: expected an integer"),
        ({"casting": "free"}, "casting is one of same_kind, unsafe, got 'free'"),
        ({"picture": np.zeros(2)}, "meta"),
        ({"episode_id": "e"}, "makes an id for each episode; leave episode_id out"),
    ],
)
def test_keys_and_meta_are_checked_at_once(sqlite_url, options, message):
    env = Scripted()
    with buffer_for(sqlite_url, env) as buffer, pytest.raises(FieldError, match=message):
        buffer.record(env, **options)


def test_gymnasium_is_asked_for_by_its_version(sqlite_url, monkeypatch):
    env = Scripted()
    with buffer_for(sqlite_url, env) as buffer:
        monkeypatch.delattr("gymnasium.vector.AutoresetMode")
        with pytest.raises(MissingExtraError, match=r"gymnasium 1\.1 or later, and this is"):
            buffer.record(env)
        monkeypatch.setitem(sys.modules, "gymnasium", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'gymnasium>=1\.1'"):
            buffer.record(env)


def leave_without_closing(url):
    buffer = ReplayBuffer(url, flush_s=NEVER_S)
    env = buffer.record(Scripted(LONG))
    env.reset()
    take(env, 3)


@pytest.mark.parametrize("method", ["fork", FRESH])
def test_a_process_that_ends_cuts_its_open_episodes(schema_url, method):
    with buffer_for(schema_url, Scripted()) as buffer:
        run_at_once([(leave_without_closing, schema_url)], method)
        assert ends(schema_url) == [("complete", 3)]
        assert len(buffer) == 3


def go_on_in_child(env):
    take(env, 2)
    env.close()


def test_a_forked_child_leaves_the_episode_to_its_parent(sqlite_url):
    env = Scripted(LONG)
    with buffer_for(sqlite_url, env) as buffer, buffer.record(env) as recorded:
        recorded.reset()
        take(recorded, 2)
        run_at_once([(go_on_in_child, recorded)])
        assert ends(sqlite_url) == []
        take(recorded, 1)
        recorded.close()
        assert ends(sqlite_url) == [("complete", 3)]


def test_a_closed_environment_records_no_more_and_says_so(sqlite_url):
    env = gymnasium.make("CartPole-v1")
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        recorded = buffer.record(env)
        recorded.reset(seed=1)
        recorded.step(0)
        recorded.close()
        for call in (recorded.reset, lambda: recorded.step(0)):
            with pytest.raises(BufferConfigError, match="was closed and stores nothing more"):
                call()
        recorded.close()
        assert len(buffer) == 1
