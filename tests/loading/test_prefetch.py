"""Batches fetched ahead are the same ones, and leave nothing behind."""

import gc
import pickle
import threading

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.loading.loader import prefetched
from tests.loading.rows import FIELDS, actions, fill, flat
from tests.support.processes import run_at_once, wait_until
from tests.support.storage_hooks import each_checked_out, engine_behind


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "sqlbuffer-prefetch"]


@pytest.fixture
def connections_in_use(buffer):
    """Return the connections that are taken from a pool and not given back yet."""
    taken = []

    def take(_connection, record, _proxy):
        taken.append(record)

    def give_back(_connection, record):
        taken.remove(record)

    with each_checked_out(engine_behind(buffer)):
        event.listen(Pool, "checkout", take)
        event.listen(Pool, "checkin", give_back)
        yield taken
        event.remove(Pool, "checkout", take)
        event.remove(Pool, "checkin", give_back)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    assert threads() == []
    yield
    assert threads() == []


@pytest.mark.thorough
def test_prefetched_batches_are_the_same_and_in_order(buffer):
    fill(buffer, 50)
    for options in ({"seed": 1, "epochs": 2}, {"shuffle": False, "epochs": 1}):
        without = actions(buffer.loader("step", 8, **options))
        for ahead in (1, 2, 20):
            assert actions(buffer.loader("step", 8, prefetch=ahead, **options)) == without


def test_no_more_is_fetched_ahead_than_was_asked_for():
    made = []

    def items():
        for number in range(100):
            made.append(number)
            yield number

    found = prefetched(items, 3)
    assert next(found) == 0
    wait_until(lambda: len(made) == 4, "three ahead")
    assert next(found) == 1
    wait_until(lambda: len(made) == 5, "three ahead")
    found.close()
    assert len(made) == 5


@pytest.mark.thorough
@pytest.mark.parametrize("leave", ["break", "exception", "close", "garbage", "cycle"])
def test_leaving_a_loop_early_stops_the_thread_and_returns_its_connection(
    connections_in_use, buffer, leave
):
    fill(buffer, 50)
    loader = buffer.loader("step", 8, prefetch=2)
    if leave == "break":
        for _ in loader:
            break
    elif leave == "exception":
        with pytest.raises(ZeroDivisionError):
            fail_in_a_loop(loader)
    elif leave == "close":
        batches = iter(loader)
        next(batches)
        assert len(threads()) == 1
        batches.close()
    else:
        batches = iter(loader)
        next(batches)
        cycle = [batches]
        if leave == "cycle":
            cycle.append(cycle)
        del batches, cycle
        gc.collect()
    assert threads() == []
    assert connections_in_use == []


def fail_in_a_loop(loader):
    for _ in loader:
        raise ZeroDivisionError


def test_an_iterator_that_was_not_begun_has_no_thread(buffer):
    batches = iter(buffer.loader("step", 8, prefetch=2))
    assert threads() == []
    del batches


def test_an_error_of_the_thread_comes_where_the_batch_would_have(buffer):
    fill(buffer, 10)
    batches = iter(buffer.loader("step", 4, epochs=1, prefetch=3, fieldname_map={"none": "x"}))
    with pytest.raises(ValueError, match="fieldname_map names 'none'"):
        next(batches)
    with pytest.raises(InsufficientDataError, match="asked for 64, and 10 match"):
        next(iter(buffer.loader("step", 64, prefetch=3)))

    def items():
        yield 1
        yield 2
        raise ZeroDivisionError

    found = prefetched(items, 5)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_the_state_is_that_of_the_last_batch_handed_out(buffer):
    fill(buffer, 50)
    ahead, plain = (buffer.loader("step", 8, seed=1, epochs=1, prefetch=n) for n in (4, 0))
    for _ in zip(range(3), ahead, plain, strict=False):
        assert ahead.state_dict() == plain.state_dict()
    assert flat(ahead) == flat(plain)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_loader_in_use_can_be_pickled_and_forked(buffer):
    fill(buffer, 50)
    loader = buffer.loader("step", 8, seed=1, epochs=1, prefetch=2)
    batches = iter(loader)
    next(batches)
    assert sorted(flat(pickle.loads(pickle.dumps(loader)))) == list(range(50))
    assert run_at_once([(sorted_actions, loader)] * 2) == [list(range(50))] * 2
    with pytest.raises(RuntimeError, match="begin another one after the fork"):
        run_at_once([(next, batches)])
    assert sum(len(batch) for batch in actions(batches)) == 42


def sorted_actions(loader):
    return sorted(flat(loader))


def test_a_database_in_memory_is_read_ahead_too():
    with ReplayBuffer("sqlite://", fields=FIELDS) as buffer:
        fill(buffer, 20)
        for batch in buffer.loader("step", 4, epochs=2, prefetch=3):
            assert len(buffer) == 20
            assert batch.n_rows == 4
