"""More clients than PostgreSQL takes connections, through pgbouncer in transaction mode."""

import multiprocessing
import pickle
import time

import psycopg
import pytest

from sqlbuffer import LatestSampler, QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import UnsupportedDatabaseError
from sqlbuffer.storage.database.readonly import query
from tests.conftest import close_pool
from tests.storage.buffers.settled_rows import SettledRows
from tests.support.batches import counts, ids_of, make_batch
from tests.support.pgbouncer import pgbouncer, pgbouncer_program
from tests.support.processes import FRESH, TIMEOUT_S, run_at_once, running, wait_until
from tests.support.sql import scalar
from tests.support.stepped_rows import make_rows, seqs_of, steps_of

BATCHES, BATCH = 5, 16
PATIENCE_S = 120.0
# What pgbouncer itself sets, so that each client finds what it asked for.
KEPT_BY_PGBOUNCER = {
    "application_name",
    "client_encoding",
    "DateStyle",
    "standard_conforming_strings",
    "TimeZone",
}


@pytest.fixture
def url(make_database_url):
    """Return the URL of a database with the schema, past pgbouncer."""
    return make_database_url("postgresql", schema=True)


@pytest.fixture
def program():
    found = pgbouncer_program()
    if found is None:
        pytest.skip("allowed: pgbouncer is not installed")
    return found


@pytest.fixture
def pooled_url(program, url):
    with pgbouncer(program, url) as pooled:
        yield pooled
        close_pool(pooled)


@pytest.fixture
def narrow_url(program, url):
    """Return a URL behind which all clients take turns on one session of the server."""
    with pgbouncer(program, url, default_pool_size=1) as pooled:
        yield pooled
        close_pool(pooled)


def store_and_sample(url, name, all_ready):
    names = [f"{name}_{number}" for number in range(BATCHES)]
    with ReplayBuffer(url) as buffer:
        all_ready.wait(TIMEOUT_S)
        for batch in names:
            assert buffer.store_batch(make_batch(batch, BATCH)).inserted == BATCH
            assert len(buffer.sample(8)) == 8
        assert len(buffer) >= BATCHES * BATCH
    return names


def store_from_many(n_processes, url, observe):
    """Store from many processes that have the buffer open all at once, and check what is there."""
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(n_processes)
    ReplayBuffer(url).close()
    calls = [(store_and_sample, url, f"p{number}", ready) for number in range(n_processes)]
    with running(calls) as workers:
        while workers.running:
            observe()
            time.sleep(0.05)
        names = [name for batch in workers.results(PATIENCE_S) for name in batch]
    with ReplayBuffer(url) as buffer:
        assert sorted(row.id for row in buffer.get_all()) == sorted(ids_of(names, BATCH))
        assert counts(url, buffer) == {n_processes * BATCHES * BATCH}


def test_40_processes_connect_to_the_server_directly(url):
    store_from_many(40, url, observe=lambda: None)


@pytest.mark.slow
def test_100_processes_share_20_connections_through_pgbouncer(url, pooled_url):
    sessions = []
    statement = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'sqlbuffer%'"
    )
    store_from_many(100, pooled_url, observe=lambda: sessions.append(scalar(url, statement)))
    assert 1 <= max(sessions) <= 20


