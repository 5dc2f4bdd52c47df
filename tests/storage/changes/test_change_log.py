"""Each change of stored rows is logged in the transaction that makes it."""

from contextlib import closing

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.compat import memmap
from sqlbuffer.storage import changes
from sqlbuffer.storage.changes import Follower
from sqlbuffer.storage.rows import removal
from tests.storage.changes.log_entries import entries, origins
from tests.support.processes import run_at_once
from tests.support.sql import connected, is_sqlite, run
from tests.support.stepped_rows import EVERY_ROW, make_row, make_rows, step_is, steps_between

CHANGES = {
    "deleted": lambda buffer: buffer.delete(step_is(1)),
    "quarantined": lambda buffer: buffer.quarantine([2], reason="odd"),
    "labelled": lambda buffer: buffer.annotate([2], reward=1.0),
}
LIMITS = {"row": {"max_capacity": 9}, "task": {"max_capacity": 9}, "episode": {"max_episodes": 9}}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=9) as buffer:
        buffer.store_batch(make_rows(range(6)))
        yield buffer


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_logged_with_the_opener_that_makes_it(buffer_url, buffer, kind):
    CHANGES[kind](buffer)
    assert entries(buffer_url) == [(kind, [2])]
    assert origins(buffer_url) == [buffer._store.origin]


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_is_undone_is_not_logged(buffer_url, buffer, kind, monkeypatch):
    commit = buffer._store.write

    def failing(work, durability=None):
        def undone(connection):
            work(connection)
            assert connection.scalar(text("SELECT count(*) FROM change_log")) == 1
            raise ZeroDivisionError

        return commit(undone, durability)

    monkeypatch.setattr(buffer._store, "write", failing)
    with pytest.raises(ZeroDivisionError):
        CHANGES[kind](buffer)
    assert entries(buffer_url) == []


def test_a_change_of_nothing_is_not_logged(buffer_url, buffer):
    buffer.delete(step_is(99))
    buffer.quarantine([99])
    buffer.release([1])
    buffer.annotate([99], reward=1.0)
    assert entries(buffer_url) == []


def test_conditions_and_releases_name_the_rows_that_changed(buffer_url, buffer):
    buffer.quarantine(steps_between(1, 3))
    buffer.quarantine(EVERY_ROW)
    buffer.release(steps_between(0, 1))
    assert [(kind, sorted(seqs)) for kind, seqs in entries(buffer_url)] == [
        ("quarantined", [2, 3, 4]),
        ("quarantined", [1, 5, 6]),
        ("quarantined", [1, 2]),
    ]


def test_many_rows_are_logged_in_several_entries(buffer_url, buffer, monkeypatch):
    monkeypatch.setattr(changes, "ROWS_AN_ENTRY", 4)
    buffer.quarantine([1, 2, 3, 4, 5, 6])
    assert [seqs for _, seqs in entries(buffer_url)] == [[1, 2, 3, 4], [5, 6]]


def test_rows_that_are_deleted_chunk_by_chunk_are_all_logged(buffer_url, buffer, monkeypatch):
    monkeypatch.setattr(removal, "ROWS_AT_ONCE", 4)
    assert buffer.clear() == 6
    assert entries(buffer_url) == [("deleted", [1, 2, 3, 4]), ("deleted", [5, 6])]


def test_stored_values_that_are_replaced_are_logged(buffer_url):
    config = {"max_episodes": 2, "max_timesteps": 3, "fields": {"r": "float"}}
    with closing(memmap.ReplayBuffer(buffer_url, name="slots", **config)) as buffer:
        buffer.store_episode(r=[1.0, 2.0])
        buffer.data["r"][0, 1] = 9.0
    assert entries(buffer_url, "slots") == [("replaced", [2])]  # the episode came with its end


@pytest.mark.parametrize("evict_by", LIMITS)
def test_expired_rows_are_logged_as_deleted(buffer_url, evict_by):
    limits = LIMITS[evict_by]
    with ReplayBuffer(buffer_url, evict_by=evict_by, max_staleness=0, **limits) as buffer:
        for version in range(2):
            key = f"k{version}"
            row = make_row(version, task=key, episode=key)
            row.exp_meta.model_version = version
            buffer.store(row)
            run(buffer_url, "UPDATE episodes SET status = 'complete'")
        buffer.set_clock(1)
        assert buffer.expire().expired == 1
    assert entries(buffer_url) == [("deleted", [1])]


def test_eviction_by_row_is_not_logged(buffer_url, buffer):
    with_follower = Follower(buffer._store)
    with_follower.register()
    buffer.store_batch(make_rows(range(10, 30)))
    buffer.resize(4)
    run(buffer_url, insert_one(buffer_url))
    assert len(buffer) == 4
    assert entries(buffer_url) == []


