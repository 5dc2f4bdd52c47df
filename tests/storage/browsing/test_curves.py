"""What the curves of a buffer are drawn from, with more episodes than are read."""

import numpy as np

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.browsing import curves
from sqlbuffer.storage.browsing.curves import TimeSpan, buffer_number, episode_points
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.database.transactions import snapshot


def test_a_sample_is_of_the_episodes_of_its_buffer_alone(buffer_url, monkeypatch):
    monkeypatch.setattr(curves, "MOST_EPISODES", 20)
    monkeypatch.setattr(curves, "SAMPLED_EPISODES", 30)
    for name, n_episodes, reward in (("earlier", 90, 1.0), ("own", 60, 2.0), ("later", 90, 3.0)):
        with ReplayBuffer(buffer_url, name) as buffer:
            for number in range(n_episodes):
                buffer.store_episode({"state": [number], "reward": [reward]})
    with snapshot(engine_for(resolve_url(buffer_url))) as connection:
        points = episode_points(connection, buffer_number(connection, "own"), TimeSpan())
    assert points.is_sample
    n = len(points.returns)
    assert 28 <= n <= 33
    assert points.returns.tolist() == [2.0] * n
    assert points.lengths.tolist() == [1.0] * n
    assert points.seqs[-1] == points.places[-1] == 60
    # In a buffer of one step each, the number of an episode is that of its step.
    np.testing.assert_allclose(points.places, points.seqs, atol=3)
    assert np.all(np.diff(points.ended_at) >= 0)
