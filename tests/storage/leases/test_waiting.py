"""Consumers that find too little look now and then, and wake up."""

import threading
import time
from itertools import pairwise

import pytest
from sqlalchemy import event

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.storage.leases import leases
from tests.support.leases import grow_old, row_of, store
from tests.support.processes import wait_until


class Consumer:
    """Leases in a thread, and notes when it had its batch."""

    def __init__(self, buffer, n, **options):
        self.options = {"timeout_s": 60, **options}
        self.batch, self.error, self.woken_at = None, None, 0.0
        self._thread = threading.Thread(target=self._run, args=(buffer, n))
        self._thread.start()

    def _run(self, buffer, n):
        try:
            with buffer.lease(n, **self.options) as batch:
                self.woken_at = time.monotonic()
                self.batch = batch
        except Exception as error:
            self.error = error

    def join(self):
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.error is None, self.error
        return self.batch


@pytest.fixture
def looks(monkeypatch):
    """Count the looks of consumers."""
    found = []
    look = leases.Look._look

    def counted(self):
        found.append(time.monotonic())
        return look(self)

    monkeypatch.setattr(leases.Look, "_look", counted)
    return found


def test_a_consumer_wakes_up_when_there_is_enough(buffer_url, looks):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(2))
        consumer = Consumer(buffer, 3, order="fifo")
        wait_until(lambda: looks, "the consumer looks")
        assert consumer.batch is None
        buffer.store(row_of(2))
        assert consumer.join().seqs.tolist() == [1, 2, 3]


def test_a_consumer_wakes_up_when_others_give_back(buffer_url, looks):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(3))
        with buffer.lease(2):
            consumer = Consumer(buffer, 2)
            wait_until(lambda: looks, "the consumer looks")
        assert len(consumer.join()) == 2


def test_a_consumer_wakes_up_when_the_clock_goes_back(buffer_url, looks):
    with ReplayBuffer(buffer_url, leases=True, max_staleness=1) as buffer:
        buffer.store_batch([row_of(1, model_version=1)])
        buffer.set_clock(9)
        consumer = Consumer(buffer, 1)
        wait_until(lambda: looks, "the consumer looks")
        buffer.set_clock(2)
        assert len(consumer.join()) == 1


@pytest.mark.slow
def test_a_consumer_of_groups_wakes_up_when_one_is_whole_or_late(buffer_url, looks):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(2), task="a")
        options = {"group_by": "task_id", "min_group_size": 3, "group_timeout_s": 900}
        consumer = Consumer(buffer, 1, **options)
        wait_until(lambda: looks, "the consumer looks")
        buffer.store(row_of(2, task="a"))
        assert len(consumer.join()) == 3
        store(buffer, range(2), task="b")
        looks.clear()
        consumer = Consumer(buffer, 1, **options, order="freshest", condition=None)
        consumer.join()
        dropper = Consumer(buffer, 2, **options, on_partial="drop")
        looks.clear()
        wait_until(lambda: looks, "the consumer looks")
        grow_old(buffer_url, "task_id = 'b'")
        wait_until(lambda: len(buffer) == 3, "the late group is dropped")
        store(buffer, range(3), task="c")
        assert len(dropper.join()) == 6


@pytest.mark.thorough
def test_an_idle_consumer_sends_four_statements_a_second_at_most(buffer_url):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(2))
        sent = []
        engine = buffer._store.engine
        began = time.monotonic()

        def note(_connection, _cursor, statement, *_):
            sent.append((time.monotonic() - began, statement))

        event.listen(engine, "before_cursor_execute", note)
        try:
            with pytest.raises(InsufficientDataError), buffer.lease(3, timeout_s=2.2):
                pass
        finally:
            event.remove(engine, "before_cursor_execute", note)
        # What it sends at first, and to say at the end what is missing, is no idling.
        idle = [at for at, statement in sent if "v_windows" in statement and 0.2 < at < 2.2]
        assert 2 <= len(idle) <= 8
        gaps = [later - earlier for earlier, later in pairwise(idle)]
        assert min(gaps) >= leases.PAUSE_S * 0.9
        between = [statement for at, statement in sent if idle[0] <= at <= idle[-1]]
        assert len(between) == len(idle)


def test_a_wait_that_is_cancelled_in_another_thread_ends(buffer_url, looks):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        lease = buffer.lease(1, timeout_s=600)
        failed = []

        def wait():
            with pytest.raises(InsufficientDataError, match="cancelled"):
                lease.__enter__()
            failed.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: looks, "the consumer looks")
        lease.cancel()
        thread.join(60)
        assert failed == [True]
