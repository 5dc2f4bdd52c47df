"""Reads and draws from a standby, in a process that writes to its primary."""

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest

from sqlbuffer import PrioritizedSampler, QueryBuilder, RateLimiter, ReplayBuffer
from sqlbuffer.errors import BufferConfigError, StorageBusyError, StorageUnreachableError
from sqlbuffer.interchange import BufferStream, export_parquet
from tests.conftest import close_pool
from tests.support.processes import run_at_once, wait_until
from tests.support.rows import make_row
from tests.support.servers import (
    own_server,
    primary_and_standby,
    server_programs,
    wait_for_replay,
)
from tests.support.sql import scalar
from tests.support.watch import watched

FIELDS = {"fields": {"x": "int64"}}


@pytest.fixture(scope="module")
def programs():
    found = server_programs()
    if found is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    return found


@pytest.fixture(scope="module")
def servers(programs):
    with primary_and_standby(programs) as (primary, standby):
        yield primary, standby
        close_pool(primary.url)
        close_pool(standby.url)


@pytest.fixture
def opened(servers, request):
    primary, standby = servers

    def open_buffer(**settings):
        name = request.node.name
        return ReplayBuffer(primary.url, name, create=True, read_url=standby.url, **settings)

    return open_buffer


def paused(standby, pause):
    """Let a standby stop to replay, or go on."""
    call = "pg_wal_replay_pause()" if pause else "pg_wal_replay_resume()"
    with psycopg.connect(standby.url, autocommit=True) as connection:
        connection.execute(f"SELECT {call}")


def every(loader):
    return sorted(x for batch in loader for x in batch.x.tolist())


def test_reads_show_what_was_written_and_the_primary_reads_nothing(opened, servers):
    primary, _ = servers
    with opened(**FIELDS) as buffer:
        for n in range(1, 6):
            buffer.extend({"x": range((n - 1) * 100, n * 100)})
            assert len(buffer) == n * 100
        buffer.add(x=500)
        with watched(primary.url) as watch:
            assert [row.fields["x"] for row in buffer] == list(range(501))
            assert buffer.sample_arrays(32).n_rows == 32
            newest = QueryBuilder().gt("seq", 400).build()
            assert len(list(buffer.get_all(newest))) == 101
            assert every(buffer.loader("step", 64, epochs=1)) == list(range(501))
            assert next(iter(buffer.loader("step", 64))).n_rows == 64
            # Looking the numbers of its own commits up, and storing the waiting step.
            assert watch.rows_fetched + watch.rows_scanned < 200
        assert buffer.stats().rows == 501


def test_rows_of_json_tasks_and_deletions_are_read(opened):
    with opened() as buffer:
        buffer.store_batch([make_row(step=step) for step in range(20)])
        assert len(buffer.sample(8)) == 8
        assert [row.exp_meta.step for row in buffer.get_all()] == list(range(20))
        assert sum(len(rows) for rows in buffer.sample_tasks(1)) == 20
        assert buffer.delete(QueryBuilder().lt("step", 5).build()) == 5
        assert len(buffer) == 15
        buffer.clear()
        assert len(buffer) == 0


def test_a_transaction_reads_what_it_has_written(opened):
    with opened() as buffer:
        buffer.extend({"state": [0]}, task_id="t")

        def work(tx):
            tx.extend({"state": [1, 2]}, task_id="t")
            tx.documents.put("n", 3)
            pages = tx.get_paginated(1, 9), tx.get_by_task_id("t")
            return [tx.size(), *map(len, pages), tx.documents.get("n").value]

        assert buffer.transaction(work) == [3, 3, 3, 3]
        assert [len(buffer), len(buffer.get_by_task_id("t"))] == [3, 3]


