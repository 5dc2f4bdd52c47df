"""What `add` stores, step by step, against plain lists."""

import json
import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces

from sqlbuffer import QueryBuilder, RateLimiter, ReplayBuffer
from sqlbuffer.errors import EpisodeTakenError, FlowControlError, StorageError
from sqlbuffer.integrations.sb3 import SQLReplayBuffer
from tests.support.processes import wait_until
from tests.support.sql import run
from tests.support.waiting_steps import NEVER_S, refusing_inserts

DICT = spaces.Dict({"at": spaces.Box(-9, 9, (2,)), "seen": spaces.Box(0, 255, (2, 2), np.uint8)})
ACTION = spaces.Discrete(5)


def observation(number, env):
    """Return an observation of one environment that no other step has."""
    seen = np.frombuffer(np.array([number * 10 + env], "<u4").tobytes(), np.uint8)
    return {"at": np.array([number, env], np.float32), "seen": seen.reshape(2, 2)}


def stacked(observations, rng):
    """Return observations of all environments, in one of the forms that `add` takes."""
    at = np.stack([each["at"] for each in observations])
    seen = np.stack([each["seen"] for each in observations])
    if rng.random() < 0.3:
        at = at.astype(np.float64)
    if rng.random() < 0.3:
        seen = np.asfortranarray(seen)
    return {"at": at.tolist() if rng.random() < 0.2 else at, "seen": seen}


class Environments:
    """Random environments; keeps of each the episodes that are to be stored."""

    def __init__(self, n_envs, rng):
        self.rng, self.number = rng, 0
        self.now = [self.next(env) for env in range(n_envs)]
        self.episodes = [[[]] for _ in range(n_envs)]

    def next(self, env):
        self.number += 1
        return observation(self.number, env)

    def add_to(self, replay):
        rng, n = self.rng, len(self.now)
        for env in range(n):
            if rng.random() < 0.05:  # an environment that was reset
                self.now[env] = self.next(env)
                self.episodes[env].append([])
        after = [self.next(env) for env in range(n)]
        ends, cut = rng.random(n) < 0.15, rng.random(n) < 0.07
        reward = rng.choice([0.5, -0.0, np.nan, np.inf, 3.0], n)
        action = rng.integers(5, size=(n, 1))
        infos = [{"TimeLimit.truncated": bool(each)} if each else {} for each in cut]
        replay.add(stacked(self.now, rng), stacked(after, rng), action, reward, ends | cut, infos)
        for env in range(n):
            flags = bool(ends[env] and not cut[env]), bool(cut[env])
            values = (self.now[env], after[env], int(action[env, 0]), float(reward[env]), *flags)
            self.episodes[env][-1].append(values)
            self.now[env] = after[env]
            if any(flags):
                self.now[env] = self.next(env)
                self.episodes[env].append([])

    def end(self):
        for env, episodes in enumerate(self.episodes):
            episodes.append([])
            self.now[env] = self.next(env)


def comparable(step):
    before, after, action, reward, terminated, truncated = step
    arrays = [array.tolist() for each in (before, after) for array in each.values()]
    return [arrays, action, repr(reward), terminated, truncated]


def stored_episodes(url, n_envs):
    """Return the steps of each stored episode, by environment."""
    found = [[] for _ in range(n_envs)]
    with ReplayBuffer(url) as buffer:
        listed = run(url, "SELECT episode_id, status, meta FROM v_episodes")
        for episode_id, status, meta in listed:
            assert status == "complete"
            rows = list(buffer.get_all(QueryBuilder().eq("episode_id", episode_id).build()))
            assert [row.exp_meta.step for row in rows] == list(range(len(rows)))
            meta = meta if isinstance(meta, dict) else json.loads(meta)
            steps = [
                comparable(
                    (
                        {name: row.fields[f"obs_{name}"] for name in ("at", "seen")},
                        {name: row.fields[f"next_obs_{name}"] for name in ("at", "seen")},
                        int(row.fields["action"][0]),
                        row.exp_data.reward_t,
                        bool(row.exp_data.terminated),
                        bool(row.exp_data.truncated),
                    )
                )
                for row in rows
            ]
            found[meta["env"]].append(steps)
    return [sorted(episodes) for episodes in found]


