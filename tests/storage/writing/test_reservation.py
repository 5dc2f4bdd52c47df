"""Numbers are reserved in consecutive runs, also next to other writers and plain SQL."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psycopg
import pytest
from sqlalchemy import make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import BufferNotFoundError, StorageError
from sqlbuffer.storage.buffers.window import settled_seq
from sqlbuffer.storage.writing.chunks import reserve_steps
from tests.support.processes import run_at_once, wait_until
from tests.support.sql import buffer_id, connected, is_sqlite, run, scalar
from tests.support.stepped_rows import make_row, make_rows

SIZES = (1, 2, 7, 64, 300)
TURNS = 30


def reserve(url, n):
    """Reserve numbers in a transaction of their own; return the first."""
    with ReplayBuffer(url) as buffer:
        return buffer._store.write(
            lambda connection: reserve_steps(connection, buffer_id(url), n)[0]
        )


def reserve_runs(url, start):
    """Return the (first, last) of many reservations, each committed."""
    runs = []
    with ReplayBuffer(url) as buffer:
        number, store = buffer._store.info.id, buffer._store
        for turn in range(TURNS):
            n = SIZES[(start + turn) % len(SIZES)]
            first = store.write(lambda connection, n=n: reserve_steps(connection, number, n)[0])
            runs.append((first, first + n - 1))
    return runs


def store_batches(url, name):
    """Return the (first, last) of batches whose numbers are consecutive."""
    runs = []
    with ReplayBuffer(url) as buffer:
        for turn in range(TURNS):
            rows = make_rows(range(20), task=f"{name}_{turn}")
            seqs = buffer.store_batch(rows).seqs.tolist()
            assert seqs == list(range(seqs[0], seqs[0] + len(rows)))
            runs.append((seqs[0], seqs[-1]))
    return runs


def insert_plain_sql(url):
    """Return the (first, last) of rows, each with its own number."""
    number = buffer_id(url)
    table, numbers = (
        ("new_experiences", "(SELECT value AS g FROM json_each('[1,2,3,4,5]'))")
        if is_sqlite(url)
        else ("experiences", "generate_series(1, 5) AS s(g)")
    )
    for turn in range(TURNS):
        run(
            url,
            f"INSERT INTO {table} (buffer_id, task_id, agent_id, step) "
            f"SELECT {number}, 'sql_{turn}', 'a', g FROM {numbers}",
        )
    found = run(url, "SELECT seq FROM experiences WHERE task_id LIKE 'sql%'")
    return [(seq, seq) for (seq,) in found]


@pytest.mark.thorough
@pytest.mark.slow
def test_8_writers_reserve_runs_that_do_not_overlap(buffer_url):
    ReplayBuffer(buffer_url).close()
    calls = [(reserve_runs, buffer_url, start) for start in range(4)]
    calls += [(store_batches, buffer_url, f"w{n}") for n in range(3)]
    found = run_at_once([*calls, (insert_plain_sql, buffer_url)])
    runs = sorted(one for of_writer in found for one in of_writer)
    assert len(runs) == 7 * TURNS + 5 * TURNS
    assert all(last < first for (_, last), (first, _) in pairwise(runs))
    assert reserve(buffer_url, 1) > runs[-1][1]


def test_numbers_follow_those_of_rows_and_none_is_given_twice(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(make_rows(range(3)))
        assert reserve(buffer_url, 5) == 4
        assert buffer.store(make_row(9)).seqs.tolist() == [9]
        assert reserve(buffer_url, 1) == 10


def test_numbers_that_a_rollback_burnt_count_as_given_on_postgresql_alone(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:

        def fail(connection):
            reserve_steps(connection, buffer._store.info.id, 4)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            buffer._store.write(fail)
    assert reserve(buffer_url, 1) == (1 if is_sqlite(buffer_url) else 5)


def test_a_dropped_buffer_gives_no_numbers(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        number = buffer._store.info.id
        ReplayBuffer.drop(buffer_url, "default")
        with pytest.raises(BufferNotFoundError):
            buffer._store.write(lambda connection: reserve_steps(connection, number, 2))


def test_sqlite_gives_no_number_that_its_key_has_no_room_for(sqlite_url):
    with ReplayBuffer(sqlite_url, create=True):
        run(sqlite_url, f"UPDATE buffers SET next_seq = {2**40 - 3}")
        with pytest.raises(StorageError, match="used all its"):
            reserve(sqlite_url, 4)
        assert reserve(sqlite_url, 3) == 2**40 - 3


@pytest.fixture
def url(make_database_url):
    return make_database_url("postgresql", schema=True)


def driver_connection(url, **settings):
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, **settings)


def held_locks(connection):
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    return connection.execute(query).fetchone()[0]


def n_waiting(url):
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
    return scalar(url, f"{query} current_database()")


BLOCKERS = {
    "before the number": "SELECT pg_advisory_xact_lock(1397836867, 1)",
    "with the lock": "ALTER SEQUENCE sqlbuffer_seq_1 CACHE 1",
}


@pytest.mark.parametrize("statement", ["SELECT sqlbuffer_reserve_v1(1, 9)", "row"])
@pytest.mark.parametrize("blocker", BLOCKERS.values(), ids=BLOCKERS)
def test_a_cancelled_statement_leaves_no_lock_behind(url, blocker, statement):
    with ReplayBuffer(url) as buffer:
        if statement == "row":
            statement = (
                "INSERT INTO experiences (buffer_id, task_id, agent_id, step) "
                "VALUES (1, 't', 'a', 1)"
            )
        with driver_connection(url) as late, driver_connection(url, autocommit=True) as writer:
            late.execute(blocker)
            writer.execute("SET statement_timeout = '100ms'")
            with pytest.raises(psycopg.errors.QueryCanceled):
                writer.execute(statement)
            assert held_locks(writer) == 0
            late.rollback()
            # The session lives on, and holds nobody up.
            assert buffer.store(make_row(1)).inserted == 1


def test_a_savepoint_that_is_undone_ends_a_cancelled_reservation(url):
    with (
        ReplayBuffer(url) as buffer,
        driver_connection(url) as late,
        driver_connection(url) as writer,
    ):
        late.execute(BLOCKERS["with the lock"])
        writer.execute("SET LOCAL statement_timeout = '100ms'")
        with pytest.raises(psycopg.errors.QueryCanceled), writer.transaction():
            writer.execute("SELECT sqlbuffer_reserve_v1(1, 9)")
        assert held_locks(writer) == 0
        late.rollback()
        assert buffer.store(make_row(1)).inserted == 1
        assert writer.execute("SELECT sqlbuffer_reserve_v1(1, 9)").fetchone() == (2,)


def test_a_transaction_holds_its_numbers_as_a_writer_and_keeps_none_waiting(url):
    """The watermark stays below its numbers; others reserve at the same time."""
    with ReplayBuffer(url) as buffer, connected(url) as late:
        store = buffer._store
        assert reserve_steps(late, 1, 10) == (1, None)
        assert buffer.store(make_row(1)).seqs.tolist() == [11]
        assert settled_seq(store.engine, store.watermark) == 0
        late.commit()
        assert settled_seq(store.engine, store.watermark) == 11


def test_a_reservation_that_waits_for_its_turn_is_a_writer_already(url):
    """So it is found by a reader that looks at the sequence once it has numbers."""
    with (
        ReplayBuffer(url) as buffer,
        driver_connection(url) as other,
        driver_connection(url, autocommit=True) as reader,
        ThreadPoolExecutor() as threads,
    ):
        is_free = "SELECT pg_try_advisory_xact_lock(1397836866, 1)"
        other.execute(BLOCKERS["before the number"])
        # The lock of a reservation is not the one that a reader tries.
        assert reader.execute(is_free).fetchone() == (True,)
        waiting = threads.submit(reserve, url, 3)
        wait_until(lambda: n_waiting(url), "a reservation waits for its turn")
        assert reader.execute(is_free).fetchone() == (False,)
        other.rollback()
        assert waiting.result() == 1
        store = buffer._store
        assert settled_seq(store.engine, store.watermark) == 3