def test_what_a_buffer_does_works_through_one_session_shared_with_others(narrow_url):
    buffer = ReplayBuffer(narrow_url, max_capacity=500, evict_by="row")
    other = ReplayBuffer(narrow_url, name="tasks", max_capacity=100, evict_by="task")
    for number in range(4):
        rows = make_rows(range(100), task=f"t{number}", prefix=f"{number}_")
        assert buffer.store_batch(rows).inserted == 100
        assert other.store_batch(rows[:40]).inserted == 40
    assert buffer.store_batch(rows).duplicates == 100
    assert buffer.store_batch(make_rows([7, 8], task="elsewhere", prefix="0_")).conflicts == 2
    assert len(buffer) == buffer.size() == 400
    assert (len(other), other.size()) == (80, 80)
    assert {len(task) for task in other.sample_tasks(5)} == {40}
    assert steps_of(buffer.get_all()) == list(range(100)) * 4
    assert len(buffer.sample(32)) == 32
    assert seqs_of(buffer.sample(32, sampler=RandomSampler(seed=1))) == seqs_of(
        buffer.sample(32, sampler=RandomSampler(seed=1))
    )
    assert steps_of(buffer.sample(2, sampler=LatestSampler())) == [99, 98]
    assert len(buffer.get_by_task_id("t2")) == 100
    assert steps_of(buffer.get_paginated(2, 30)) == list(range(30, 60))
    of_one_task = QueryBuilder().eq("exp_meta.task_id", "t0").build()
    assert buffer.size(of_one_task) == 100
    assert "experiences" in buffer.explain(of_one_task)
    assert buffer.delete(of_one_task) == 100
    buffer.resize(200)
    assert (len(buffer), buffer.max_capacity) == (200, 200)
    assert len(pickle.loads(pickle.dumps(buffer))) == 200
    assert run_at_once([(len, buffer)], FRESH) == [200]
    assert ReplayBuffer.list(narrow_url) == ["default", "tasks"]
    ReplayBuffer.drop(narrow_url, "tasks")
    assert buffer.clear() == 200
    assert len(buffer) == 0
    buffer.close()


def test_every_row_of_8_writers_is_settled_once_through_pgbouncer(pooled_url):
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(8)
    with ReplayBuffer(pooled_url) as buffer:
        settled, seen = SettledRows(buffer._store), []
        calls = [(store_and_sample, pooled_url, f"w{number}", ready) for number in range(8)]
        with running(calls) as workers:
            while workers.running:
                seen += [seq for seq, *_ in settled.read(1_000)]
            n_rows = BATCH * sum(map(len, workers.results()))

        def has_seen_all():
            seen.extend(seq for seq, *_ in settled.read(1_000))
            return len(seen) >= n_rows

        wait_until(has_seen_all, "the rest of the rows")
        assert seen == seqs_of(buffer.get_all())
        assert settled.read(10) == []


def test_the_schema_can_be_made_through_pgbouncer(program, postgres_url):
    with pgbouncer(program, postgres_url) as pooled:
        with ReplayBuffer(pooled, create=True) as buffer:
            assert buffer.store_batch(make_rows(range(5))).inserted == 5
        assert query(pooled, "SELECT rows FROM v_buffers").rows == [(5,)]
        close_pool(pooled)


def test_a_client_after_the_library_finds_no_settings_of_it(narrow_url):
    """What a session is told outlives the transaction, and the next client gets the session."""
    before = settings_of_the_session(narrow_url)
    with ReplayBuffer(narrow_url, max_capacity=100) as buffer:
        buffer.store_batch(make_rows(range(150)))
        assert len(buffer) == len(list(buffer.get_all())) == len(buffer.sample(100)) == 100
        assert query(narrow_url, "SELECT count(*) FROM v_experiences").rows == [(100,)]
        buffer.resize(50)
        buffer.clear()
    after = settings_of_the_session(narrow_url)
    assert {name: after[name] for name in before} == before


def settings_of_the_session(url):
    """Return {setting: value} of all but pgbouncer's own, and how much else is left."""
    with psycopg.connect(url) as connection:
        settings = dict(connection.execute("SELECT name, setting FROM pg_settings").fetchall())
        (prepared,) = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        (locks,) = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchone()
    kept = {name: value for name, value in settings.items() if name not in KEPT_BY_PGBOUNCER}
    return {**kept, "prepared statements": prepared, "advisory locks": locks}


def test_a_pooler_in_statement_mode_is_refused_at_opening(program, url):
    with pgbouncer(program, url, pool_mode="statement") as pooled:
        with pytest.raises(UnsupportedDatabaseError, match="transactions of several statements"):
            ReplayBuffer(pooled)
        close_pool(pooled)
