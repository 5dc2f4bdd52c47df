"""Steps of chunks that go are logged as rows are, and chunks say which transaction wrote them."""

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.storage.changes import Follower
from tests.storage.changes.log_entries import entries
from tests.support.sql import is_sqlite, run


def seqs_between(low, high):
    return QueryBuilder().gte("seq", low).and_().lte("seq", high).build()


@pytest.fixture
def make_buffer(buffer_url):
    """Make an empty buffer whose steps are stored in chunks."""
    opened = []

    def make(**settings):
        ReplayBuffer(buffer_url, fields={"x": "int64"}, **settings).close()
        run(buffer_url, "UPDATE buffers SET has_chunks = true")
        opened.append(ReplayBuffer(buffer_url))
        return opened[-1]

    yield make
    for buffer in opened:
        buffer.close()


def test_steps_and_chunks_that_are_deleted_are_logged(buffer_url, make_buffer):
    buffer = make_buffer()
    for _ in range(2):
        buffer.extend({"x": np.arange(10)})
    assert buffer.delete(seqs_between(3, 5)) == 3
    assert buffer.delete(seqs_between(11, 20)) == 10
    assert entries(buffer_url) == [("deleted", [3, 4, 5]), ("deleted", list(range(11, 21)))]


def test_chunks_that_plain_sql_deletes_are_logged(buffer_url, make_buffer):
    buffer = make_buffer()
    buffer.extend({"x": np.arange(4)})
    run(buffer_url, "DELETE FROM chunks")
    expected = [1, 2, 3, 4] if is_sqlite(buffer_url) else None
    assert entries(buffer_url) == [("deleted", expected)]


def test_eviction_by_step_is_not_logged(buffer_url, make_buffer):
    buffer = make_buffer(max_capacity=10)
    Follower(buffer._store).register()
    for _ in range(5):
        buffer.extend({"x": np.arange(4)})
    assert len(buffer) == 10
    assert entries(buffer_url) == []


@pytest.mark.parametrize("is_followed", [True, False])
def test_tasks_that_are_evicted_are_logged_for_followers_alone(
    buffer_url, make_buffer, is_followed
):
    buffer = make_buffer(max_capacity=4, evict_by="task")
    if is_followed:
        Follower(buffer._store).register()
    for task in range(3):
        buffer.extend({"x": np.arange(2), "task_id": [f"t{task}"] * 2})
    assert len(buffer) == 4
    assert entries(buffer_url) == ([("deleted", [1, 2])] if is_followed else [])


def test_chunks_have_the_id_of_their_transaction_on_postgresql_alone(buffer_url, make_buffer):
    buffer = make_buffer()
    for _ in range(2):
        buffer.extend({"x": np.arange(600)})
    ids = [xid for (xid,) in run(buffer_url, "SELECT xid FROM chunks ORDER BY first_seq")]
    assert len(ids) == 6
    assert len(set(ids)) == (1 if is_sqlite(buffer_url) else 2)
    assert (None in ids) == is_sqlite(buffer_url)
