"""Rows that can never be sampled again leave, and are counted by cause."""

import asyncio
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, RandomSampler, Removed, ReplayBuffer, aio
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.database import vacuum
from sqlbuffer.storage.use_counts import claim_uses
from tests.support.limited_rows import FIELDS, rows_of, steps_in, store_episodes, uses_in
from tests.support.processes import wait_until
from tests.support.sql import buffer_id, connected, is_sqlite, run, scalar, stored_rows
from tests.support.typed_buffer import both_layouts

COUNTS = "SELECT n_expired, n_used_up, n_other_session FROM buffers WHERE name = :name"
NONE = Removed(0, 0, 0)


def counts_in(url, name="default"):
    ((*counts,),) = run(url, COUNTS, name=name)
    return Removed(*counts)


def make_due(buffer):
    buffer._store.expiry.due_at = 0.0


@pytest.fixture
def buffer(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_staleness=1, max_capacity=5_000) as buffer:
        yield buffer


def test_stale_rows_leave_wherever_they_stand(buffer, buffer_url):
    buffer.store_batch(rows_of([5, 1, None, 3, 6, 4, 1]))
    assert buffer.expire() == NONE  # no clock yet
    buffer.set_clock(5)
    assert buffer.expire() == Removed(3, 0, 0)
    assert steps_in(buffer.get_all()) == [0, 2, 4, 5]
    assert len(buffer) == stored_rows(buffer_url) == 4
    assert buffer.expire() == NONE
    assert counts_in(buffer_url) == Removed(3, 0, 0)


def test_an_empty_buffer_and_one_without_limits_have_none(buffer, buffer_url):
    buffer.set_clock(9)
    assert buffer.expire() == NONE
    with ReplayBuffer(buffer_url, name="free") as free:
        free.store_batch(rows_of([1]))
        free.set_clock(100)
        assert free.expire() == NONE


@both_layouts
def test_used_up_rows_leave(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_use=2) as buffer:
        buffer.store_batch(rows_of([1] * 6))
        buffer.sample(6)
        assert buffer.expire() == NONE
        used = steps_in(buffer.sample(4))
        assert buffer.expire() == Removed(0, 4, 0)
        assert steps_in(buffer.get_all()) == sorted({*range(6)} - {*used})
        assert len(uses_in(buffer_url)) == 2


@both_layouts
def test_rows_of_other_sessions_leave(buffer_url, make_buffer):
    with make_buffer(buffer_url, current_session_only=True) as buffer:
        for session in ("a", "b", None):
            buffer.store_batch(rows_of([1] * 2), session_id=session)
        assert buffer.expire() == NONE  # none was started
        buffer.start_session("b")
        assert buffer.expire() == Removed(0, 0, 2)
        assert {row.exp_meta.session_id for row in buffer.get_all()} == {"b", None}


def test_a_row_is_counted_under_its_first_cause(buffer_url):
    limits = {"max_use": 1, "max_staleness": 0, "current_session_only": True}
    with ReplayBuffer(buffer_url, **limits) as buffer:
        buffer.start_session("now")
        buffer.store_batch(rows_of([1, 2, 2, 2]), session_id="now")
        buffer.sample(4)
        buffer.store_batch(rows_of([1, 2, 2]), session_id="old")
        buffer.store_batch(rows_of([2, 1]))
        buffer.set_clock(2)
        assert buffer.expire() == Removed(3, 3, 2)
        assert steps_in(buffer.get_all()) == [0]
        assert counts_in(buffer_url) == Removed(3, 3, 2)


@pytest.mark.thorough
@pytest.mark.slow
def test_many_rows_leave_in_several_transactions(buffer_url):
    with ReplayBuffer(buffer_url, max_staleness=0) as buffer:
        buffer.store_batch(rows_of([i % 2 for i in range(5_000)]))
        buffer.set_clock(1)
        assert buffer.expire() == Removed(2_500, 0, 0)
        assert len(buffer) == 2_500
        assert len(set(steps_in(buffer.sample(64)))) == 64


