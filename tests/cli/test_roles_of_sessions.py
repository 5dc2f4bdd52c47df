"""What the roles may do about sessions, quarantine and expired rows."""

import psycopg
import pytest

from sqlbuffer import QueryBuilder, Removed, ReplayBuffer
from sqlbuffer.compat.ding import create_buffer
from sqlbuffer.errors import StorageReadOnlyError
from tests.support.array_rows import make_array_row
from tests.support.rows import TASK_0

LIMITS = {"max_staleness": 0, "current_session_only": True}


def test_learners_start_sessions_quarantine_rows_and_let_them_leave(with_roles, login):
    with ReplayBuffer(login("sqlbuffer_learner"), name="newer", **LIMITS) as buffer:
        buffer.store_batch([make_array_row(task=i, step=i, model_version=i) for i in range(4)])
        key = buffer.start_session()
        assert buffer.set_model_version(2)
        assert (buffer.session_id, buffer.model_version()) == (key, 2)
        assert buffer.quarantine(QueryBuilder().eq("exp_meta.step", 3), reason="odd") == 1
        assert len(buffer.sample(4)) == 1
        with psycopg.connect(login("sqlbuffer_analyst")) as connection:
            found = connection.execute("SELECT step, reason FROM v_quarantine").fetchall()
            assert found == [(3, "odd")]
        assert buffer.release([4]) == 1
        assert buffer.expire() == Removed(2, 0, 0)
        assert len(buffer) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda buffer: buffer.start_session(),
        lambda buffer: buffer.set_model_version(1),
        lambda buffer: buffer.quarantine(TASK_0),
        lambda buffer: buffer.release(TASK_0),
    ],
    ids=["start_session", "set_model_version", "quarantine", "release"],
)
def test_writers_do_not(with_roles, login, change):
    with (
        ReplayBuffer(login("sqlbuffer_writer"), name="older") as buffer,
        pytest.raises(StorageReadOnlyError),
    ):
        change(buffer)


# What the roles may do with a buffer of compat.ding.


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