@pytest.mark.parametrize(
    "settings", [{"max_use": 3}, {"track_samples": True}, {"rate_limiter": RateLimiter(8, 10)}]
)
def test_draws_that_are_counted_use_the_primary(opened, settings):
    with opened(**FIELDS, **settings) as buffer:
        buffer.extend({"x": range(40)})
        assert buffer.sample_arrays(8).n_rows == 8
        assert next(iter(buffer.loader("step", 8))).n_rows == 8
        assert buffer.stats().sampled == 16
        assert len(buffer) == 40


def test_priorities_are_set_on_the_primary_and_read_on_the_standby(opened):
    with opened(**FIELDS, priorities=True) as buffer:
        buffer.extend({"x": range(100)})
        (batch,) = buffer.loader("step", 100, epochs=1)
        buffer.update_priorities(batch.info["seq"], np.where(batch.x == 7, 1e9, 0.0))
        drawn = buffer.sample_arrays(8, sampler=PrioritizedSampler())
        assert drawn.x.tolist() == [7] * 8
        with buffer.mirror(refresh_s=0.05) as mirror:
            assert mirror.sample_arrays(8, sampler=PrioritizedSampler()).x.tolist() == [7] * 8
            mirror.update_priorities(batch.info["seq"], np.where(batch.x == 9, 1e9, 0.0))
            assert mirror.sample_arrays(8, sampler=PrioritizedSampler()).x.tolist() == [9] * 8
            mirror.refresh()
        drawn = buffer.sample_arrays(8, sampler=PrioritizedSampler())
        assert drawn.x.tolist() == [9] * 8


def prefer(url, name, x):
    """Give one value all the priority, in another process than that of the mirror."""
    with ReplayBuffer(url, name) as buffer:
        (batch,) = buffer.loader("step", 100, epochs=1)
        buffer.update_priorities(batch.info["seq"], np.where(batch.x == x, 1e9, 0.0))


def test_a_mirror_sees_the_priorities_that_others_set(opened, servers):
    """Its follower is registered on the primary, which then logs them."""
    primary, standby = servers
    with opened(**FIELDS, priorities=True) as buffer:
        buffer.extend({"x": range(100)})
        assert len(buffer) == 100
        paused(standby, True)
        try:
            # Nothing follows yet, so it is not logged, and the standby does not have it yet.
            run_at_once([(prefer, primary.url, buffer.name, 7)])
            with ThreadPoolExecutor(1) as pool:
                opening = pool.submit(buffer.mirror, refresh_s=600)
                followers = "SELECT has_followers FROM buffers WHERE name = :name"
                wait_until(lambda: scalar(primary.url, followers, name=buffer.name), "a follower")
                paused(standby, False)
        finally:
            paused(standby, False)
        with opening.result() as mirror:
            assert mirror.sample_arrays(8, sampler=PrioritizedSampler()).x.tolist() == [7] * 8
            run_at_once([(prefer, primary.url, buffer.name, 9)])
            wait_for_replay(primary, standby)
            mirror.refresh()
            assert mirror.sample_arrays(8, sampler=PrioritizedSampler()).x.tolist() == [9] * 8


def store(url, name):
    with ReplayBuffer(url, name) as buffer:
        buffer.store_batch([make_row(step=step) for step in range(1_000)])


def test_copies_and_exports_read_the_standby(opened, servers, sqlite_url, tmp_path):
    primary, standby = servers
    with opened(max_capacity=1_000) as buffer:
        target = ReplayBuffer(sqlite_url, "copy", config=buffer.config)
        paused(standby, True)
        try:
            run_at_once([(store, primary.url, buffer.name)])
            with watched(primary.url) as watch, ThreadPoolExecutor(1) as pool:
                copying = pool.submit(buffer.copy_to, target)
                held = "SELECT has_holds FROM buffers WHERE name = :name"
                wait_until(lambda: scalar(primary.url, held, name=buffer.name), "a hold")
                paused(standby, False)
                assert copying.result().n_steps == 1_000
                assert export_parquet(buffer, tmp_path / "out").n_steps == 1_000
                assert watch.rows_fetched + watch.rows_scanned < 500
        finally:
            paused(standby, False)
        assert [row.seq for row in target] == [row.seq for row in buffer]
        with BufferStream(buffer) as stream:
            pieces = pickle.loads(pickle.dumps(stream.pieces(2)))
            store(primary.url, buffer.name)  # others evict what is held
            for part in (stream, itertools.chain(*pieces)):
                read = [seq for batch in part for seq in batch.seq.tolist()]
                assert read == [*range(stream.low + 1, stream.high + 1)]
            assert len(read) == 1_000


