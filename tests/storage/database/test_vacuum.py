"""What eviction leaves behind on PostgreSQL is cleaned up by those who write."""

import logging
import random
import threading
from contextlib import ExitStack

import numpy as np
import pytest
from sqlalchemy import create_engine, make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database import vacuum
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.schema.metadata import roles_script
from tests.support.processes import run_at_once, running, wait_until
from tests.support.proxy import assert_one_line_each, proxied
from tests.support.sql import (
    connected,
    fill,
    run,
    run_outside_transaction,
    scalar,
    stored_rows,
)
from tests.support.stepped_rows import make_rows, steps_of

CAPACITY = 2_000
# Alone it is 1.2 at most. On a busy machine the server counts dead rows late: some cleanings are
# missed.
MAX_GROWTH = 2.5


@pytest.fixture
def url(make_database_url, monkeypatch):
    """Return a database whose server does not clean by itself and whose writers look often."""
    url = make_database_url("postgresql", schema=True)
    run(url, "ALTER TABLE experiences SET (autovacuum_enabled = off)")
    monkeypatch.setattr(vacuum, "MIN_DEAD_ROWS", 500)
    monkeypatch.setattr(vacuum, "ROWS_BETWEEN_LOOKS", 500)
    return url


@pytest.fixture
def buffer(url):
    with ReplayBuffer(url, max_capacity=CAPACITY) as buffer:
        yield buffer


def cleaner_of(buffer):
    return vacuum.cleaner_for(buffer._store.engine)


def wait_for_cleaner(buffer):
    thread = cleaner_of(buffer).thread
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def vacuums(url, table="experiences"):
    query = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = :table"
    return scalar(url, query, table=table)


def analyses(url, table="experiences"):
    query = "SELECT analyze_count FROM pg_stat_user_tables WHERE relname = :table"
    return scalar(url, query, table=table)


def turn_over(buffer, times, start=0):
    for first in range(start, start + times * CAPACITY, 500):
        buffer.store_batch(make_rows(range(first, first + 500)))
        report_statistics(buffer)
        wait_for_cleaner(buffer)


def report_statistics(buffer):
    """Have the server count what idle connections just did; it would in a second."""
    engine = buffer._store.engine
    with ExitStack() as stack:
        for _ in range(max(1, engine.pool.checkedin())):
            connection = stack.enter_context(engine.connect())
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
            connection.rollback()  # an open transaction would hold dead rows


def size_of(url):
    return scalar(url, "SELECT pg_total_relation_size('experiences')")


@pytest.mark.thorough
@pytest.mark.slow
def test_the_table_does_not_grow_while_the_capacity_is_turned_over(url, buffer, monkeypatch):
    # The server's own analysis of another table takes a snapshot. The pause after it is scaled like
    # the other limits: this writer turns the table over several times a second.
    monkeypatch.setattr(vacuum, "FIRST_PAUSE_S", 0.0)
    turn_over(buffer, 2)
    early = size_of(url)
    turn_over(buffer, 20, start=2 * CAPACITY)
    assert vacuums(url) >= 5
    assert size_of(url) < MAX_GROWTH * early
    assert len(buffer) == buffer.size() == CAPACITY


@pytest.mark.thorough
@pytest.mark.slow
def test_without_cleaning_it_would_grow(url, buffer, monkeypatch):
    turn_over(buffer, 2)
    early = size_of(url)
    monkeypatch.setattr(vacuum, "MIN_DEAD_ROWS", 10**9)
    turn_over(buffer, 20, start=2 * CAPACITY)
    assert size_of(url) > 3 * early