@pytest.mark.each_value
@pytest.mark.thorough
@both_layouts
def test_the_window_begins_at_the_first_row_that_is_left(buffer):
    buffer.store_batch(rows_of([0] * 2_000 + [9] * 20 + [0] * 10))
    buffer.set_clock(9)
    assert buffer.expire() == Removed(2_010, 0, 0)
    with buffer._store.source.candidates(EVERYTHING, sampled=True) as candidates:
        assert (candidates.low, candidates.high) == (2_000, 2_020)
        assert len(RandomSampler(replace=True).choose(candidates, 20)) == 20
        assert candidates.n_probed <= 28
    buffer.store_batch(rows_of([9]))
    assert len(buffer) == 21


def test_a_capacity_counts_from_the_newest_row_ever(buffer_url, monkeypatch):
    # The last ones leave in a transaction that looks at no others.
    monkeypatch.setattr("sqlbuffer.storage.retention.expiry.LEAST_SPAN", 1)
    with ReplayBuffer(buffer_url, max_staleness=0, max_capacity=4) as buffer:
        buffer.store_batch(rows_of([5, 5, 5, 5, 1, 1]))
        buffer.set_clock(5)
        assert buffer.expire() == Removed(2, 0, 0)
        # The rows 1 and 2 have left, whatever leaves behind them.
        assert steps_in(buffer.get_all()) == [2, 3]
        assert scalar(buffer_url, "SELECT low_seq FROM v_windows") == 2


@pytest.mark.thorough
@pytest.mark.slow
def test_another_process_counts_the_rows_anew(buffer, buffer_url):
    buffer.store_batch(rows_of([0, 1] * 2_400))
    with ReplayBuffer(buffer_url) as other:
        assert len(other) == 4_800
        other.set_clock(2)
        assert buffer.expire() == Removed(2_400, 0, 0)
        assert len(other) == len(buffer) == 2_400


def test_steps_of_an_episode_leave_when_none_may_be_sampled(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_use=1, max_staleness=1) as buffer:
        store_episodes(buffer, [[3, 3, 3], [1, 3, 3], [1, 1, 3]])
        buffer._store.write(
            lambda connection: claim_uses(connection, buffer._store.info.id, [2, 3, 5, 9], 1)
        )
        buffer.set_clock(4)
        # The first step of e0 still needs the second, which is used up.
        assert buffer.expire() == Removed(2, 1, 0)
        assert set(buffer.sample_transitions(2).info["seq"].tolist()) == {1, 6}
        assert buffer.expire() == Removed(1, 5, 0)
        assert len(buffer) == 0


def test_an_open_episode_stays(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_staleness=1) as buffer:
        with buffer.episode(model_version=1) as episode:
            episode.append(obs=[1.0])
            buffer.flush()
            buffer.set_clock(9)
            assert buffer.expire() == NONE
            episode.append(obs=[2.0])
        assert buffer.expire() == Removed(2, 0, 0)


@both_layouts
def test_tasks_leave_whole_where_tasks_are_evicted(buffer_url, make_buffer):
    limits = {"max_use": 1, "max_staleness": 1, "evict_by": "task", "max_capacity": 50}
    with make_buffer(buffer_url, **limits) as buffer:
        buffer.store_batch(rows_of([5, 1, 1, 1, 5, 5, 1, 5], per_task=2))
        buffer.set_clock(5)
        assert buffer.expire() == Removed(2, 0, 0)
        assert [steps_in(task) for task in buffer.sample_tasks(9)] == [[4, 5]]
        assert buffer.expire() == Removed(0, 2, 0)
        assert len(buffer) == 4
        assert steps_in(buffer.sample(9)) == [0, 7]
        assert buffer.expire() == Removed(2, 2, 0)
        assert len(buffer) == 0
        assert run(buffer_url, "SELECT task_id FROM tasks") == []


def test_episodes_leave_whole_where_episodes_are_evicted(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_staleness=1, max_episodes=9) as buffer:
        store_episodes(buffer, [[1, 1], [1, 5], [5, 5]])
        buffer.set_clock(5)
        assert buffer.expire() == Removed(2, 0, 0)
        assert len(buffer) == 4
        assert run(buffer_url, "SELECT live_rows, live_episodes FROM buffers") == [(4, 2)]


