"""Waiting steps that an earlier flush may have stored: nothing is lost, nothing is stored twice."""

import signal
from contextlib import contextmanager

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageUnreachableError
from sqlbuffer.storage.buffers import writes
from sqlbuffer.storage.database import errors
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.writing import chunks, rows
from tests.support.proxy import proxied
from tests.support.sql import connected, run, scalar
from tests.support.waiting_steps import NEVER_S

TYPED = {"fields": {"x": "int64"}}


def added(buffer):
    return lambda x: buffer.add(x=x, step=x)


def appended(buffer):
    episode = buffer.episode("t")
    return lambda x: episode.append(**{"x" if buffer.fields else "state": x})


def added_and_appended(buffer):
    add, append = added(buffer), appended(buffer)
    return lambda x: (add if x % 2 else append)(x)


# The buffer, and what returns how a step gets there.
WAYS = {
    "add": (TYPED, added),
    "episode": (TYPED, appended),
    "both": (TYPED, added_and_appended),
    "rows": ({}, appended),
}


class Clock:
    """Time that passes only where the library pauses."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def url(make_database_url):
    return make_database_url("postgresql", schema=True)


@pytest.fixture
def proxy(url, monkeypatch):
    monkeypatch.setattr(errors, "time", Clock())
    with proxied(url) as proxy:
        yield proxy
        engine_for(resolve_url(proxy.url)).dispose()


def opened(url, layout, **options):
    return ReplayBuffer(url, flush_s=NEVER_S, **layout, **options)


def values_of(buffer):
    return sorted(
        row.fields["x"] if buffer.fields else row.exp_data.state for row in buffer.get_all()
    )


def lose_the_server(proxy, cut):
    """Cut the next commit, and begin an outage that outlasts `retry_s`."""
    proxy.cuts = [cut]
    proxy.on_cut = lambda: setattr(proxy, "closed", True)


@pytest.mark.combinations
@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("kept", ["the id is kept", "the id is deleted", "there is no id"])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_stored_once_after_a_long_outage(url, proxy, monkeypatch, way, kept, cut):
    layout, writing = WAYS[way]
    if kept == "the id is deleted":
        monkeypatch.setattr(writes, "KEPT_LONGER_S", 0.0)
    with opened(proxy.url, layout, retry_s=0 if kept == "there is no id" else 2) as buffer:
        write = writing(buffer)
        for x in range(4):
            write(x)
        lose_the_server(proxy, cut)
        for _ in range(2):
            with pytest.raises(StorageUnreachableError):
                buffer.flush()
        for x in range(4, 8):
            write(x)  # they wait behind the batch
        if kept == "the id is deleted":
            run(url, "DELETE FROM applied_writes")
        proxy.closed = False
        buffer.flush()
        assert values_of(buffer) == list(range(8))
        write(8)
        buffer.flush()
        assert values_of(buffer) == list(range(9))


@pytest.mark.parametrize("way", ["add", "both", "rows"])
def test_a_batch_that_has_left_meanwhile_is_not_stored_again(url, proxy, way):
    layout, writing = WAYS[way]
    with opened(proxy.url, layout, max_capacity=5) as buffer:
        write = writing(buffer)
        for x in range(4):
            write(x)
        lose_the_server(proxy, "after")
        with pytest.raises(StorageUnreachableError):
            buffer.flush()
        with opened(url, {}) as other:
            other_write = writing(other)
            for x in range(100, 105):
                other_write(x)
        proxy.closed = False
        proxy.cuts = ["after"]  # once more in doubt, when it is asked what became of the batch
        proxy.on_cut = lambda: None
        buffer.flush()
        assert values_of(buffer) == list(range(100, 105))
    assert scalar(url, "SELECT last_value FROM sqlbuffer_seq_1") == 9


@pytest.mark.combinations
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_after_the_commit_leaves_a_queue_that_goes_on(schema_url, monkeypatch, way):
    layout, writing = WAYS[way]

    def interrupted(*_):
        raise KeyboardInterrupt

    with opened(schema_url, layout) as buffer:
        write = writing(buffer)
        for x in range(4):
            write(x)
        with monkeypatch.context() as patch:
            for module in (chunks, rows):
                patch.setattr(module, "clean_after_write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                buffer.flush()
        write(4)
        buffer.flush()
        assert values_of(buffer) == list(range(5))


def test_a_call_that_no_server_has_seen_is_not_in_doubt(proxy, monkeypatch):
    class Starting(Clock):
        def sleep(self, seconds):
            super().sleep(seconds)
            proxy.closed = self.now < 100

    clock = Starting()
    for module in (errors, writes):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(writes, "LONGEST_KEPT_S", 60.0)
    with opened(proxy.url, TYPED, retry_s=1_000) as buffer:
        proxy.closed = True
        proxy.cut_all()
        engine_for(resolve_url(proxy.url)).dispose()
        assert buffer.extend({"x": [1]}).inserted == 1
        assert clock.now >= 100
        assert len(buffer) == 1


@contextmanager
def raised_by_a_signal(error):
    def handle(*_):
        raise error("stop")

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(error):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [TimeoutError, SystemExit, KeyboardInterrupt])
def test_an_error_of_a_signal_handler_leaves_a_usable_pool(url, caplog, error):
    with opened(url, TYPED) as buffer:
        buffer.extend({"x": [0]})
        for x in (1, 2):
            with connected(url) as connection:
                connection.exec_driver_sql("LOCK TABLE chunks IN ACCESS EXCLUSIVE MODE")
                with raised_by_a_signal(error):
                    buffer.extend({"x": [-1]})
                buffer.add(x=x, step=x)
                with raised_by_a_signal(error):
                    buffer.flush()
            assert values_of(buffer) == list(range(x + 1))
    assert not caplog.records
