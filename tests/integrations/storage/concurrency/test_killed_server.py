"""kill -9 of the PostgreSQL server at random moments, at the default durability."""

import multiprocessing
import random
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageUnreachableError
from sqlbuffer.storage.buffers.window import BLOCK
from tests.support.batches import (
    batches_of,
    counts,
    held,
    ids_of,
    log_inserts,
    logged,
    make_batch,
)
from tests.support.processes import running, wait_until
from tests.support.sql import run_outside_transaction, scalar
from tests.support.stepped_rows import EVERY_ROW

pytestmark = pytest.mark.combinations

BATCH, WRITERS = 32, 4
PATIENCE_S = 120.0


class Progress:
    """How many batches all writers have had acknowledged, and when they may stop."""

    def __init__(self):
        context = multiprocessing.get_context("fork")
        self._n_batches, self.enough = context.Value("i", 0), context.Event()

    def note(self):
        with self._n_batches.get_lock():
            self._n_batches.value += 1

    def wait_for(self, n_batches, writers):
        target = self._n_batches.value + n_batches
        wait_until(
            lambda: self._n_batches.value >= target or not writers.running,
            f"{n_batches} more batches",
            PATIENCE_S,
        )


def write_through_outages(url, name, progress):
    """Store batches until told to stop, each until it is acknowledged, and return their names."""
    acknowledged = []
    with ReplayBuffer(url) as buffer:
        while not progress.enough.is_set():
            name_of_batch = f"{name}_{len(acknowledged)}"
            batch = make_batch(name_of_batch, BATCH)
            result = until_reached(lambda: buffer.store_batch(batch))  # noqa: B023
            # The commit of an attempt that failed may have gone through.
            assert (result.inserted, result.duplicates) in ((BATCH, 0), (0, BATCH))
            acknowledged.append(name_of_batch)
            progress.note()
    return acknowledged


def until_reached(call):
    while True:
        try:
            return call()
        except StorageUnreachableError:
            time.sleep(0.02)  # the pause of a client that tries again


def read_through_outages(url, capacity, progress):
    with ReplayBuffer(url) as buffer:
        while not progress.enough.is_set():
            rows = until_reached(lambda: buffer.sample(16))
            assert len(rows) <= 16
            if capacity is not None:
                assert until_reached(lambda: len(buffer)) <= capacity
    return []


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "evict_by"), [(6_000, "row"), (1_000_000, "task")])
def test_a_killed_server_has_every_acknowledged_batch_when_it_is_back(server, capacity, evict_by):
    chance = random.Random(7)
    # Through it all: what it remembers of the rows must hold when the server is back.
    buffer = ReplayBuffer(server.url, max_capacity=capacity, evict_by=evict_by, create=True)
    log_inserts(server.url)
    assert scalar(server.url, "SHOW fsync") == scalar(server.url, "SHOW synchronous_commit") == "on"
    progress = Progress()
    calls = [(write_through_outages, server.url, f"w{n}", progress) for n in range(WRITERS)]
    with running([*calls, (read_through_outages, server.url, capacity, progress)]) as workers:
        for victim in ("server", "session", "server", "session", "server"):
            progress.wait_for(chance.randint(40, 120), workers)
            until_reached(lambda: len(buffer))
            time.sleep(chance.uniform(0, 0.005))  # any moment of a batch
            if victim == "server":
                server.kill()
                server.start()
            else:
                server.kill_session(chance.choice(server.sessions()))
        progress.wait_for(50, workers)
        progress.enough.set()
        *written, _ = workers.results(PATIENCE_S)
    acknowledged = [name for names in written for name in names]
    with buffer:
        check(server.url, buffer, capacity, acknowledged)


def check(url, buffer, capacity, acknowledged):
    log = logged(url)
    ids = [id_ for _, id_ in log]
    assert set(ids) == set(ids_of(acknowledged, BATCH))
    assert {tuple(steps) for steps in batches_of(set(ids)).values()} == {tuple(range(BATCH))}
    low = log[-1][0] - (capacity or log[-1][0])
    window = [(seq, id_) for seq, id_ in log if seq > low]
    assert held(url) == window
    # An attempt whose outcome was unknown is not stored again, unless its rows had been evicted.
    assert len({id_ for _, id_ in window}) == len(window)
    until_reached(lambda: len(buffer))
    assert counts(url, buffer) == {len(window)}


def test_opening_list_and_drop_wait_for_a_server_that_says_that_it_restarts(server):
    for name in ("kept", "dropped"):
        ReplayBuffer(server.url, name=name, create=True).close()
    url = f"{server.url}&connect_timeout=60"  # this process has not reached a server there
    refused = server.log.count("the database system is shutting down")
    with ThreadPoolExecutor(3) as executor:
        with psycopg.connect(server.url):
            server.begin_shutdown()
            calls = [
                executor.submit(ReplayBuffer, url, name="kept"),
                executor.submit(ReplayBuffer.drop, url, "dropped"),
                executor.submit(ReplayBuffer.list, url),
            ]
            wait_until(
                lambda: server.log.count("the database system is shutting down") >= refused + 6,
                "calls that are refused",
            )
        server.finish_shutdown()
        server.start()
        buffer, _, names = [call.result(PATIENCE_S) for call in calls]
    assert "kept" in names
    assert ReplayBuffer.list(url) == ["kept"]
    buffer.close()


@pytest.mark.slow
def test_a_length_forgets_rows_that_a_crash_took_where_durability_is_relaxed(server, monkeypatch):
    # A look after dead rows commits what the server then writes out, and the rows with it.
    monkeypatch.setattr("sqlbuffer.storage.database.vacuum.ROWS_BETWEEN_LOOKS", 10 * BLOCK)
    # The server writes its log out when asked, not by itself.
    for setting in ("wal_writer_delay = '10s'", "wal_writer_flush_after = '1GB'"):
        run_outside_transaction(server.url, f"ALTER SYSTEM SET {setting}")
    server.kill()
    server.start()
    buffer = ReplayBuffer(server.url, create=True, durability="relaxed")
    buffer.store_batch(make_batch("lost", 2 * BLOCK))
    assert [len(buffer) for _ in range(3)] == [2 * BLOCK] * 3
    server.kill()
    server.start()
    with until_reached(lambda: ReplayBuffer(server.url)) as other:
        assert other.size(EVERY_ROW) == 0
        # As it is where the server wrote down which numbers it gave, and not yet the commit.
        scalar(server.url, "SELECT setval('sqlbuffer_seq_1', :n)", n=2 * BLOCK)
        other.store_batch(make_batch("kept", BATCH))
    assert until_reached(lambda: len(buffer)) == BATCH
    buffer.close()