@both_layouts
def test_rows_in_quarantine_stay_until_they_are_released(buffer):
    buffer.store_batch(rows_of([1, 1, 9]))
    buffer.quarantine([1])
    buffer.set_clock(9)
    assert buffer.expire() == Removed(1, 0, 0)
    assert steps_in(buffer.get_all()) == [0, 2]
    buffer.release([1])
    assert buffer.expire() == Removed(1, 0, 0)


@both_layouts
def test_priorities_and_uses_leave_with_their_rows(buffer_url, make_buffer):
    with make_buffer(buffer_url, priorities=True, max_use=3, max_staleness=0) as buffer:
        buffer.store_batch(rows_of([1, 2] * 10))
        buffer.update_priorities(range(1, 21), 2.0)
        buffer.sample(20)
        buffer.set_clock(2)
        assert buffer.expire() == Removed(10, 0, 0)
        assert run(buffer_url, "SELECT count(*) FROM priorities") == [(10,)]
        assert len(uses_in(buffer_url)) == 10


CALLS = {
    "sample": lambda buffer: buffer.sample(3),
    "sample_tasks": lambda buffer: buffer.sample_tasks(3),
    "set_clock": lambda buffer: buffer.set_clock(9),
    "set_model_version": lambda buffer: buffer.set_model_version(9),
    "loader": lambda buffer: list(buffer.loader("step", 3, epochs=1)),
}


@pytest.mark.thorough
@pytest.mark.slow
def test_a_process_lets_rows_leave_by_itself_but_not_at_once(buffer_url):
    for name, call in CALLS.items():
        with ReplayBuffer(buffer_url, name=name, max_staleness=0) as buffer:
            buffer.store_batch(rows_of([1, 9]))
            buffer.set_clock(9)
            call(buffer)
            assert len(buffer) == 2, name
            make_due(buffer)
            call(buffer)
            assert len(buffer) == 1, name
            assert counts_in(buffer_url, name) == Removed(1, 0, 0)
            assert buffer._store.expiry.due_at > time.monotonic()


def test_a_session_that_begins_lets_rows_leave(buffer_url):
    with ReplayBuffer(buffer_url, current_session_only=True) as buffer:
        buffer.store_batch(rows_of([1, 9]), session_id="a")
        make_due(buffer)
        buffer.start_session("b")
        assert len(buffer) == 0


@pytest.mark.slow
def test_looks_on_where_it_ended_and_anew_when_the_clock_moves(buffer_url, monkeypatch):
    monkeypatch.setattr("sqlbuffer.storage.retention.expiry.AT_ONCE_S", 0.0)
    with ReplayBuffer(buffer_url, max_staleness=0) as buffer:
        buffer.store_batch(rows_of([1, *[5] * 5_000, 1]))
        buffer.set_clock(5)
        sizes = []
        for _ in range(3):
            make_due(buffer)
            buffer.sample(1)
            sizes.append(len(buffer))
        assert sizes == [5_001, 5_000, 5_000]
        make_due(buffer)
        buffer.set_clock(6)
        assert len(buffer) < 5_000


def test_a_buffer_that_keeps_them_lets_none_leave_by_itself(buffer_url):
    with ReplayBuffer(buffer_url, max_staleness=0, keep_expired=True) as buffer:
        buffer.store_batch(rows_of([1, 9]))
        make_due(buffer)
        buffer.set_clock(9)
        assert steps_in(buffer.sample(9)) == [1]
        buffer.set_clock(1)
        assert steps_in(buffer.sample(9)) == [0, 1]
        buffer.set_clock(9)
        assert buffer.expire() == Removed(1, 0, 0)


