"""Episodes that are stored whole, and read whole from the cache."""

import json

import numpy as np
import pytest

from tests.support.sql import run

EPISODES = "SELECT status, length, meta FROM v_episodes"
FIELDS = {"r": ("float", (), -1.0), "reward": "float"}


def whole(buffer, slots):
    """Return the fields of slots with all their steps, read as data loaders read them."""
    ts = np.tile(np.arange(12), len(slots))
    return buffer._cells(["r", "reward"], np.repeat(slots, 12), ts)


@pytest.mark.parametrize("cache_bytes", [0, 700, 2**20])
def test_what_is_read_can_be_changed_and_the_next_read_is_unchanged(make, cache_bytes):
    buffer = make(max_timesteps=12, fields=FIELDS, cache_bytes=cache_bytes)
    for i in range(3):
        buffer.store_episode(r=np.arange(12.0) + 100 * i, reward=np.full(12, i))
    rng = np.random.default_rng(0)
    for _ in range(12):
        slots = rng.choice(3, rng.integers(1, 4), replace=False)
        cells = whole(buffer, slots)
        assert cells["r"].tolist() == [100.0 * i + t for i in slots.tolist() for t in range(12)]
        assert cells["reward"].tolist() == np.repeat(slots, 12).tolist()
        for array in cells.values():
            array[:] = -7


def test_an_episode_with_and_without_missing_rewards_is_stored_alike(make, buffer_url):
    buffer = make(max_timesteps=12, fields=FIELDS, circular=True)
    rewards = np.ones((7, 12), np.float32)
    rewards[1::2, 3:5] = np.nan
    for i, reward in enumerate(rewards):
        buffer.store_episode(r=np.arange(12.0), reward=reward, task=i)
    np.testing.assert_array_equal(buffer.data["reward"][:3], rewards[[6, 4, 5]])
    found = run(buffer_url, EPISODES)
    shown = [meta if isinstance(meta, dict) else json.loads(meta) for _, _, meta in found]
    assert [row[:2] for row in found] == [("complete", 12)] * len(found)
    assert sorted(meta["task"] for meta in shown)[-3:] == [4, 5, 6]