@pytest.mark.thorough
def test_nothing_is_cleaned_where_nothing_is_evicted(url):
    with ReplayBuffer(url) as buffer:
        turn_over(buffer, 3)
    assert vacuums(url) == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_a_buffer_that_the_statistics_do_not_know_is_analyzed(url):
    fill(url, CAPACITY, name="known")
    run_outside_transaction(url, "ANALYZE experiences")
    with ReplayBuffer(url, name="new", max_capacity=CAPACITY) as buffer:
        turn_over(buffer, 1)
        assert analyses(url) > 1
        turn_over(buffer, 1, start=CAPACITY)
        n_analyses = analyses(url)
        turn_over(buffer, 4, start=2 * CAPACITY)
        # Of 16 looks. On a busy machine some cleanings are missed, and the table grows.
        assert analyses(url) <= n_analyses + 8, "a full buffer hardly grows"


def test_a_few_hundred_chunks_are_analyzed(url):
    """A buffer of 100,000 steps may have no more of them."""
    run(url, "ALTER TABLE chunks SET (autovacuum_enabled = off)")
    with ReplayBuffer(url, fields={"obs": "float32"}) as buffer:
        columns = {
            "obs": np.zeros(2_000, np.float32),
            "task_id": [f"t{i % 99}" for i in range(2_000)],
        }
        for _ in range(5):
            buffer.extend(columns)
            wait_for_cleaner(buffer)
    assert analyses(url, "chunks") > 0


@pytest.mark.parametrize("table", ["priorities", "uses"])
def test_learners_clean_behind_what_they_update_and_claim(url, table):
    options = {"priorities": True} if table == "priorities" else {"max_use": 10**6}
    with ReplayBuffer(url, **options) as buffer:
        buffer.store_batch(make_rows(range(600)))
        wait_for_cleaner(buffer)
        run(url, f"ALTER TABLE {table} SET (autovacuum_enabled = off)")

        def is_clean():
            if table == "priorities":
                buffer.update_priorities(range(1, 601), 1.0)
            else:
                assert len(buffer.sample(600)) == 600
            report_statistics(buffer)
            wait_for_cleaner(buffer)
            run(url, "UPDATE maintenance SET leased_until = NULL")
            return vacuums(url, table)

        wait_until(is_clean, "a vacuum of the table")


def test_one_process_at_a_time_cleans(buffer):
    with buffer._store.engine.connect() as connection, connection.begin():
        assert vacuum._lease(connection, 60.0)
    ((leased),) = run_at_once([(lease, buffer)])
    assert leased is False
    with buffer._store.engine.connect() as connection, connection.begin():
        assert not vacuum._lease(connection, 60.0)
        assert vacuum._lease(connection, 0.0, renew=True)
    ((leased),) = run_at_once([(lease, buffer)])
    assert leased is True


def lease(buffer):
    with buffer._store.engine.connect() as connection, connection.begin():
        return vacuum._lease(connection, 60.0)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_lease_of_another_process_is_respected(url, buffer):
    run(url, "UPDATE maintenance SET holder = 'x 1', leased_until = now() + interval '1 hour'")
    turn_over(buffer, 4)
    assert vacuums(url) == 0
    run(url, "UPDATE maintenance SET leased_until = now() - interval '1 second'")
    turn_over(buffer, 1, start=4 * CAPACITY)
    assert vacuums(url) >= 1


@pytest.mark.thorough
@pytest.mark.slow
def test_while_a_snapshot_holds_dead_rows_cleaning_pauses_for_longer_and_longer(
    url, buffer, monkeypatch
):
    monkeypatch.setattr(vacuum, "FIRST_PAUSE_S", 300.0)  # longer than the test takes
    turn_over(buffer, 1)
    with connected(url) as analyst:
        analyst.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert analyst.exec_driver_sql("SELECT count(*) FROM experiences").scalar_one() == CAPACITY
        turn_over(buffer, 3, start=CAPACITY)
        assert vacuums(url) == 1
        pause = (
            "SELECT extract(epoch FROM leased_until - now()) FROM maintenance WHERE task = 'vacuum'"
        )
        assert 0 < scalar(url, pause) <= vacuum.FIRST_PAUSE_S
        run(url, "UPDATE maintenance SET leased_until = NULL")
        turn_over(buffer, 1, start=4 * CAPACITY)
        assert vacuums(url) == 2
        assert vacuum.FIRST_PAUSE_S < scalar(url, pause) <= 2 * vacuum.FIRST_PAUSE_S
    run(url, "UPDATE maintenance SET leased_until = NULL")
    turn_over(buffer, 1, start=5 * CAPACITY)
    assert vacuums(url) > 2
    assert cleaner_of(buffer)._pause_s == vacuum.FIRST_PAUSE_S