def test_nobody_waits_for_it_while_another_writes(buffer, buffer_url):
    buffer.store_batch(rows_of([1, 9]))
    buffer.set_clock(9)
    with connected(buffer_url) as other:
        number = buffer_id(buffer_url)
        other.exec_driver_sql(f"UPDATE buffers SET alpha = 1 WHERE id = {number}")
        make_due(buffer)
        assert steps_in(buffer.sample(9)) == [1]
        assert stored_rows(buffer_url) == 2
    make_due(buffer)
    buffer.sample(9)
    assert stored_rows(buffer_url) == 1


@pytest.mark.thorough
@pytest.mark.slow
def test_several_at_once_count_each_row_once(buffer_url):
    with ReplayBuffer(buffer_url, max_staleness=0, max_capacity=3_000) as buffer:
        buffer.store_batch(rows_of([1] * 2_500 + [2] * 100))
        buffer.set_clock(2)

        copies = [pickle.loads(pickle.dumps(buffer)) for _ in range(3)]
        with ThreadPoolExecutor(6) as pool:
            batches = [rows_of([2] * 100) for _ in range(6)]
            writers = pool.map(lambda rows: buffer.store_batch(rows).inserted, batches)
            found = list(pool.map(ReplayBuffer.expire, copies))
            assert sum(writers) == 600
        found.append(buffer.expire())
        total = sum(found, start=NONE)
        assert total == counts_in(buffer_url)
        assert 2_300 <= total.expired <= 2_500  # some were evicted before
        assert len(buffer) == 700


@pytest.mark.thorough
@pytest.mark.slow
def test_payloads_that_leave_give_their_space_back(buffer_url, monkeypatch):
    monkeypatch.setattr(vacuum, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(vacuum, "MIN_DEAD_BYTES", 2**20)
    monkeypatch.setattr(vacuum, "FIRST_PAUSE_S", 0.0)  # as in tests/storage/test_fragment_space.py
    noise = np.random.default_rng(1).integers(0, 255, 100_000, np.uint8)
    rows = [Experience({"payload": noise}, [0]) for _ in range(40)]
    sizes = []
    if not is_sqlite(buffer_url):
        off = "autovacuum_enabled = off, toast.autovacuum_enabled = off"
        run(buffer_url, f"ALTER TABLE experiences SET ({off})")
    with ReplayBuffer(buffer_url, max_staleness=0) as buffer:
        for version in range(12):
            meta = ExpMeta("t", None, "a", 0, 0.0, model_version=version)
            buffer.store_batch([DataRow(meta, row) for row in rows])
            sizes.append(_size(buffer_url))
            buffer.set_clock(version + 1)
            assert buffer.expire() == Removed(len(rows), 0, 0)
            _clean(buffer)
        assert len(buffer) == 0
    # Without, it would have grown to six times the second.
    assert sizes[-1] <= 1.5 * sizes[1]


def _clean(buffer):
    """See that the server has counted what left, and wait until somebody has looked after it: once
    more where a snapshot of a moment held it, as the server's own statistics take one.
    """
    url = buffer._store.url.render_as_string(hide_password=False)
    if is_sqlite(url):
        return
    engine = buffer._store.engine
    with ExitStack() as stack:
        # Each connection tells of what it did itself.
        for connection in [engine.connect() for _ in range(engine.pool.checkedin())]:
            stack.enter_context(connection)
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
            connection.commit()
    cleaner = vacuum.cleaner_for(engine)

    def is_clean():
        cleaner.wrote(engine, 0)
        cleaner.thread.join(30)
        dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'experiences'"
        # Fewer than MIN_DEAD_BYTES of them are left alone.
        return not cleaner.thread.is_alive() and scalar(url, dead) <= 10

    wait_until(is_clean, "a table with few dead rows")


def _size(url):
    if is_sqlite(url):
        return scalar(url, "PRAGMA page_count")
    return scalar(url, "SELECT pg_table_size('experiences')")


def test_asyncio_has_the_call_too(buffer_url):
    async def use():
        async with await aio.AsyncReplayBuffer.open(buffer_url, max_staleness=0) as buffer:
            await buffer.store_batch(rows_of([1, 2]))
            await buffer.set_clock(2)
            return await buffer.expire()

    assert asyncio.run(use()) == Removed(1, 0, 0)
