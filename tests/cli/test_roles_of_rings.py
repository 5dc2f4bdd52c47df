"""What the roles may do with a buffer of compat.ding."""

import pytest

from sqlbuffer.compat.ding import create_buffer
from sqlbuffer.errors import StorageReadOnlyError

CONFIG = {"type": "naive", "replay_buffer_size": 3, "name": "ring"}


def test_a_writer_collects_and_a_learner_samples_and_clears(with_roles, login):
    collector = create_buffer({**CONFIG, "url": login("sqlbuffer_writer")})
    learner = create_buffer({**CONFIG, "url": login("sqlbuffer_learner")})
    collector.push([1, 2], 0)
    collector.push([3, 4], 0)
    assert sorted(learner.sample(3, 0)) == [2, 3, 4]
    assert (collector.count(), learner.push_count) == (3, 4)
    with pytest.raises(StorageReadOnlyError):
        collector.clear()
    assert (collector.count(), collector.push_count) == (3, 4)
    learner.load_state_dict(learner.state_dict())
    learner.clear()
    assert (collector.count(), collector.push_count) == (0, 0)
    analyst = create_buffer({**CONFIG, "url": login("sqlbuffer_analyst")})
    assert analyst.count() == 0
    with pytest.raises(StorageReadOnlyError):
        analyst.push([1], 0)
    for buffer in (collector, learner, analyst):
        buffer.close()


def test_a_writer_collects_and_a_learner_samples_and_updates_by_priority(with_roles, login):
    config = {**CONFIG, "type": "advanced", "max_use": 3, "max_staleness": 3, "name": "prioritized"}
    collector = create_buffer({**config, "url": login("sqlbuffer_writer")})
    learner = create_buffer({**config, "url": login("sqlbuffer_learner")})
    collector.push([{"obs": i, "collect_iter": i} for i in range(3)], 0)
    batch = learner.sample(2, 3)  # perhaps one item twice
    assert learner.count() <= 2
    keys = ("replay_unique_id", "replay_buffer_idx")
    info = {key: [item[key] for item in batch] for key in keys}
    learner.update({**info, "priority": [3.0, 4.0]})
    collector.push({"obs": 4}, 0)
    assert learner.state_dict()["data"][0]["priority"] == learner.state_dict()["max_priority"] > 1
    with pytest.raises(StorageReadOnlyError):
        collector.sample(1, 0)
    learner.load_state_dict(learner.state_dict())
    for buffer in (collector, learner):
        buffer.close()
