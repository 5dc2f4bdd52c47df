"""What the roles may do about sessions, quarantine and expired rows."""

import psycopg
import pytest

from sqlbuffer import QueryBuilder, Removed, ReplayBuffer
from sqlbuffer.errors import StorageReadOnlyError
from tests.storage.schema.test_roles import TASK_0
from tests.support.array_rows import make_array_row

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