def expected_episodes(environments):
    return [
        sorted([list(map(comparable, episode)) for episode in episodes if episode])
        for episodes in environments.episodes
    ]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_added_is_stored_as_it_was_given(schema_url, seed):
    rng = np.random.default_rng(seed)
    n_envs = int(rng.choice([1, 3]))
    environments = Environments(n_envs, rng)
    limiter = {"max_pending": int(rng.choice([1, 7, 1_024]))}
    with SQLReplayBuffer(10_000, DICT, ACTION, "cpu", n_envs, url=schema_url, **limiter) as replay:
        for _ in range(150):
            environments.add_to(replay)
            what = rng.random()
            if what < 0.1:
                replay.buffer.flush()
            elif what < 0.2:
                replay.sample(4)
    assert stored_episodes(schema_url, n_envs) == expected_episodes(environments)


def added(replay, n, first=0):
    """Add n steps of two environments that go on and on."""
    space = replay.observation_space
    for i in range(first, first + n):
        before, after = (np.full((2, *space.shape), at, np.float32) for at in (i, i + 1))
        replay.add(before, after, np.zeros((2, 1)), np.ones(2), np.zeros(2), [{}, {}])


def opened(url, **options):
    space = spaces.Box(-np.inf, np.inf, (1,))
    return SQLReplayBuffer(1_000, space, ACTION, "cpu", 2, url=url, **options)


def lengths(url):
    return sorted(length for (length,) in run(url, "SELECT length FROM v_episodes"))


def test_a_rate_limiter_may_divide_what_waits(sqlite_url):
    limiter = RateLimiter(samples_per_insert=1.0, min_size=5, error_buffer=13.0)
    with opened(sqlite_url, rate_limiter=limiter, wait_s=0, flush_s=NEVER_S) as replay:
        added(replay, 11)
        with pytest.raises(FlowControlError):
            replay.buffer.flush()
        assert 0 < replay.buffer.stats().rows < 22
        replay.buffer.set_rate_limiter(None)
        added(replay, 3, first=11)
    assert lengths(sqlite_url) == [14, 14]


def test_episodes_that_have_ended_take_no_memory(sqlite_url):
    with opened(sqlite_url, flush_s=NEVER_S) as replay:

        def ended(n):
            observations, ends = np.zeros((2, 1), np.float32), np.ones(2)
            for _ in range(n):
                replay.add(observations, observations, np.zeros((2, 1)), ends, ends, [{}, {}])
            replay.buffer.flush()

        ended(500)
        tracemalloc.start()
        ended(100)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(15):
            ended(400)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert after - before < 2 * 15 * 400 * 100  # an episode takes 300 bytes


def test_a_database_that_refuses_is_told_and_what_waits_is_stored_later(sqlite_url, caplog):
    with opened(sqlite_url, flush_s=0.3) as replay:
        with refusing_inserts(sqlite_url):
            added(replay, 5)
            wait_until(lambda: "could not be stored yet" in caplog.text, "the timer fails")
            with pytest.raises(StorageError, match="no rows today"):
                added(replay, 1, first=5)
        replay.buffer.flush()
        added(replay, 4, first=6)
    assert lengths(sqlite_url) == [4, 4, 5, 5]


def test_an_episode_that_another_writer_continues_is_given_up(database_url):
    with opened(database_url, create=True, flush_s=NEVER_S, task_id="t") as replay:
        added(replay, 3)
        replay.buffer.flush()
        (taken, _) = [row.exp_meta.episode_id for row in replay.buffer if row.exp_meta.step == 2]
        episode = replay.buffer.episode("t", episode_id=taken, resume=True)
        with pytest.raises(EpisodeTakenError, match="continued"):
            added(replay, 1, first=3)
        episode.abort()
        added(replay, 2, first=4)
    assert lengths(database_url) == [2, 2, 3, 3]


def test_fields_that_are_added_meanwhile_have_their_default(sqlite_url):
    with opened(sqlite_url, flush_s=NEVER_S) as replay:
        added(replay, 3)
        replay.buffer.add_field("score", {"dtype": "float32", "default": 7.0})
        added(replay, 3, first=3)
    assert lengths(sqlite_url) == [6, 6]
    with ReplayBuffer(sqlite_url) as buffer:
        assert {float(row.fields["score"]) for row in buffer} == {7.0}
