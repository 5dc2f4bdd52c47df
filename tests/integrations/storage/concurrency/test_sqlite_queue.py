"""Writers of one SQLite file queue up: nobody is refused, nobody starves, the log stays small."""

import multiprocessing
import time
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sqlbuffer import ReplayBuffer
from tests.support.batches import counts, integrity
from tests.support.processes import TIMEOUT_S, running
from tests.support.sql import stored_rows
from tests.support.stepped_rows import make_rows

WRITERS, BATCH, CAPACITY = 8, 64, 5_000
SECONDS = 8.0
MAX_WAL_BYTES = 100 * 2**20


def write_until_told(url, name, all_open, enough):
    """Return how many batches were stored, from when every writer is ready until told to stop."""
    n_batches = 0
    # Built once, so that writers spend their time on the file.
    rows = make_rows(range(BATCH))
    with ReplayBuffer(url) as buffer:
        buffer.store_batch(rows)
        all_open.wait(TIMEOUT_S)
        while not enough.is_set():
            for row in rows:
                row.id = f"{name}_{n_batches}_{row.exp_meta.step}"
            assert buffer.store_batch(rows).inserted == BATCH
            n_batches += 1
    return n_batches


@pytest.mark.slow
def test_8_writers_of_a_file_are_served_in_turn_and_the_log_stays_small(sqlite_url):
    context = multiprocessing.get_context("fork")
    all_open, enough = context.Barrier(WRITERS + 1), context.Event()
    wal = Path(f"{make_url(sqlite_url).database}-wal")
    largest = 0
    with ReplayBuffer(sqlite_url, max_capacity=CAPACITY) as buffer:
        calls = [(write_until_told, sqlite_url, n, all_open, enough) for n in range(WRITERS)]
        with running(calls) as writers:
            all_open.wait(TIMEOUT_S)
            # The same time for all of them; what they do in it is compared.
            end = time.monotonic() + SECONDS
            while time.monotonic() < end and writers.running:
                largest = max(largest, wal.stat().st_size)
                time.sleep(0.01)
            enough.set()
            n_batches = writers.results()
        assert 2 * min(n_batches) >= max(n_batches), n_batches
        assert 0 < largest < MAX_WAL_BYTES
        assert sum(n_batches) * BATCH > CAPACITY
        assert counts(sqlite_url, buffer) == {CAPACITY}
        assert stored_rows(sqlite_url) == CAPACITY
    assert integrity(sqlite_url) == "ok"
