"""No call about chunks scans them (I9): at 100,000, with and without statistics."""

from contextlib import contextmanager, suppress

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.minestudio import ReplayBufferInterface, chunks
from tests.storage.plans.test_leases import Cost
from tests.support.sql import fill

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_CHUNKS = 100_000
N_WORKERS = 10_000
AT_ONCE = 10_000
CONFIG = {
    "max_chunks": N_CHUNKS, "max_staleness": 2**40, "max_reuse": 1, "fragments_per_chunk": 1,
}  # fmt: skip
MOST_ROWS_READ = 3_000
MOST_STEPS = 150_000
TABLES = "('experiences', 'documents')"


def fill_large(url):
    """Fill a buffer of 100,000 chunks, and 10,000 workers that wait."""
    fill(url, N_CHUNKS).close()
    with ReplayBuffer(url, "default") as rows:
        rules = chunks.Rules(**CONFIG)
        pool = chunks.Pool(
            rules, version=N_CHUNKS, n_chunks=N_CHUNKS, n_bytes=10 * N_CHUNKS,
            next_chunk=N_CHUNKS + 1, n_waiting=N_WORKERS, oldest_waiting=1,
        )  # fmt: skip
        for start in range(1, N_CHUNKS + 1, AT_ONCE):
            rows.documents.put_many(
                {
                    chunks._chunk_key(n): vars(chunks.Chunk("w", n, "", n, n, 10, [n]))
                    for n in range(start, start + AT_ONCE)
                }
            )
        for block in range(N_CHUNKS // chunks.BLOCK + 1):
            numbers = np.arange(block * chunks.BLOCK, (block + 1) * chunks.BLOCK)
            is_live = (numbers >= 1) & (numbers <= N_CHUNKS)
            pool.live.append([block, int(is_live.sum()), max(int(numbers[0]), 1)])
            live = "".join(map(str, is_live.astype(int)))
            rows.documents.put(chunks._block_key(block), {"live": live})
        waiting = {"last_fid": 1, "last_seq": 1, "session": "", "waiting": [[1, 1, 1]], "seen": 1e9}
        rows.documents.put_many({f"{chunks.WORKER}w{n}": waiting for n in range(N_WORKERS)})
        rows.documents.put(chunks.POOL, pool.value())


class Undone(Exception):
    pass


@pytest.fixture(scope="module")
def rows(large_url):
    with ReplayBufferInterface(url=large_url, name="default") as buffer:
        yield buffer._buffer


@contextmanager
def watched(tx):
    """Check what the calls of a transaction cost."""
    with Cost(tx._connection, TABLES) as cost:
        yield
    assert cost.scanned < 10
    assert cost.fetched < MOST_ROWS_READ
    assert cost.steps < MOST_STEPS
    assert cost.fetched or cost.steps


def undone(rows, work):
    def run(tx):
        with watched(tx):
            work(tx)
        raise Undone

    with suppress(Undone):
        rows.transaction(run)
        pytest.fail("it was not undone")


def choose(n, k):
    return np.random.default_rng(3).choice(n, k, replace=False).tolist()


def test_a_fetch_reads_what_it_hands_out(rows):
    def work(tx):
        rules = chunks.Rules(**CONFIG)
        found = chunks.fetch(tx, rules, 64, choose, "")
        assert len(found.fragments) == 64
        again = chunks.fetch(tx, rules, 64, choose, "")
        assert len(again.fragments) == 64
        now, n_deleted = chunks._delete_first(tx, again.pool, 64)  # what the first one held
        assert (n_deleted, now.left) == (64, [])
        n_back, _ = chunks.release(tx, "")
        assert n_back == 64

    undone(rows, work)


def test_an_add_that_evicts_reads_one_chunk(rows):
    def work(tx):
        for fid in range(3):
            new = chunks.Fragment("new", fid, "", N_CHUNKS, 10, N_CHUNKS + 1 + fid)
            added = chunks.add(tx, new)
        assert added.pool.n_chunks == N_CHUNKS
        assert added.pool.counts.evicted == 3
        assert chunks._delete_first(tx, added.pool, 8)[1] == 3

    undone(rows, work)


def test_chunks_that_are_too_old_are_found_by_their_block(rows):
    def work(tx):
        change = chunks._Change(tx)
        change.pool.version = 2**40 + 20
        change.leave_stale()
        change.save()
        assert change.pool.counts.stale == 19
        assert chunks._delete_first(tx, change.pool, 64)[1] == 19

    undone(rows, work)


def test_the_witness_would_see_a_scan(rows):
    def work(tx):
        change = chunks._Change(tx)
        change.pool.version = 2**40 + 20_000
        change.leave_stale()
        assert change.pool.counts.stale == 19_999

    with pytest.raises(AssertionError):
        undone(rows, work)
