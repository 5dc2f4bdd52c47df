"""A hot standby of PostgreSQL: what it shows, what it costs to read there, what it refuses."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageBusyError, StorageReadOnlyError
from sqlbuffer.rate_limits import RateLimiter
from tests.conftest import close_pool
from tests.support.processes import wait_until
from tests.support.servers import primary_and_standby, server_programs, wait_for_replay
from tests.support.sql import buffer_id, run, run_outside_transaction, scalar
from tests.support.stepped_rows import make_rows, steps_of
from tests.support.watch import watched


@pytest.fixture(scope="module")
def servers():
    programs = server_programs()
    if programs is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    with primary_and_standby(programs) as (primary, standby):
        yield primary, standby


class Pair:
    """A buffer on the primary, and the same one on the standby."""

    def __init__(self, servers, name):
        self.primary, self.standby = servers
        self.name = name
        self.buffer = ReplayBuffer(self.primary.url, name=name, create=True)

    def replica(self, **options):
        """Return the buffer as the standby shows it when all has arrived there."""
        wait_for_replay(self.primary, self.standby)
        return ReplayBuffer(self.standby.url, name=self.name, **options)

    def replayed(self):
        wait_for_replay(self.primary, self.standby)

    def age(self):
        """Make the rows that are stored an hour older, by the primary's clock."""
        run(
            self.primary.url,
            "UPDATE experiences SET inserted_at = inserted_at - interval '1 hour' "
            "WHERE buffer_id = (SELECT id FROM buffers WHERE name = :name)",
            name=self.name,
        )

    @contextmanager
    def open_insert(self, task):
        """Yield while a transaction of plain SQL has inserted a row and is not committed."""
        with psycopg.connect(self.primary.url) as connection:
            connection.execute(
                "INSERT INTO experiences (buffer_id, id, task_id, task_name, agent_id, step) "
                "SELECT id, %s, %s, 'a task', 'a1', -1 FROM buffers WHERE name = %s",
                (task, task, self.name),
            )
            yield

    def close(self):
        self.buffer.close()
        close_pool(self.standby.url)


@pytest.fixture
def pair(servers, request):
    pair = Pair(servers, request.node.name)
    yield pair
    pair.close()


@contextmanager
def rows_fetched(url):
    """Yield a function that returns how many rows were fetched since the beginning."""
    with watched(url) as watch:
        yield lambda: watch.rows_fetched + watch.rows_scanned


def test_len_counts_old_rows_once(pair):
    pair.buffer.store_batch(make_rows(range(12_000)))
    pair.age()
    replica = pair.replica()
    assert [len(replica) for _ in range(3)] == [12_000] * 3
    with rows_fetched(pair.standby.url) as fetched:
        assert len(replica) == 12_000
        assert fetched() < 10_000
    assert replica.stats().rows == 12_000


def test_a_row_that_is_committed_late_below_old_ones_is_counted(pair):
    with pair.open_insert("late"):
        pair.buffer.store_batch(make_rows(range(5_000)))
        pair.age()
        replica = pair.replica()
        assert [len(replica) for _ in range(3)] == [5_000] * 3
    pair.replayed()
    assert [len(replica) for _ in range(3)] == [5_001] * 3


def test_get_all_shows_what_was_there_at_its_start_in_little_memory(pair):
    with pair.open_insert("late"):
        pair.buffer.store_batch(make_rows(range(20_000)))
        replica = pair.replica()
        tracemalloc.start()
        pages = iter(replica.get_all())
        steps = steps_of([next(pages)])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    pair.buffer.store_batch(make_rows(range(20_000, 20_010)))
    pair.replayed()
    assert steps + steps_of(pages) == list(range(20_000))
    assert peak < 1_000_000
    assert len(list(replica.get_all())) == 20_011


def test_the_rows_inserted_are_exact(pair):
    pair.buffer.store_batch(make_rows(range(7)))
    replica = pair.replica()
    inserted = "SELECT inserted FROM v_flow WHERE buffer = :name"
    assert replica.stats().inserted == 7
    assert replica.stats().evicted == 0
    assert replica.flow().inserted == 7
    assert scalar(pair.standby.url, inserted, name=pair.name) == 7


@pytest.mark.parametrize(
    "write",
    [
        lambda buffer, _: buffer.store_batch(make_rows(range(2))),
        lambda buffer, _: buffer.clear(),
        lambda buffer, _: buffer.set_clock(3),
        lambda _, url: ReplayBuffer(url, name="new"),
    ],
    ids=["store", "clear", "set_clock", "new buffer"],
)
def test_a_write_names_the_standby_and_the_primary(pair, write):
    replica = pair.replica()
    with pytest.raises(StorageReadOnlyError, match=r"server is a standby.* the primary") as caught:
        write(replica, pair.standby.url)
    assert "role" not in str(caught.value)