@pytest.mark.thorough
@pytest.mark.slow
def test_a_snapshot_of_a_moment_does_not_let_the_table_grow(url, buffer, monkeypatch):
    monkeypatch.setattr(vacuum, "FIRST_PAUSE_S", 0.0)
    turn_over(buffer, 2)
    early = size_of(url)
    for start in range(2 * CAPACITY, 12 * CAPACITY, 2 * CAPACITY):
        cleaned = vacuums(url)
        with connected(url) as analyst:
            analyst.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert analyst.exec_driver_sql("SELECT 1 FROM experiences LIMIT 1").scalar_one()
            buffer.store_batch(make_rows(range(start, start + 1_000)))
            report_statistics(buffer)
            wait_for_cleaner(buffer)
        assert vacuums(url) == cleaned + 1
        turn_over(buffer, 1, start=start + 1_000)
    assert size_of(url) < MAX_GROWTH * early


@pytest.mark.thorough
@pytest.mark.slow
def test_behind_an_engine_of_the_user_it_is_cleaned_as_well(url):
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with ReplayBuffer(engine, max_capacity=CAPACITY) as buffer:
        turn_over(buffer, 4)
        other = ReplayBuffer(engine, name="other")
        assert other._store.engine is buffer._store.engine
    assert vacuums(url) >= 1
    with engine.connect() as connection:
        assert connection.connection.driver_connection.autocommit is False
    engine.dispose()


@pytest.fixture
def writer_url(url, postgres_groups):
    with connected(url) as connection:
        script = roles_script().replace("BEGIN;\n", "", 1)
        connection.exec_driver_sql(script.replace("COMMIT;", "").replace("%", "%%"))
        name = make_url(url).database
        connection.exec_driver_sql(f'CREATE ROLE "{name}_w" LOGIN IN ROLE sqlbuffer_writer')
    yield make_url(url).set(username=f"{name}_w").render_as_string(hide_password=False)
    engine_for(resolve_url(url)).dispose()


def test_a_writer_that_was_granted_it_may_clean(url, writer_url):
    version = scalar(url, "SELECT current_setting('server_version_num')::integer")
    if version < 170_000:
        pytest.skip("allowed: before PostgreSQL 17 only the owner of a table may clean it")
    with ReplayBuffer(writer_url, max_capacity=CAPACITY) as buffer:
        turn_over(buffer, 4)
    assert vacuums(url) >= 1
    assert analyses(url) >= 1


def test_a_writer_that_may_not_clean_says_so_once_and_goes_on(url, writer_url, caplog):
    run(url, "DO $$ BEGIN IF current_setting('server_version_num')::integer >= 170000 THEN "
        "REVOKE MAINTAIN ON experiences FROM sqlbuffer_writer; END IF; END $$")  # fmt: skip
    with (
        caplog.at_level(logging.WARNING, "sqlbuffer"),
        ReplayBuffer(writer_url, max_capacity=CAPACITY) as buffer,
    ):
        turn_over(buffer, 4)
        assert len(buffer) == CAPACITY
    said = [record for record in caplog.records if "may not VACUUM experiences" in record.message]
    assert len(said) == 1
    assert vacuums(url) == analyses(url) == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_far_below_the_window_are_swept_after_a_vacuum(url, buffer):
    buffer.store_batch(make_rows(range(100)))
    number = scalar(url, "SELECT id FROM buffers")
    # As a writer would leave them that drew its numbers long before it committed.
    run(url, f"SELECT setval('sqlbuffer_seq_{number}', 100000)")
    buffer.store_batch(make_rows(range(1_000, 1_000 + CAPACITY)))
    wait_for_cleaner(buffer)
    assert len(buffer) == CAPACITY
    assert stored_rows(url) == CAPACITY + 100
    turn_over(buffer, 3, start=10_000)
    assert vacuums(url) >= 1
    assert stored_rows(url) == len(buffer) == CAPACITY
    assert min(steps_of(buffer)) >= 10_000


