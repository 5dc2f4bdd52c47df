"""The watermark of a buffer: up to that number no row can appear any more. Only the buffer's own
writers hold it back.
"""

import random

import pytest
from sqlalchemy import NullPool, create_engine, make_url

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from sqlbuffer.storage.buffers.window import BLOCK
from sqlbuffer.storage.rows.layouts import STEP
from tests.storage.buffers.settled_rows import SettledRows
from tests.support import rows
from tests.support.processes import running
from tests.support.sql import buffer_id, connected, fill, is_sqlite, plain_engine, run, scalar
from tests.support.stepped_rows import make_row, make_rows
from tests.support.watch import Watch

N_ROWS = 3 * BLOCK


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        yield buffer


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


def test_a_transaction_of_another_database_does_not_hold_the_watermark_back(url):
    with ReplayBuffer(url) as buffer:
        buffer.store_batch(make_rows(range(5)))
        assert [row[STEP] for row in SettledRows(buffer._store).read(10)] == [0, 1, 2, 3, 4]


def test_a_writer_of_another_buffer_does_not_hold_the_watermark_back(url):
    with ReplayBuffer(url) as buffer, ReplayBuffer(url, name="other"), connected(url) as late:
        insert(late, buffer_id(url, "other"))
        buffer.store_batch(make_rows(range(5)))
        assert len(SettledRows(buffer._store).read(10)) == 5


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
        settled, number = SettledRows(buffer._store), buffer_id(url)
        with late.begin_nested():
            insert(late, number, step=1)
        undone = late.begin_nested()
        insert(late, number, step=2)
        undone.rollback()
        buffer.store(make_row(3))
        assert settled.read(10) == []
        late.commit()
        assert [row[STEP] for row in settled.read(10)] == [1, 3]


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


def read_along(url, n_looks):
    """Return the numbers that are settled in that many looks."""
    seen = []
    with ReplayBuffer(url) as buffer:
        settled = SettledRows(buffer._store)
        for _ in range(n_looks):
            seen += [row[0] for row in settled.read(100)]
    return seen


@pytest.mark.thorough
@pytest.mark.slow
def test_readers_miss_no_row_and_see_none_twice_beside_a_transaction_of_another_database(url):
    with ReplayBuffer(url) as buffer:
        writers = [(write_batches, url, f"w{n}", 50) for n in range(3)]
        writers += [(write_plain_sql, url, f"sql{n}", 40) for n in range(2)]
        settled, seen = SettledRows(buffer._store), []
        with running([*writers, (read_along, url, 200)]) as workers:
            while workers.running:
                seen += [row[0] for row in settled.read(50)]
            *_, seen_by_other = workers.results()
        during = len(seen)
        while found := settled.read(1_000):
            seen += [row[0] for row in found]
        stored = [seq for (seq,) in run(url, "SELECT seq FROM experiences ORDER BY seq")]
        assert seen == stored
        assert seen_by_other == stored[: len(seen_by_other)]
        assert during > len(stored) / 4
        assert len(stored) > 800
        assert len(buffer) == len(stored)


def test_an_empty_buffer_has_nothing_to_see_and_its_first_row_is_not_missed(buffer):
    settled = SettledRows(buffer._store)
    assert settled.read_all() == []
    assert settled.seen == 0
    buffer.store(make_row(7))
    assert [row[STEP] for row in settled.read_all()] == [7]
    assert settled.read_all() == []


def test_rows_that_were_evicted_are_not_read(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=5)
    settled = SettledRows(buffer._store)
    buffer.store_batch(make_rows(range(12)))
    assert [row[STEP] for row in settled.read_all()] == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("others", [True, False])
def test_a_row_that_is_committed_late_is_not_missed(make_database_url, others):
    """Its number is below those of rows that are there before it, or nothing is written after it:
    then the xmax of a snapshot is below its transaction.
    """
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url)
    settled = SettledRows(buffer._store)
    number = scalar(url, "SELECT id FROM buffers")
    with connected(url) as late:
        late.exec_driver_sql(
            f"INSERT INTO experiences (buffer_id, task_id, agent_id, step) "
            f"VALUES ({number}, 'late', 'a', 1)"
        )
        if others:
            buffer.store_batch(make_rows(range(2, 5)))
        assert settled.read_all() == []
    assert [row[STEP] for row in settled.read_all()] == ([1, 2, 3, 4] if others else [1])


def write_rows(url, name, batches):
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


@pytest.mark.thorough
@pytest.mark.slow
def test_each_row_of_8_writers_is_settled_once(buffer_url, buffer):
    writers = [(write_rows, buffer_url, f"w{n}", 60) for n in range(6)]
    writers += [(write_slowly, buffer_url, f"slow{n}", 25) for n in range(2)]
    settled = SettledRows(buffer._store)
    seen = []
    with running(writers) as workers:
        while workers.running:
            seen += [row[0] for row in settled.read(200)]
        workers.results()
    during = len(seen)
    seen += [row[0] for row in settled.read_all()]
    stored = [seq for (seq,) in run(buffer_url, "SELECT seq FROM experiences ORDER BY seq")]
    assert seen == stored
    assert len(stored) > 1_500
    assert during > len(stored) / 4


def test_the_watermark_rises_behind_busy_writers_over_connections_that_are_not_kept(
    make_database_url,
):
    """Each look opens a connection: what was learnt before must not be forgotten with it."""
    url = make_database_url("postgresql", schema=True)
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    buffer = ReplayBuffer(engine)
    settled = SettledRows(buffer._store)
    number = scalar(url, "SELECT id FROM buffers")
    insert = (
        "INSERT INTO experiences (buffer_id, task_id, agent_id, step) "
        f"VALUES ({number}, 't', 'a', 1)"
    )
    with connected(url) as first:
        first.exec_driver_sql(insert)
        assert settled.read(10) == []
        with connected(url) as second:
            second.exec_driver_sql(insert)
            first.commit()
            assert len(settled.read(10)) == 1
    assert len(settled.read_all()) == 1
    engine.dispose()
