"""An interrupt ends a query of the helper that reads, also on the server."""

import signal
import sys
import time
from contextlib import contextmanager

import pytest
from psycopg.pq import TransactionStatus

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database import readonly
from tests.support import sql
from tests.support.processes import wait_until
from tests.support.proxy import proxied

ENDLESS = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT {} FROM n"
ASLEEP = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
)


def test_an_interrupt_between_a_question_and_its_answer_ends_both(postgres_url):
    with pytest.raises(KeyboardInterrupt), interrupted_when_asked():
        readonly.query(postgres_url, "SELECT pg_sleep(600)")
    wait_until(lambda: not sql.run(postgres_url, ASLEEP), "the end of the query")
    assert readonly.query(postgres_url, "SELECT 7").rows == [(7,)]


def test_an_interrupt_ends_a_question_that_is_on_its_way_to_the_server(postgres_url):
    with proxied(postgres_url) as proxy:
        proxy.slow = b"FETCH"
        with pytest.raises(KeyboardInterrupt), interrupted_when_asked():
            readonly.query(proxy.url, "SELECT pg_sleep(600)")
        wait_until(lambda: proxy.n_slow, "the question at the server")
        time.sleep(0.2)
        wait_until(lambda: not sql.run(postgres_url, ASLEEP), "the end of the query")


@contextmanager
def interrupted_when_asked():
    """Interrupt as soon as the driver has sent what it will fetch."""

    def trace(frame, event, _argument):
        if frame.f_code.co_name != "_exec_command":
            return None
        status = frame.f_locals["self"].pgconn.transaction_status
        is_asked = event == "line" and status == TransactionStatus.ACTIVE
        if is_asked and b"FETCH" in frame.f_locals["command"]:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


# SQLite searches the longer text for seconds without a look at anything else.
STUCK = "SELECT instr(hex(zeroblob(7000000)), hex(zeroblob(3500000)) || '1')"


def asked(url, statement):
    with readonly.asked(url, statement) as found:
        return list(found.rows)


@pytest.mark.parametrize(
    ("query", "statement"),
    [(readonly.query, ENDLESS.format("count(*)")), (asked, STUCK)],
    ids=["of the library", "of a user"],
)
def test_ctrl_c_ends_a_question_that_sqlite_works_on(sqlite_url, query, statement):
    ReplayBuffer(sqlite_url).close()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            query(sqlite_url, statement)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