@pytest.mark.thorough
@pytest.mark.slow
def test_a_child_cleans_for_itself(url, buffer):
    turn_over(buffer, 1)
    before = vacuums(url)
    ((cleaned),) = run_at_once([(turn_over_in_child, buffer)])
    assert cleaned
    wait_until(lambda: vacuums(url) > before, "a vacuum by the child")


def turn_over_in_child(buffer):
    turn_over(buffer, 4, start=CAPACITY)
    return True


def open_store_and_close(url, start):
    with ReplayBuffer(url, max_capacity=100) as buffer:
        buffer.store_batch(make_rows(range(start, start + 250)))


@pytest.mark.thorough
@pytest.mark.slow
def test_writers_that_each_live_for_a_moment_clean_together(url, monkeypatch):
    """None of them writes as many rows as a look is made for."""
    monkeypatch.setattr(vacuum, "chance", random.Random(1).random)
    for start in range(0, 40 * 250, 250):
        open_store_and_close(url, start)
    for thread in threading.enumerate():
        if thread.name == "sqlbuffer-vacuum":
            thread.join(30)
    assert vacuums(url) >= 1


def store_and_end(url):
    with ReplayBuffer(url, max_capacity=100) as buffer:
        buffer.store_batch(make_rows(range(1_500)))


def test_a_process_that_ends_while_it_cleans_finishes_that(url):
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with connected(url) as other:
        other.exec_driver_sql("SELECT 1 FROM maintenance FOR UPDATE")
        with running([(store_and_end, url)]) as workers:
            wait_until(lambda: scalar(url, waiting), "a process that cleans", timeout_s=15)
            other.commit()
            workers.results()
    assert vacuums(url) >= 1
    assert scalar(
        url, "SELECT leased_until <= clock_timestamp() FROM maintenance WHERE task = 'vacuum'"
    )


def test_ids_of_writes_are_forgotten_when_no_call_asks_for_them_any_more(url, buffer):
    turn_over(buffer, 1)
    old = scalar(url, "SELECT count(*) FROM applied_writes")
    run(url, "UPDATE applied_writes SET kept_until = clock_timestamp() - interval '1 second'")
    turn_over(buffer, 1, start=CAPACITY)
    run(url, "UPDATE maintenance SET leased_until = NULL")
    turn_over(buffer, 1, start=2 * CAPACITY)
    is_past = "SELECT count(*) FROM applied_writes WHERE kept_until < clock_timestamp()"
    wait_until(lambda: not scalar(url, is_past), "old ids to be deleted")
    assert scalar(url, "SELECT count(*) FROM applied_writes") >= old


@pytest.mark.thorough
def test_a_cleaner_that_loses_its_connection_leaves_the_writers_alone(url, buffer):
    turn_over(buffer, 2)
    run(url, "ALTER FUNCTION sqlbuffer_sweep_v1 RENAME TO sqlbuffer_sweep_gone")
    turn_over(buffer, 2, start=2 * CAPACITY)
    assert len(buffer) == CAPACITY


def test_a_cleaning_that_loses_its_connection_says_so_once_in_one_line(url, caplog):
    with proxied(url) as proxy, ReplayBuffer(proxy.url) as buffer:
        proxy.closed = True
        for _ in range(2):
            proxy.cut_all()
            cleaner_of(buffer).wrote(buffer._store.engine, vacuum.ROWS_BETWEEN_LOOKS)
            wait_for_cleaner(buffer)
        proxy.closed = False
    (said,) = caplog.records
    assert said.message.startswith("could not clean up after evicted rows: cannot reach postgresql")
    assert_one_line_each([said])
