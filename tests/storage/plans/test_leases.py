"""No claim scans the queue (I9): at 100,000 rows, with and without statistics."""

import time

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer
from sqlbuffer.storage.leases.choosing import ClaimRequest, GroupChoice, Scope, choose_rows
from tests.support.sql import fill, is_sqlite, run

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_ROWS = 100_000
MOST_ROWS_READ = 25_000
MOST_STEPS = 700_000
TABLES = "('experiences', 'episodes', 'queue_items', 'leases')"


def fill_large(url):
    """Fill a buffer of 100,000 rows in tasks of 10, the first 500 of them leased, with versions."""
    with fill(url, N_ROWS, rows_per_task=10, leases=True, max_use=2) as buffer:
        run(url, "UPDATE queue_items SET freshness = seq / 1000")
        with pytest.raises(KeyError), buffer.lease(500, order="fifo"):
            raise KeyError
        buffer.lease(500, order="fifo").__enter__()


@pytest.fixture(scope="module")
def large(large_url):
    with ReplayBuffer(large_url) as buffer:
        yield buffer


class Cost:
    """What a database does for some statements."""

    def __init__(self, connection, tables=TABLES):
        self._tables = tables
        self._driver = connection.connection.driver_connection
        self._is_sqlite = connection.dialect.name == "sqlite"
        self.scanned = self.fetched = self.steps = 0

    def __enter__(self):
        if self._is_sqlite:
            self._driver.set_progress_handler(self._step, 100)
        else:
            self._before = self._rows()
        return self

    def __exit__(self, *_):
        if self._is_sqlite:
            self._driver.set_progress_handler(None, 100)
        else:
            now = self._rows()
            self.scanned, self.fetched = (n - m for n, m in zip(now, self._before, strict=True))

    def _rows(self):
        return self._driver.execute(
            "SELECT sum(seq_tup_read)::bigint, sum(coalesce(idx_tup_fetch, 0))::bigint "
            f"FROM pg_stat_xact_user_tables WHERE relname IN {self._tables}"
        ).fetchone()

    def _step(self):
        self.steps += 100
        return 0


ORDERS = ("random", "fifo", "freshest", "stalest", "least_used")
WANTED = {
    **{order: ClaimRequest(64, 60.0, order=order, is_reused=True) for order in ORDERS},
    **{
        f"groups, {order}": ClaimRequest(
            8,
            60.0,
            order=order,
            group_by="task_id",
            min_group_size=10,
            group_timeout_s=600.0,
            is_reused=True,
        )
        for order in ORDERS
    },
}


@pytest.mark.parametrize("what", WANTED)
def test_claims_do_not_scan_the_queue(large, what):
    store, wanted = large._store, WANTED[what]
    with translated(store.url), store.leases.claiming() as connection:
        now = store.source.window_answered(answer(connection))
        scope = Scope(store.info.id, now.low, now.high)
        with Cost(connection) as cost:
            if wanted.group_by is None:
                found = choose_rows(connection, scope, wanted)
            else:
                found = GroupChoice(connection, scope, wanted).choose()
    assert len(found) == wanted.n
    assert cost.scanned == 0
    assert cost.fetched < MOST_ROWS_READ
    assert cost.steps < MOST_STEPS
    assert cost.fetched or cost.steps


@pytest.mark.parametrize("max_use", [2])
def test_a_lease_and_its_acknowledgement_do_not_scan(large, max_use):
    store = large._store
    url = str(store.url.render_as_string(hide_password=False))
    counters = (
        f"SELECT sum(seq_tup_read), sum(idx_tup_fetch) FROM pg_stat_user_tables "
        f"WHERE relname IN {TABLES}"
    )
    if is_sqlite(url):
        return
    store.engine.dispose()  # of what earlier tests did in its sessions
    before = None
    while before != (before := run(url, counters)[0]):  # these end a moment later
        time.sleep(0.3)
    for _ in range(max_use):
        with large.lease(64, order="freshest", timeout_s=0):
            pass
    store.engine.dispose()  # sessions that end report what they did
    run(url, "SELECT pg_stat_force_next_flush()")
    after = run(url, counters)[0]
    assert after[0] - before[0] < 1_000
    assert after[1] - before[1] < MOST_ROWS_READ


def test_the_witness_would_see_a_scan(large):
    """Groups that are not there have every row looked at."""
    store = large._store
    with translated(store.url), store.leases.claiming() as connection:
        now = store.source.window_answered(answer(connection))
        wanted = ClaimRequest(1, 60.0, order="fifo", group_by="task_id", min_group_size=11)
        with Cost(connection) as cost:
            choice = GroupChoice(connection, Scope(store.info.id, now.low, now.high), wanted)
            assert choice.choose() == []
    assert cost.fetched + cost.scanned > 0.9 * N_ROWS or cost.steps > MOST_STEPS


def test_the_buffer_is_as_large_as_it_says(large):
    assert isinstance(large, ReplayBuffer)
    assert len(large) > 0.99 * N_ROWS
