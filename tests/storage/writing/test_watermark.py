"""Up to which number of a buffer no row can appear any more: its own writers alone decide that."""

import random

import pytest

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from sqlbuffer.storage.buffers.live_count import BLOCK
from sqlbuffer.storage.rows.follower import Follower
from sqlbuffer.storage.rows.stored_rows import STEP
from tests.storage.plans.watch import Watch
from tests.support import rows
from tests.support.processes import running
from tests.support.sql import buffer_id, connected, fill, plain_engine, run, scalar
from tests.support.stepped_rows import make_row, make_rows

N_ROWS = 3 * BLOCK


@pytest.fixture
def url(make_database_url):
    """Return a database whose server has a transaction with an id open in another database."""
    other = make_database_url("postgresql")
    with connected(other) as idle:
        assert idle.exec_driver_sql("SELECT pg_current_xact_id() IS NOT NULL").scalar_one()
        yield make_database_url("postgresql", schema=True)


def insert(connection, number, task="t", step=1):
    connection.exec_driver_sql(
        "INSERT INTO experiences (buffer_id, task_id, agent_id, step) "
        f"VALUES ({number}, '{task}', 'a', {step})"
    )


def test_a_transaction_of_another_database_holds_no_follower_back(url):
    with ReplayBuffer(url) as buffer:
        buffer.store_batch(make_rows(range(5)))
        assert [row[STEP] for row in Follower(buffer._store).read(10)] == [0, 1, 2, 3, 4]


def test_a_writer_of_another_buffer_holds_no_follower_back(url):
    with ReplayBuffer(url) as buffer, ReplayBuffer(url, name="other"), connected(url) as late:
        insert(late, buffer_id(url, "other"))
        buffer.store_batch(make_rows(range(5)))
        assert len(Follower(buffer._store).read(10)) == 5


def test_len_counts_settled_blocks_once_beside_a_transaction_of_another_database(url):
    with fill(url, N_ROWS) as buffer:
        assert len(buffer) == N_ROWS
        with Watch(buffer._store.engine) as watch:
            assert len(buffer) == N_ROWS
        assert watch.rows_scanned + watch.rows_fetched < N_ROWS / 2


def test_an_iteration_reads_one_page_first_beside_a_transaction_of_another_database(url):
    with fill(url, N_ROWS) as buffer, Watch(buffer._store.engine) as watch:
        next(iter(buffer))
        buffer._store.engine.dispose()
    assert watch.rows_scanned + watch.rows_fetched < 1_000


def test_draws_by_priority_add_blocks_up_beside_a_transaction_of_another_database(url):
    with fill(url, N_ROWS, priorities=True) as buffer:
        for _ in range(2):
            buffer.sample(16, sampler=PrioritizedSampler())
    n_whole = N_ROWS // scalar(url, "SELECT block_size FROM buffers") - 1
    assert scalar(url, "SELECT count(*) FROM priority_blocks") >= n_whole


def test_expire_raises_the_low_end_beside_a_transaction_of_another_database(url):
    with ReplayBuffer(url, max_staleness=1) as buffer:
        buffer.store_batch([rows.make_row(step=n, model_version=n // 50) for n in range(100)])
        buffer.set_clock(2)
        assert buffer.expire().expired == 50
    assert scalar(url, "SELECT low_seq FROM buffers") == 50


def test_rows_of_a_savepoint_that_was_released_or_rolled_back_are_settled_at_the_end(url):
    with ReplayBuffer(url) as buffer, connected(url) as late:
        follower, number = Follower(buffer._store), buffer_id(url)
        with late.begin_nested():
            insert(late, number, step=1)
        undone = late.begin_nested()
        insert(late, number, step=2)
        undone.rollback()
        buffer.store(make_row(3))
        assert follower.read(10) == []
        late.commit()
        assert [row[STEP] for row in follower.read(10)] == [1, 3]


def write_batches(url, name, batches):
    random.seed(name)
    with ReplayBuffer(url) as buffer:
        for batch in range(batches):
            n_rows = random.randint(1, 12)
            buffer.store_batch([make_row(n, task=f"{name}_{batch}") for n in range(n_rows)])


def write_plain_sql(url, name, transactions):
    """Draw numbers early and commit late, in savepoints, some of it in vain."""
    random.seed(name)
    number, engine = buffer_id(url), plain_engine(url)
    with engine.connect() as connection:
        for turn in range(transactions):
            with connection.begin() as transaction:
                for step in range(4):
                    savepoint = connection.begin_nested()
                    insert(connection, number, f"{name}_{turn}", step)
                    savepoint.rollback() if random.random() < 0.3 else savepoint.commit()
                if random.random() < 0.3:
                    transaction.rollback()


def follow(url, n_looks):
    """Return the numbers that a follower sees in that many looks."""
    seen = []
    with ReplayBuffer(url) as buffer:
        follower = Follower(buffer._store)
        for _ in range(n_looks):
            seen += [row[0] for row in follower.read(100)]
    return seen


@pytest.mark.slow
def test_followers_miss_no_row_and_see_none_twice_beside_a_transaction_of_another_database(url):
    with ReplayBuffer(url) as buffer:
        writers = [(write_batches, url, f"w{n}", 50) for n in range(3)]
        writers += [(write_plain_sql, url, f"sql{n}", 40) for n in range(2)]
        follower, seen = Follower(buffer._store), []
        with running([*writers, (follow, url, 200)]) as workers:
            while workers.running:
                seen += [row[0] for row in follower.read(50)]
            *_, seen_by_other = workers.results()
        during = len(seen)
        while found := follower.read(1_000):
            seen += [row[0] for row in found]
        stored = [seq for (seq,) in run(url, "SELECT seq FROM experiences ORDER BY seq")]
        assert seen == stored
        assert seen_by_other == stored[: len(seen_by_other)]
        assert during > len(stored) / 4
        assert len(stored) > 800
        assert len(buffer) == len(stored)
