"""Learners that update priorities beside writers at capacity, in processes of their own."""

import numpy as np
import psycopg
import pytest
from sqlalchemy import make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from tests.support.processes import run_at_once
from tests.support.proxy import proxied
from tests.support.rows import make_row
from tests.support.sql import run, scalar

pytestmark = pytest.mark.combinations

FIELDS = {"x": "int64"}
LIMITS = {
    "row": {"max_capacity": 600},
    "task": {"max_capacity": 600, "evict_by": "task"},
    "episode": {"max_episodes": 40},
}
N_BATCHES, N_UPDATES = 12, 25


def write(url, writer):
    """Store episodes of 15 steps; every fourth has a priority that none had before."""
    with ReplayBuffer(url) as buffer:
        for i in range(N_BATCHES * 2):
            own = 10.0 + writer * 100 + i if i % 4 == 3 else None
            buffer.store_episode({"x": range(15)}, priority=own)


def learn(url, learner, n_learners):
    """Set own values on own rows, those whose numbers leave this remainder, and summarize; return
    what was set last.
    """
    rng, last = np.random.default_rng(learner), {}
    with ReplayBuffer(url) as buffer:
        for i in range(N_UPDATES):
            there = [seq for (seq,) in run(url, "SELECT seq FROM v_experiences")]
            own = [seq for seq in there if seq % n_learners == learner]
            seqs = rng.permutation(own)[:64].tolist()
            values = (learner + rng.random(len(seqs))).tolist()
            buffer.update_priorities(seqs, values, eps=0)
            last |= dict(zip(seqs, values, strict=True))
            if i % 3 == learner:
                buffer._store.priorities.summarize(range(min(there) // 16, max(there) // 16 + 1))
    return last


def check_blocks(url, alpha):
    """Assert that what is kept of each block is true of its rows."""
    rows = dict(run(url, "SELECT seq, priority FROM v_priorities"))
    low = min(rows) - 1
    found = run(
        url, "SELECT block, n_rows, weight_sum, max_priority, min_priority FROM priority_blocks"
    )
    checked = 0
    for block, n_rows, weight_sum, largest, least in found:
        own = np.array([p for seq, p in rows.items() if seq // 16 == block])
        if block * 16 <= low:
            continue
        assert n_rows == len(own)
        assert weight_sum == pytest.approx((own[own > 0] ** alpha).sum(), rel=1e-9)
        assert largest >= own.max(initial=0)
        assert least is None or least <= own.min(initial=np.inf)
        checked += 1
    return checked


@pytest.mark.thorough
@pytest.mark.parametrize("unit", LIMITS)
def test_learners_and_writers_neither_deadlock_nor_lose_an_update(make_database_url, unit):
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url, priorities=True, fields=FIELDS, **LIMITS[unit])
    run(url, "UPDATE buffers SET block_size = 16")
    for _ in range(40):
        buffer.store_episode({"x": range(15)})
    calls = [(write, url, i) for i in range(4)] + [(learn, url, i, 2) for i in range(2)]
    *_, first, second = run_at_once(calls)
    held = dict(run(url, "SELECT seq, priority FROM v_priorities"))
    kept = {seq: value for seq, value in (first | second).items() if seq in held}
    assert len(kept) > 50
    assert {seq: held[seq] for seq in kept} == kept
    name = make_url(url).database
    assert scalar(url, f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{name}'") == 0
    assert scalar(url, "SELECT max_priority FROM buffers") == 10.0 + 300 + N_BATCHES * 2 - 1
    fresh = ReplayBuffer(url)
    fresh._store.priorities.summarize(range(max(held) // 16 + 1))
    assert check_blocks(url, buffer._store.info.config.priorities.alpha) > 10
    if unit == "row":
        assert set(held) == set(range(max(held) - 599, max(held) + 1))


@pytest.fixture
def locked(make_database_url):
    """Yield the URL of a full buffer whose row another connection has locked."""
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url, priorities=True, max_capacity=50) as buffer:
        buffer.store_batch([make_row(step=i) for i in range(50)], priority=2.0)
        buffer.update_priorities(np.arange(1, 51), 1.0)
        buffer._store.priorities.summarize([0])
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        connection.execute("SELECT 1 FROM buffers FOR NO KEY UPDATE")
        yield url


def test_writers_do_not_wait_for_learners(locked):
    with ReplayBuffer(locked, retry_s=0) as buffer:
        buffer.store_batch([make_row(step=i) for i in range(80)])
        buffer.store_batch([make_row(step=i) for i in range(3)], priority=[1.5, 0.0, 2.0])
        assert len(buffer) == 50
    assert scalar(locked, "SELECT count(*) FROM priorities") == 50  # until blocks are summarized


def test_who_summarizes_does_not_wait_for_long(make_database_url):
    url = make_database_url("postgresql", schema=True)
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with ReplayBuffer(url, priorities=True, max_capacity=1_000) as buffer:
        buffer.store_batch([make_row(step=i) for i in range(600)])
        with psycopg.connect(plain) as connection:
            connection.execute("SELECT 1 FROM buffers FOR NO KEY UPDATE")
            assert buffer._store.priorities.summarize([1]) == 0
        assert buffer._store.priorities.summarize([1]) == 1


def test_a_block_is_not_summarized_while_a_writer_may_add_to_it(make_database_url):
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url, max_capacity=1_000, priorities=True)
    buffer.store_batch([make_row(step=i) for i in range(300)])
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as late:
        late.execute(
            "INSERT INTO experiences (buffer_id, task_id, agent_id, step) VALUES (1, 't', 'a', 1)"
        )
        buffer.store_batch([make_row(step=i) for i in range(300)])
        assert buffer._store.priorities.summarize([0, 1]) == 0
    assert buffer._store.priorities.summarize([0, 1]) == 2
    assert run(url, "SELECT n_rows FROM priority_blocks ORDER BY block") == [(255,), (256,)]


@pytest.mark.parametrize("cut", ["before", "after"])
def test_an_update_survives_a_lost_connection(make_database_url, cut):
    url = make_database_url("postgresql", schema=True)
    with proxied(url) as proxy:
        buffer = ReplayBuffer(proxy.url, max_capacity=1_000, priorities=True)
        buffer.store_batch([make_row(step=i) for i in range(300)])
        buffer._store.priorities.summarize([0])
        proxy.cuts = [cut]
        updated = buffer.update_priorities([1, 2, 3, 999], [2.0, 3.0, 0.0, 1.0], eps=0)
        assert proxy.n_cut == 1
        assert (updated.updated, updated.missing) == (3, 1)
        assert run(url, "SELECT priority FROM priorities ORDER BY seq") == [(2.0,), (3.0,), (0.0,)]
        ((weight_sum,),) = run(url, "SELECT weight_sum FROM priority_blocks")
        assert weight_sum == pytest.approx(252 + 2**0.6 + 3**0.6)
        engine_for(resolve_url(proxy.url)).dispose()
