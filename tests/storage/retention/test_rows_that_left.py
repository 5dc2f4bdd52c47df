"""What is said of rows that left, wherever figures are shown."""

import pytest
from typer.testing import CliRunner

from sqlbuffer import ReplayBuffer
from sqlbuffer.cli import app
from sqlbuffer.monitoring import TensorBoardMonitor, prometheus_text
from tests.support.limited_rows import rows_of
from tests.support.sql import run

LIMITS = {"max_staleness": 1, "max_use": 1, "current_session_only": True, "max_capacity": 12}


@pytest.fixture
def buffer(buffer_url):
    """A buffer of 2 rows; 3 were evicted, 1 deleted, 5 expired, 2 used up, 4 of another session."""
    with ReplayBuffer(buffer_url, **LIMITS) as buffer:
        buffer.start_session("now")
        buffer.store_batch(rows_of([1] * 2))
        buffer.sample(2)
        buffer.set_clock(1)
        buffer.expire()
        buffer.store_batch(rows_of([1] * 9))
        buffer.store_batch(rows_of([9] * 4), session_id="old")
        buffer.delete({"field": "seq", "op": "eq", "value": 8})
        buffer.store_batch(rows_of([9] * 2))
        buffer.set_clock(9)
        buffer.expire()
        run(buffer_url, "UPDATE buffers SET n_partial = 1")
        yield buffer


def test_stats_tell_causes_apart_and_leave_the_rest(buffer):
    found = buffer.stats()
    assert (found.rows, found.inserted) == (2, 17)
    assert (found.expired, found.used_up, found.other_session, found.partial) == (5, 2, 4, 1)
    # Evicted and deleted; the partial one is made up.
    assert found.evicted == 3 + 1 - 1


def test_views_and_programs_show_them(buffer, buffer_url):
    counts = "expired, used_up, other_session, partial"
    assert run(buffer_url, f"SELECT rows, {counts} FROM v_buffers") == [(2, 5, 2, 4, 1)]
    invoke = CliRunner().invoke
    info = invoke(app, ["info", buffer_url, "--json"]).output.replace(" ", "")
    watch = invoke(app, ["watch", buffer_url, "--once", "--json"]).output.replace(" ", "")
    for text in (info, watch):
        for pair in ('"expired":5', '"used_up":2', '"other_session":4', '"partial":1'):
            assert pair in text, text
    assert 'sqlbuffer_expired_rows_total{buffer="default"} 5.0' in prometheus_text(buffer)
    assert 'sqlbuffer_other_session_rows_total{buffer="default"} 4.0' in prometheus_text(buffer)


def test_tensorboard_is_given_them(buffer):
    class Writer:
        def __init__(self):
            self.found = {}

        def add_scalar(self, tag, value, step):
            self.found[tag.rpartition("/")[2]] = value

        def add_histogram(self, tag, values, step):
            pass

    writer = Writer()
    TensorBoardMonitor(buffer, writer).write(step=1)
    assert {"expired": 5, "used_up": 2, "other_session": 4}.items() <= writer.found.items()