def insert_one(url):
    table = "new_experiences" if is_sqlite(url) else "experiences"
    return (
        f"INSERT INTO {table} (buffer_id, task_id, agent_id, step) "
        "SELECT id, 'sql', 'a', 1 FROM buffers"
    )


def deleted_rows(url):
    assert {kind for kind, _ in entries(url)} <= {"deleted"}
    return [seq for _, seqs in entries(url) for seq in seqs]


@pytest.mark.parametrize("by", ["library", "plain SQL"])
def test_a_task_that_is_evicted_is_logged_for_followers_alone(buffer_url, by):
    with ReplayBuffer(buffer_url, max_capacity=4, evict_by="task") as buffer:
        for task in range(3):
            buffer.store_batch(make_rows(range(2), task=f"t{task}"))
        assert entries(buffer_url) == []
        Follower(buffer._store).register()
        if by == "library":
            buffer.store_batch(make_rows(range(2), task="t3"))
        else:
            run(buffer_url, insert_one(buffer_url))
    assert sorted(deleted_rows(buffer_url)) == [3, 4]


def test_an_episode_that_is_evicted_is_logged_for_followers_alone(buffer_url):
    with ReplayBuffer(buffer_url, max_episodes=1) as buffer:
        for followed in (False, True):
            if followed:
                Follower(buffer._store).register()
            with buffer.episode() as episode:
                episode.append(state=1)
                episode.append(state=2)
            buffer.flush()
        assert len(buffer) == 2
    assert sorted(deleted_rows(buffer_url)) == [1, 2]


def test_a_library_delete_among_evicted_tasks_is_logged_once(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=9, evict_by="task") as buffer:
        buffer.store_batch(make_rows(range(4)))
        assert buffer.delete(steps_between(1, 2)) == 2
        assert entries(buffer_url) == [("deleted", [2, 3])]


def test_a_delete_by_plain_sql_is_logged_without_an_origin(buffer_url, buffer):
    run(buffer_url, "DELETE FROM experiences WHERE step IN (1, 3)")
    if is_sqlite(buffer_url):
        assert entries(buffer_url) == [("deleted", [2]), ("deleted", [4])]
    else:
        assert entries(buffer_url) == [("deleted", None)]
    assert set(origins(buffer_url)) == {None}


def test_plain_sql_after_a_delete_of_the_library_is_logged_as_well(buffer_url, buffer):
    buffer.delete(step_is(0))
    run(buffer_url, "DELETE FROM experiences WHERE step = 1")
    assert len(entries(buffer_url)) == 2


def test_a_truncated_table_is_logged(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url) as buffer, ReplayBuffer(url, name="other"):
        buffer.store(make_row(1))
        run(url, "TRUNCATE experiences")
    assert entries(url) == entries(url, "other") == [("deleted", None)]


@pytest.fixture
def with_priorities(buffer_url):
    with ReplayBuffer(buffer_url, priorities=True) as buffer:
        buffer.store_batch(make_rows(range(4)))
        yield buffer


def test_priorities_are_logged_while_there_is_a_follower(buffer_url, with_priorities):
    with_priorities.update_priorities([1, 2], [2.0, 3.0])
    assert entries(buffer_url) == []
    follower = Follower(with_priorities._store)
    follower.register()
    with_priorities.update_priorities([3, 2], [2.0, 4.0])
    with_priorities.update_priorities([99], 1.0)
    follower.leave()
    with_priorities.update_priorities([1, 4], [4.0, 5.0])
    assert entries(buffer_url)[0] == ("priorities", [2, 3])
    # That no row had the number 99 costs no look.
    assert [kind for kind, seqs in entries(buffer_url)[1:] if seqs != [99]] == []
    assert set(origins(buffer_url)) == {with_priorities._store.origin}


def test_entries_have_the_transaction_of_the_change_on_postgresql(buffer_url, buffer):
    buffer.annotate([1], reward=1.0)
    buffer.annotate([2], reward=1.0)
    ids = [xid for (xid,) in run(buffer_url, "SELECT xid FROM change_log ORDER BY id")]
    if is_sqlite(buffer_url):
        assert ids == [None, None]
    else:
        assert int(ids[0]) < int(ids[1])


def test_each_opener_and_each_process_has_its_own_origin(buffer_url, buffer):
    with ReplayBuffer(buffer_url) as other:
        inherited = run_at_once([(lambda: buffer._store.origin,)])
        assert len({buffer._store.origin, other._store.origin, *inherited}) == 3
        assert buffer._store.origin == buffer._store.origin


def test_a_dropped_buffer_takes_its_log_along(buffer_url, buffer):
    Follower(buffer._store).register()
    buffer.delete(step_is(1))
    ReplayBuffer.drop(buffer_url, "default")
    with connected(buffer_url) as connection:
        for table in ("change_log", "change_log_starts", "followers"):
            assert connection.scalar(text(f"SELECT count(*) FROM {table}")) == 0


# Steps of chunks that go are logged as rows are, and chunks say which transaction wrote them.


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