def test_a_mirror_and_a_pickled_buffer_read_the_standby(opened):
    with opened(**FIELDS, max_capacity=150) as buffer, buffer.mirror(refresh_s=600) as mirror:
        buffer.extend({"x": range(100)})
        assert mirror.sample_arrays(64).n_rows == 64
        buffer.extend({"x": range(100, 200)})
        assert every(mirror.loader("step", 64, epochs=1)) == list(range(50, 200))
        with pickle.loads(pickle.dumps(buffer)) as copied:
            assert len(copied) == 150
            assert copied.connection.read_url == buffer.connection.read_url


def test_a_standby_that_is_behind_is_refused(opened, servers):
    _, standby = servers
    with opened(**FIELDS) as plain, opened(max_lag_s=0.5) as strict:
        plain.extend({"x": range(10)})
        assert (len(plain), len(strict)) == (10, 10)
        paused(standby, True)
        try:
            strict.extend({"x": range(10, 20)})
            with pytest.raises(StorageBusyError, match=r"what this process has written, after 0.5"):
                len(strict)
            with pytest.raises(StorageBusyError, match="is behind its primary"):
                strict.sample_arrays(4)
        finally:
            paused(standby, False)
        assert (len(plain), len(strict)) == (20, 20)


def test_the_lag_of_an_idle_primary_is_none(opened, servers):
    primary, _ = servers
    with opened(**FIELDS, max_lag_s=0.2) as buffer:
        buffer.extend({"x": range(10)})
        for _ in range(3):
            assert buffer.sample_arrays(4).n_rows == 4
            with psycopg.connect(primary.url) as connection:
                connection.execute("SELECT pg_sleep(0.3)")


def test_what_is_no_standby_is_refused_by_name(opened, servers, programs):
    primary, standby = servers
    with pytest.raises(BufferConfigError, match="is not a standby: it accepts writes"):
        ReplayBuffer(primary.url, create=True, read_url=primary.url)
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE other")
    other = primary.url.replace("/postgres?", "/other?")
    with pytest.raises(BufferConfigError, match="shows the database 'postgres'"):
        ReplayBuffer(other, create=True, read_url=standby.url)
    close_pool(other)
    with own_server(programs) as stranger:
        with pytest.raises(BufferConfigError, match="shows another cluster"):
            ReplayBuffer(stranger.url, create=True, read_url=standby.url)
        close_pool(stranger.url)
    gone = standby.url.replace("sqlbuffer-pg-", "no-such-")
    with pytest.raises(StorageUnreachableError):
        ReplayBuffer(primary.url, create=True, read_url=gone, retry_s=0)


def test_a_standby_that_was_promoted_is_no_longer_read(programs):
    with primary_and_standby(programs) as (primary, standby):
        buffer = ReplayBuffer(primary.url, create=True, read_url=standby.url, retry_s=0, **FIELDS)
        buffer.extend({"x": range(10)})
        assert len(buffer) == 10
        standby.promote()
        buffer.extend({"x": range(10, 20)})  # to the old primary, which the other does not get
        with pytest.raises(StorageBusyError, match="was promoted, and is no standby of"):
            len(buffer)
        with pytest.raises(StorageBusyError, match="open the buffer with the URL of the new"):
            buffer.sample_arrays(4)
        with ReplayBuffer(standby.url) as promoted:
            assert every(promoted.loader("step", 4, epochs=1)) == list(range(10))
        buffer.close()
        close_pool(standby.url)
