"""No call about chunks scans them (I9): at 100,000, with and without statistics."""

import json
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from sqlbuffer.compat.minestudio import ReplayBufferInterface
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.extensions.fragments import adding, deleting, fetching, leaving, pool
from tests.storage.plans.test_leases import Cost
from tests.support.sql import buffer_id, fill, is_sqlite, run, scalar

N_CHUNKS = 100_000
CONFIG = {
    "max_chunks": N_CHUNKS, "max_staleness": 2**40, "max_reuse": 1, "fragments_per_chunk": 1,
}  # fmt: skip
WORKER = '{"last_fid": 1, "last_seq": 1, "session": "", "waiting": [[1, 1, 1]]}'
MOST_ROWS_READ = 3_000
MOST_STEPS = 150_000
TABLES = "('experiences', 'item_groups', 'participants')"


def fill_large(url):
    """Fill a buffer of 100,000 chunks, and 10,000 workers that wait."""
    fill(url, N_CHUNKS).close()
    run(url, "UPDATE buffers SET layout = 'fragments' WHERE name = 'default'")
    with ReplayBufferInterface(CONFIG, url=url, name="default"):
        number = buffer_id(url, "default")
        seqs = "'[' || seq || ']'" if is_sqlite(url) else "ARRAY[seq]"
        run(
            url,
            "INSERT INTO item_groups (buffer_id, number, place, task_id, first_step, session, "
            "model_version, oldest_version, n_bytes, seqs) "
            f"SELECT buffer_id, seq, seq - 1, task_id, step, '', seq, seq, 10, {seqs} "
            f"FROM experiences WHERE buffer_id = {number}",
        )
        run(
            url,
            "INSERT INTO participants (buffer_id, role, name, state, oldest_version) "
            f"SELECT buffer_id, 'worker', 'w' || seq, '{WORKER}', seq "
            f"FROM experiences WHERE buffer_id = {number} AND seq <= 10000",
        )
        state = json.loads(scalar(url, "SELECT CAST(state AS text) FROM buffer_layouts"))
        state |= {
            "n_groups": N_CHUNKS, "next_group": N_CHUNKS + 1, "n_bytes": 10 * N_CHUNKS,
            "version": N_CHUNKS,
        }  # fmt: skip
        update = "UPDATE buffer_layouts SET state = :state WHERE buffer_id = :number"
        run(url, update, state=json.dumps(state), number=number)


class Undone(Exception):
    pass


@pytest.fixture(scope="module")
def store(large_url):
    with ReplayBufferInterface(url=large_url, name="default") as buffer:
        yield buffer._core


@contextmanager
def undone(store):
    """Yield a transaction that is undone, and what it costs."""
    with (
        suppress(Undone),
        translated(store.url),
        writing(store.engine) as connection,
    ):
        with Cost(connection, TABLES) as cost:
            yield connection
        assert cost.scanned < 10  # of a list of lists
        assert cost.fetched < MOST_ROWS_READ
        assert cost.steps < MOST_STEPS
        assert cost.fetched or cost.steps
        raise Undone


def choose(n, k):
    return np.random.default_rng(3).choice(n, k, replace=False).tolist()


def test_a_fetch_reads_what_it_hands_out(store):
    with undone(store) as connection:
        rules = pool.read(connection, store).rules
        found = fetching.fetch(connection, store, rules, 64, choose, "", "token")
        assert len(found.fragments) == 64
        again = fetching.fetch(connection, store, rules, 64, choose, "", "other")
        assert len(again.fragments) == 64
        assert deleting.delete_some(connection, store, 64) == 64  # what the first one held
        assert fetching.release(connection, store, "") == 64


def test_an_add_that_evicts_reads_one_chunk(store):
    with undone(store) as connection:
        for fid in range(3):
            new = adding.Fragment("new", fid, "", N_CHUNKS, N_CHUNKS + 1 + fid, 10)
            added = adding.add(connection, store, new)
        assert added.pool.n_groups == N_CHUNKS
        assert added.pool.counts.evicted == 3
        assert deleting.delete_some(connection, store, 8) == 3


def test_what_is_too_old_is_found_by_an_index(store):
    with undone(store) as connection:
        now = pool.read(connection, store, locked=True)
        found = leaving.stale(connection, store.info.id, 20)
        assert [each.number for each in found] == list(range(1, 20))
        leaving.leave(connection, store.info.id, now, found, "stale")
        assert deleting.delete_some(connection, store, 64) == 19


def test_the_witness_would_see_a_scan(store):
    with pytest.raises(AssertionError), undone(store) as connection:
        assert len(leaving.stale(connection, store.info.id, 20_000)) == 19_999
