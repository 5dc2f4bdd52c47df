"""Recorded vector environments, against plain loops over the same seeds."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from sqlbuffer import ReplayBuffer, fields_from_env
from sqlbuffer.recording import wrappers
from tests.recording.envs import Batched, Rooms, Scripted, Shapes
from tests.recording.episodes import Episode, cut, plain, played, stored
from tests.support.sql import run

N_ENVS, SEED = 3, 5
MODES = list(AutoresetMode)


@pytest.fixture(autouse=True, params=["steps", "blocks"])
def way_of_recording(request, monkeypatch):
    """Record few environments by single steps, as they are, and as blocks, as many are."""
    if request.param == "blocks":
        monkeypatch.setattr(wrappers, "FEW_ENVS", 0)


def make_cartpole():
    return gymnasium.make("CartPole-v1")


def make_pendulum():
    return gymnasium.make("Pendulum-v1", max_episode_steps=7)


def make_rooms():
    return Rooms()


def make_shapes():
    return Shapes()


def vector_of(make, kind, mode, n=N_ENVS):
    if kind == "sync":
        return SyncVectorEnv([make] * n, autoreset_mode=mode)
    # A graph has no place in shared memory.
    shared = make is not make_shapes
    return AsyncVectorEnv([make] * n, autoreset_mode=mode, shared_memory=shared)


def actions_of(make, n_steps, n=N_ENVS):
    """Return `n_steps` actions of each environment."""
    env = make()
    env.action_space.seed(SEED)
    actions = [[env.action_space.sample() for _ in range(n_steps)] for _ in range(n)]
    env.close()
    return actions


def together(space, actions):
    """Return the actions of all environments at one step as the batch that they take."""
    return concatenate(space, actions, create_empty_array(space, len(actions)))


def run_vector(env, actions, mode, partial_reset=None):
    """Take the steps; where the environment does not reset itself, reset what has ended."""
    env.reset(seed=SEED)
    for t, batch in enumerate(zip(*actions, strict=True)):
        if partial_reset and t == partial_reset[0]:
            env.reset(options={"reset_mask": np.array(partial_reset[1])})
        _, _, terminated, truncated, _ = env.step(together(env.single_action_space, batch))
        done = terminated | truncated
        if mode is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})


def reference(make, actions, mode, **options):
    skips = mode is AutoresetMode.NEXT_STEP
    return [
        episode
        for i, own in enumerate(actions)
        for episode in played(make(), SEED + i, own, skips_a_step=skips, **options)
    ]


def check(url, make, kind, mode, n_steps, n=N_ENVS):
    actions = actions_of(make, n_steps, n)
    env = vector_of(make, kind, mode, n)
    with ReplayBuffer(url, create=True, **fields_from_env(env)) as buffer:
        with buffer.record(env) as recorded:
            run_vector(recorded, actions, mode)
        found, expected = stored(url, buffer), reference(make, actions, mode)
        assert len(expected) > n
        assert plain(found) == plain(expected)
        assert len(buffer) == sum(len(episode.steps) for episode in expected)


@pytest.mark.parametrize("mode", MODES)
def test_steps_and_episodes_are_those_of_single_environments(schema_url, mode):
    check(schema_url, make_cartpole, "sync", mode, n_steps=100)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_environments_in_processes_are_stored_alike(sqlite_url, mode):
    check(sqlite_url, make_cartpole, "async", mode, n_steps=60)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_observations_and_actions_of_parts_are_taken_apart(sqlite_url, kind, mode):
    check(sqlite_url, make_rooms, kind, mode, n_steps=25)


@pytest.mark.parametrize("mode", MODES)
def test_texts_sequences_and_graphs_are_taken_apart(sqlite_url, mode):
    check(sqlite_url, make_shapes, "sync", mode, n_steps=25)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_texts_sequences_and_graphs_of_other_processes_are_taken_apart(schema_url, mode):
    check(schema_url, make_shapes, "async", mode, n_steps=25)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_time_limits_truncate(sqlite_url, mode):
    check(sqlite_url, make_pendulum, "sync", mode, n_steps=30)


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_of_one_is_stored_alike(sqlite_url, mode):
    check(sqlite_url, make_cartpole, "sync", mode, n_steps=60, n=1)


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_environments_that_the_mask_names_are_cut_and_the_others_go_on(sqlite_url, kind, mode):
    """None has ended by then, so that the same step means a reset in every mode."""

    def make():
        return Scripted([(5, "terminated"), (4, "truncated")])

    actions = [[t % 3 for t in range(12)] for _ in range(N_ENVS)]
    mask = [True, False, True]
    env = vector_of(make, kind, mode)
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        with buffer.record(env) as recorded:
            run_vector(recorded, actions, mode, partial_reset=(3, mask))
        skips = mode is AutoresetMode.NEXT_STEP
        expected = [
            episode
            for own, is_reset in zip(actions, mask, strict=True)
            for episode in played(
                make(), 0, own, skips_a_step=skips, resets_before=(3,) if is_reset else ()
            )
        ]
        assert plain(stored(sqlite_url, buffer)) == plain(expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_of_all_in_the_middle_cuts_all(sqlite_url, mode):
    env = vector_of(lambda: Scripted([(9, "terminated")]), "sync", mode)
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        with buffer.record(env) as recorded:
            for _ in range(2):
                recorded.reset()
                for _ in range(4):
                    recorded.step(np.zeros(N_ENVS, int))
        episodes = stored(sqlite_url, buffer)
        assert [len(episode.steps) for episode in episodes] == [4] * 2 * N_ENVS
        assert all(episode.final["obs"][1] == 4 for episode in episodes)
        assert all(
            [step[4] for step in episode.steps] == [False] * 3 + [True] for episode in episodes
        )


def test_an_environment_that_computes_all_at_once_is_stored_as_it_says(sqlite_url):
    env = gymnasium.make_vec("CartPole-v1", num_envs=N_ENVS)  # CartPoleVectorEnv, NEXT_STEP
    assert not hasattr(env, "envs")
    expected, current = [], [Episode() for _ in range(N_ENVS)]
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        with buffer.record(env) as recorded:
            obs, done = recorded.reset(seed=SEED)[0].copy(), np.zeros(N_ENVS, bool)
            recorded.action_space.seed(SEED)
            for _ in range(80):
                actions = recorded.action_space.sample()
                after, rewards, terminated, truncated, _ = recorded.step(actions)
                for i in np.flatnonzero(~done):
                    values = ({"obs": obs[i]}, {"action": actions[i]}, float(rewards[i]))
                    step = (*values, bool(terminated[i]), bool(truncated[i]))
                    current[i].steps.append(step)
                    if terminated[i] or truncated[i]:
                        current[i].final = {"obs": after[i].copy()}
                        expected.append(current[i])
                        current[i] = Episode()
                obs, done = after.copy(), terminated | truncated
        for i, episode in enumerate(current):
            cut(expected, episode, {"obs": obs[i]})
        assert len(expected) > 2 * N_ENVS
        assert plain(stored(sqlite_url, buffer)) == plain(expected)


def test_an_environment_that_has_ended_and_was_not_reset_stores_nothing(sqlite_url):
    class Patient(Batched):
        """Goes on whatever has ended, as some do."""

        metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    env = Patient(2, length=2)
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        with buffer.record(env) as recorded:
            recorded.step(np.zeros(2, int))  # before any reset
            recorded.reset()
            for _ in range(5):
                recorded.step(np.zeros(2, int))
        assert [len(episode.steps) for episode in stored(sqlite_url, buffer)] == [2, 2]


def test_final_observations_that_come_as_one_array_are_taken(sqlite_url):
    env = Batched(2, length=3)
    with ReplayBuffer(sqlite_url, **fields_from_env(env, next_observation=True)) as buffer:
        with buffer.record(env) as recorded:
            recorded.reset()
            for _ in range(6):
                recorded.step(np.zeros(2, int))
        episodes = stored(sqlite_url, buffer)
        assert [episode.final["obs"].tolist() for episode in episodes] == [[3.0]] * 4
        following = [step[0]["next_obs"][0] for step in episodes[0].steps]
        assert following == [1.0, 2.0, 3.0]


def test_a_final_observation_that_is_not_told_is_not_made_up(sqlite_url):
    env = Batched(1, length=2, tells=())
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        with buffer.record(env) as recorded:
            recorded.reset()
            for _ in range(4):
                recorded.step(np.zeros(1, int))
        assert [episode.final for episode in stored(sqlite_url, buffer)] == [{}, {}]


def test_an_exception_in_a_step_aborts_the_open_episodes_of_all(sqlite_url):
    env = SyncVectorEnv(
        [lambda: Scripted([(9, "terminated")]), lambda: Scripted(fails_at=(1, 2))],
        autoreset_mode="SameStep",
    )
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        with buffer.record(env) as recorded:
            recorded.reset()
            for _ in range(4):
                recorded.step([0, 0])
            with pytest.raises(OSError, match="the simulator is gone"):
                recorded.step([0, 0])
            recorded.reset()
            recorded.step([0, 0])
        found = run(sqlite_url, "SELECT status, length FROM v_episodes ORDER BY first_seq")
        assert found == [
            ("aborted", 4),
            ("complete", 3),
            ("aborted", 1),
            ("complete", 1),
            ("complete", 1),
        ]


def test_a_vector_that_does_not_say_when_it_resets_is_refused(sqlite_url):
    env = Batched(1, length=2)
    env.metadata = {}
    with (
        ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer,
        pytest.raises(ValueError, match=r"metadata\['autoreset_mode'\] is None; set it to a gymn"),
    ):
        buffer.record(env)


def test_the_vector_environment_shines_through(sqlite_url):
    env = vector_of(make_cartpole, "sync", "NextStep")
    with ReplayBuffer(sqlite_url, **fields_from_env(env)) as buffer:
        recorded = buffer.record(env)
        assert recorded.num_envs == N_ENVS
        assert recorded.single_action_space == env.single_action_space
        assert recorded.observation_space == env.observation_space
        assert recorded.metadata == env.metadata
        assert recorded.unwrapped is env
        assert recorded.get_attr("gravity") == (9.8,) * N_ENVS
        assert isinstance(recorded, gymnasium.vector.VectorEnv)
        outer = gymnasium.wrappers.vector.RecordEpisodeStatistics(recorded)
        outer.reset(seed=1)
        outer.step(outer.action_space.sample())
        outer.close()
        assert env.closed
        assert len(buffer) == N_ENVS


@pytest.mark.thorough
@pytest.mark.slow
def test_environments_that_are_recorded_inside_a_vector_store_from_their_processes(schema_url):
    make = make_cartpole
    actions = actions_of(make, 60)
    with ReplayBuffer(schema_url, **fields_from_env(make())) as buffer:
        env = AsyncVectorEnv([lambda: buffer.record(make())] * N_ENVS)
        env.set_attr("model_version", 4)
        run_vector(env, actions, AutoresetMode.NEXT_STEP)
        env.close()
        expected = reference(make, actions, AutoresetMode.NEXT_STEP)
        assert plain(stored(schema_url, buffer)) == plain(expected)
        versions = run(schema_url, "SELECT DISTINCT model_version FROM v_episodes")
        assert versions == [(4,)]
