"""What is leased leaves the window like all rows, but its payload stays until it is released."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.leases.leases import FEWEST_DONE
from tests.storage.leases.queue import GivenBack, expire, none_left, row_of, steps_leased, store
from tests.support.sql import is_sqlite, run, scalar, stored_rows


def sweep(url):
    """Clean up as the library does behind writers from time to time."""
    if not is_sqlite(url):
        run(url, "SELECT sqlbuffer_sweep_v1()")


@pytest.fixture
def full(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=5, max_capacity=10) as buffer:
        store(buffer, range(10))
        yield buffer


@pytest.mark.parametrize("ending", ["acknowledged", "given back"])
def test_what_is_held_stays_until_it_is_released(full, buffer_url, ending):
    lease = full.lease(4, order="fifo")
    lease.__enter__()
    store(full, range(10, 18))
    assert [row.seq for row in full.get_all()] == list(range(9, 19))
    assert len(full) == 10
    held = run(buffer_url, "SELECT seq, state FROM experiences WHERE seq <= 8 ORDER BY seq")
    assert [seq for seq, _ in held] == [1, 2, 3, 4]
    none_left(full, 11)
    error = None if ending == "acknowledged" else GivenBack
    lease.__exit__(error, error and error(), None)
    assert stored_rows(buffer_url) == scalar(buffer_url, "SELECT count(*) FROM queue_items") == 10
    assert scalar(buffer_url, "SELECT n_used_up FROM buffers") == 0
    assert sorted(steps_leased(full, 10)) == list(range(8, 18))


def test_what_a_lost_consumer_held_goes_when_its_lease_has_run_out(full, buffer_url):
    full.lease(4, order="fifo").__enter__()
    store(full, range(10, 18))
    assert stored_rows(buffer_url) == 14
    expire(buffer_url)
    store(full, range(18, 19))
    sweep(buffer_url)
    assert stored_rows(buffer_url) == scalar(buffer_url, "SELECT count(*) FROM queue_items") == 10


@pytest.mark.thorough
@pytest.mark.slow
def test_what_is_held_far_below_the_window_goes_too(full, buffer_url):
    lease = full.lease(2, order="fifo")
    lease.__enter__()
    for _ in range(40):
        store(full, range(50))
    assert stored_rows(buffer_url) == 12
    lease.__exit__(None, None, None)
    assert stored_rows(buffer_url) == 10


def test_shrinking_leaves_what_is_held(full, buffer_url):
    with full.lease(3, order="fifo"):
        full.resize(4)
        assert [row.seq for row in full.get_all()] == [7, 8, 9, 10]
        assert stored_rows(buffer_url) == 7
    assert stored_rows(buffer_url) == 4


@pytest.mark.thorough
@pytest.mark.slow
def test_turnover_leaves_nothing_behind(full, buffer_url):
    for start in range(10, 400, 5):
        store(full, range(start, start + 5))
        with full.lease(3, order="fifo"):
            store(full, range(1))
    sweep(buffer_url)
    held = scalar(buffer_url, "SELECT count(*) FROM queue_items")
    assert stored_rows(buffer_url) == held == len(full) == 10
    full.store(row_of(1))
    assert scalar(buffer_url, "SELECT count(*) FROM leases") <= 2 * FEWEST_DONE


def test_what_is_too_old_leaves_when_nobody_holds_it_any_more(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_staleness=1) as buffer:
        buffer.store_batch([row_of(step, model_version=1) for step in range(4)])
        buffer.lease(2, order="fifo").__enter__()
        buffer.set_clock(9)
        assert buffer.expire().expired == 2
        assert [row.seq for row in buffer.get_all()] == [1, 2]
        expire(buffer_url)
        assert buffer.expire().expired == 2


def test_what_is_in_quarantine_or_of_another_session_is_not_leased(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, current_session_only=True) as buffer:
        buffer.start_session("old")
        store(buffer, range(3), task="a", session_id="old")
        buffer.start_session("new")
        store(buffer, range(3, 7), task="b", session_id="new")
        store(buffer, range(7, 9), task="c", session_id="new")
        buffer.quarantine([4], reason="odd")
        for order in ("random", "fifo", "freshest", "stalest"):
            assert sorted(steps_leased(buffer, 5, order=order)) == [4, 5, 6, 7, 8]
            none_left(buffer, 6, order=order)
            assert sorted(steps_leased(buffer, 1, order=order, group_by="task_id")) == [7, 8]
            none_left(buffer, 2, order=order, group_by="task_id")
        buffer.release([4])
        assert len(steps_leased(buffer, 6)) == 6
