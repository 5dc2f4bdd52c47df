"""A follower sees every committed row once, though numbers are drawn before the commit."""

import random

import pytest
from sqlalchemy import NullPool, create_engine, make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.rows.follower import Follower
from sqlbuffer.storage.rows.stored_rows import STEP
from tests.support.processes import running
from tests.support.sql import connected, is_sqlite, run, scalar
from tests.support.stepped_rows import make_row, make_rows


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        yield buffer


def read_all(follower, limit=1_000):
    """Read until two looks, which is what it takes to settle, bring nothing new."""
    found, idle = [], 0
    while idle < 3:
        rows = follower.read(limit)
        idle = 0 if rows else idle + 1
        found += rows
    return found


def test_an_empty_buffer_has_nothing_to_see_and_its_first_row_is_not_missed(buffer):
    follower = Follower(buffer._store)
    assert read_all(follower) == []
    assert follower.seen == 0
    buffer.store(make_row(7))
    assert [row[STEP] for row in read_all(follower)] == [7]
    assert read_all(follower) == []


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_rows_are_seen_once_in_the_order_of_their_numbers(buffer, limit):
    follower = Follower(buffer._store)
    steps = []
    for first in range(0, 60, 20):
        buffer.store_batch(make_rows(range(first, first + 20)))
        steps += [row[STEP] for row in read_all(follower, limit)]
    assert steps == list(range(60))


def test_a_follower_goes_on_where_another_ended(buffer):
    buffer.store_batch(make_rows(range(10)))
    first = Follower(buffer._store)
    while not (seen := first.read(4)):
        pass
    assert [row[STEP] for row in seen] == [0, 1, 2, 3]
    rest = read_all(Follower(buffer._store, after=first.seen))
    assert [row[STEP] for row in rest] == [4, 5, 6, 7, 8, 9]


def test_rows_that_were_evicted_are_passed_over(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=5)
    follower = Follower(buffer._store)
    buffer.store_batch(make_rows(range(12)))
    assert [row[STEP] for row in read_all(follower)] == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("others", [True, False])
def test_a_row_that_is_committed_late_is_not_missed(make_database_url, others):
    """Its number is below those of rows that are there before it, or nothing is written after it:
    then the xmax of a snapshot is below its transaction.
    """
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url)
    follower = Follower(buffer._store)
    number = scalar(url, "SELECT id FROM buffers")
    with connected(url) as late:
        late.exec_driver_sql(
            f"INSERT INTO experiences (buffer_id, task_id, agent_id, step) "
            f"VALUES ({number}, 'late', 'a', 1)"
        )
        if others:
            buffer.store_batch(make_rows(range(2, 5)))
        assert read_all(follower) == []
    assert [row[STEP] for row in read_all(follower)] == ([1, 2, 3, 4] if others else [1])


def write(url, name, batches):
    buffer = ReplayBuffer(url)
    random.seed(name)
    for batch in range(batches):
        rows = [make_row(n, task=f"{name}_{batch}") for n in range(random.randint(1, 12))]
        buffer.store_batch(rows)


def write_slowly(url, name, batches):
    """Draw numbers early and commit late, as an overloaded machine would."""
    number = scalar(url, "SELECT id FROM buffers")
    table = "new_experiences" if is_sqlite(url) else "experiences"
    for batch in range(batches):
        with connected(url) as connection:
            for _ in range(5):
                connection.exec_driver_sql(
                    f"INSERT INTO {table} (buffer_id, task_id, agent_id, step) "
                    f"VALUES ({number}, '{name}_{batch}', 'a', 1)"
                )


def test_a_follower_sees_each_row_of_8_writers_once(buffer_url, buffer):
    writers = [(write, buffer_url, f"w{n}", 60) for n in range(6)]
    writers += [(write_slowly, buffer_url, f"slow{n}", 25) for n in range(2)]
    follower = Follower(buffer._store)
    seen = []
    with running(writers) as workers:
        while workers.running:
            seen += [row[0] for row in follower.read(200)]
        workers.results()
    during = len(seen)
    seen += [row[0] for row in read_all(follower)]
    stored = [seq for (seq,) in run(buffer_url, "SELECT seq FROM experiences ORDER BY seq")]
    assert seen == stored
    assert len(stored) > 1_500
    assert during > len(stored) / 4


def test_a_follower_over_connections_that_are_not_kept_gets_on_behind_busy_writers(
    make_database_url,
):
    """Each look opens a connection: what was learnt before must not be forgotten with it."""
    url = make_database_url("postgresql", schema=True)
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    buffer = ReplayBuffer(engine)
    follower = Follower(buffer._store)
    number = scalar(url, "SELECT id FROM buffers")
    insert = (
        "INSERT INTO experiences (buffer_id, task_id, agent_id, step) "
        f"VALUES ({number}, 't', 'a', 1)"
    )
    with connected(url) as first:
        first.exec_driver_sql(insert)
        assert follower.read(10) == []
        with connected(url) as second:
            second.exec_driver_sql(insert)
            first.commit()
            assert len(follower.read(10)) == 1
    assert len(read_all(follower)) == 1
    engine.dispose()