@pytest.mark.parametrize("limited", ["before", "after"])
def test_a_rate_limiter_is_refused_by_name(pair, limited):
    pair.buffer.store_batch(make_rows(range(50)))
    limiter = RateLimiter(samples_per_insert=8.0, min_size=100)
    if limited == "before":
        pair.buffer.set_rate_limiter(limiter)
        replica = pair.replica()
    else:
        replica = pair.replica()
        assert len(replica.sample(4)) == 4
        pair.buffer.set_rate_limiter(limiter)
        pair.replayed()
        assert replica.flow().policy == limiter
    with pytest.raises(StorageReadOnlyError, match=r"has a rate limiter .* server is a standby"):
        replica.sample(4)


@pytest.fixture
def impatient_standby(pair):
    """The standby ends at once a query that it would have to wait for."""
    delay = "ALTER SYSTEM SET max_standby_streaming_delay = {}"
    for value in ("0", None):
        if value is None:
            yield pair.standby
        run_outside_transaction(pair.standby.url, delay.format(value or "DEFAULT"))
        run(pair.standby.url, "SELECT pg_reload_conf()")


class Conflicts:
    """Has the standby end queries on experiences: they wait there for a lock while it is to replay
    one on a table that they hold.
    """

    def __init__(self, pair):
        self._primary, self._standby = pair.primary.url, pair.standby.url
        self._ended = None

    @contextmanager
    def queries_wait(self):
        with psycopg.connect(self._primary) as connection:
            connection.execute("LOCK TABLE experiences IN ACCESS EXCLUSIVE MODE")
            yield

    def end_next_query(self):
        """Wait for a query that waits, and have it ended."""
        wait_until(lambda: self._waiting() not in (None, self._ended), "a query that waits")
        self._ended = self._waiting()
        run(self._primary, "LOCK TABLE buffers IN ACCESS EXCLUSIVE MODE")

    def _waiting(self):
        found = run(
            self._standby,
            "SELECT pid, xact_start FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'",
        )
        return found[0] if found else None


@pytest.fixture
def conflicts(pair, impatient_standby):
    return Conflicts(pair)


def test_a_query_that_the_standby_ends_again_and_again_is_made_again(pair, conflicts):
    pair.buffer.store_batch(make_rows(range(10)))
    replica = pair.replica()
    with ThreadPoolExecutor(1) as pool:
        with conflicts.queries_wait():
            pair.replayed()
            drawn = pool.submit(lambda: len(replica.sample(4)))
            for _ in range(11):  # a deadlock is tried again ten times
                conflicts.end_next_query()
        assert drawn.result() == 4


def test_without_retries_the_error_names_the_standby_and_the_setting(pair, conflicts):
    pair.buffer.store_batch(make_rows(range(10)))
    replica = pair.replica(retry_s=0.0)
    with ThreadPoolExecutor(1) as pool, conflicts.queries_wait():
        pair.replayed()
        drawn = pool.submit(lambda: len(replica.sample(4)))
        conflicts.end_next_query()
        with pytest.raises(StorageBusyError, match=r"server is a standby.* hot_standby_feedback"):
            drawn.result()


@pytest.mark.parametrize("fields", [None, {"x": "int64"}])
def test_a_buffer_is_copied_from_a_standby(servers, sqlite_url, fields):
    primary, standby = servers
    name = "copied typed" if fields else "copied rows"
    with ReplayBuffer(primary.url, name=name, create=True, fields=fields) as source:
        for i in range(3):
            values = {"x": list(range(40))} if fields else {"state": list(range(40))}
            source.store_episode(values, episode_id=f"e{i}")
        for table in ("experiences", "chunks"):
            older = f"UPDATE {table} SET inserted_at = inserted_at - interval '1 hour'"
            run(primary.url, f"{older} WHERE buffer_id = {buffer_id(primary.url, name)}")
        source.store_episode({field: own[:1] for field, own in values.items()})
        wait_for_replay(primary, standby)
        target = ReplayBuffer(sqlite_url, "copy", config=source.config)
        with ReplayBuffer(standby.url, name=name, create=False) as replica:
            report = replica.copy_to(target)
        # A standby leaves out the newest steps until others are committed after them.
        copied = [(row.seq, row.exp_data, row.fields) for row in target]
        assert copied == [(row.seq, row.exp_data, row.fields) for row in source][: len(copied)]
        assert report.n_steps == len(copied) >= 120


def test_the_newest_rows_are_copied_when_the_primary_is_idle(servers, sqlite_url):
    primary, standby = servers
    with ReplayBuffer(primary.url, name="idle", create=True, fields={"x": "int64"}) as source:
        source.extend({"x": range(40)})
        wait_for_replay(primary, standby)
        target = ReplayBuffer(sqlite_url, "copy", config=source.config)
        with ReplayBuffer(standby.url, name="idle", create=False) as replica:
            assert replica.copy_to(target).n_steps == 40
        assert [row.fields["x"] for row in target] == list(range(40))
