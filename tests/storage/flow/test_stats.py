"""Figures of a buffer, against what the tests know of it."""

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, RateLimiter, ReplayBuffer
from sqlbuffer.errors import ArgumentError
from sqlbuffer.stats import distribution
from sqlbuffer.storage.flow import share_since
from sqlbuffer.storage.inspect import listings
from tests.support.processes import run_at_once, running
from tests.support.sql import buffer_id, connected, fill, run


def ago(url, seconds):
    """Return the SQL of a time in the past."""
    if url.startswith("sqlite"):
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{seconds} seconds')"
    return f"now() - interval '{seconds} seconds'"


def rows(n, version=None):
    meta = {"model_version": version}
    return [
        DataRow(ExpMeta("t", None, "a", i, 0.0, episode_id=f"e{i // 5}", **meta), Experience(i))
        for i in range(n)
    ]


def test_counts_are_those_of_all_that_was_done(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=30) as buffer:
        for _ in range(4):
            buffer.store_batch(rows(10))
        for _ in range(3):
            buffer.sample(8)
        found = buffer.stats()
        assert (found.buffer, found.rows, found.capacity, found.fill) == ("default", 30, 30, 1.0)
        assert (found.inserted, found.evicted) == (40, 10)
        assert (found.sampled, found.batches, found.samples_per_insert) == (24, 3, 24 / 40)
        assert found.episodes == 2  # two ids, sent again with each batch
        assert 0 <= found.newest_age_s <= found.oldest_age_s < 60
        assert (found.uses, found.priorities, found.staleness, found.clock) == (None,) * 4
        assert found.waiting == ()
        buffer.clear()
        found = buffer.stats()
        assert (found.rows, found.inserted, found.evicted) == (0, 40, 40)
        assert found.insert_rate is None


def test_an_empty_buffer_has_figures_as_well(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        found = buffer.stats()
    assert (found.rows, found.inserted, found.evicted, found.sampled) == (0, 0, 0, 0)
    assert (found.capacity, found.fill, found.samples_per_insert) == (None, None, None)
    assert (found.oldest_age_s, found.newest_age_s) == (None, None)
    assert (found.insert_rate, found.sample_rate) == (0.0, 0.0)


@pytest.mark.parametrize("fields", [None, {"obs": "float32"}])
def test_numbers_of_open_transactions_are_not_evicted(make_database_url, fields):
    postgres_url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(postgres_url, fields=fields, max_capacity=1_000) as buffer:
        column = {"obs" if fields else "state": np.arange(10, dtype="float32")}
        buffer.extend(column)
        with connected(postgres_url) as writer:
            reserve = f"SELECT sqlbuffer_reserve_v1({buffer_id(postgres_url)}, 20)"
            writer.exec_driver_sql(reserve)
            for stored in (20, 30):
                buffer.extend(column)
                for found in (buffer.stats(), *listings.figures(postgres_url, None, 60.0)):
                    assert (found.rows, found.inserted, found.evicted) == (stored, stored + 20, 0)
            assert buffer.delete(QueryBuilder().gte("seq", 35).build()) == 16
            writer.rollback()
        for found in (buffer.stats(), *listings.figures(postgres_url, None, 60.0)):
            assert (found.rows, found.inserted, found.evicted) == (14, 50, 36)


def store_many(url, n):
    with ReplayBuffer(url) as buffer:
        for _ in range(n):
            buffer.store_batch(rows(10))


@pytest.mark.thorough
def test_the_count_of_evicted_rows_never_falls_while_others_write(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=700) as buffer:
        with running([(store_many, buffer_url, 40) for _ in range(3)]) as writers:
            seen = []
            while writers.running:
                found = buffer.stats()
                seen.append((found.inserted, found.evicted))
            writers.results()
        assert seen == sorted(seen, key=lambda each: each[1])
        # The buffer has room for the first 700.
        assert {evicted for inserted, evicted in seen if inserted <= 700} <= {0}
        assert all(evicted <= inserted - 700 for inserted, evicted in seen if evicted)
        assert buffer.stats().evicted == 500


def sample_and_tell(url, n):
    with ReplayBuffer(url) as buffer:
        buffer.sample(n)
        return buffer.stats().sampled


@pytest.mark.thorough
def test_processes_count_together(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(rows(20))
        run_at_once([(sample_and_tell, buffer_url, n) for n in (3, 4)])
        buffer.sample(5)
        assert buffer.stats().sampled == 12
        assert buffer.stats().batches == 3


@pytest.mark.each_value
@pytest.mark.parametrize("window_s", [60, 600])
def test_the_rate_of_inserts_is_that_of_the_window(buffer_url, window_s):
    with fill(buffer_url, 1_000) as buffer:
        run(buffer_url, f"UPDATE buffers SET created_at = {ago(buffer_url, 7200)}")
        for low, high, seconds in [(0, 500, 3000), (500, 900, 300), (900, 1_000, 5)]:
            run(
                buffer_url,
                f"UPDATE experiences SET inserted_at = {ago(buffer_url, seconds)} "
                "WHERE seq > :low AND seq <= :high",
                low=low,
                high=high,
            )
        found = buffer.stats(window_s)
        assert found.window_s == window_s
        assert found.insert_rate == pytest.approx({60: 100, 600: 500}[window_s] / window_s)
        assert found.oldest_age_s == pytest.approx(3000, abs=60)
        # With holes, at the place of the search too.
        run(buffer_url, "DELETE FROM experiences WHERE seq % 3 = 1 AND seq < 900")
        assert buffer.stats(60).insert_rate == pytest.approx(100 / 60)


def test_a_rate_whose_rows_have_left_is_that_since_the_oldest_held(buffer_url):
    with fill(buffer_url, 1_000, max_capacity=100) as buffer:
        run(buffer_url, f"UPDATE buffers SET created_at = {ago(buffer_url, 7200)}")
        run(buffer_url, f"UPDATE experiences SET inserted_at = {ago(buffer_url, 20)}")
        assert buffer.stats(60).insert_rate == pytest.approx(100 / 20, rel=0.5)
        run(buffer_url, f"UPDATE experiences SET inserted_at = {ago(buffer_url, 200)}")
        assert buffer.stats(60).insert_rate == 0.0


def test_the_rate_of_samples_is_that_of_the_window(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(rows(20))
        run(buffer_url, f"UPDATE buffers SET created_at = {ago(buffer_url, 7200)}")
        number = buffer_id(buffer_url)
        now = int(run(buffer_url, unix_of(buffer_url))[0][0])
        for age, holder, n in [(5, "a", 600), (5, "b", 300), (100, "a", 6_000), (5000, "a", 9)]:
            run(
                buffer_url,
                "INSERT INTO flow_history (buffer_id, bucket, holder, n_sampled, n_batches) "
                "VALUES (:id, :bucket, :holder, :n, 1)",
                id=number,
                bucket=(now - age) // 10,
                holder=holder,
                n=n,
            )
        assert buffer.stats(60).sample_rate == pytest.approx(900 / 60)
        assert buffer.stats(600).sample_rate == pytest.approx(6_900 / 600)


def test_the_draws_of_a_young_buffer_all_count_in_its_rate(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(rows(20))
        run(buffer_url, f"UPDATE buffers SET created_at = {ago(buffer_url, 3)}")
        # The interval began up to ten seconds earlier, and has draws of these three seconds alone.
        now = int(run(buffer_url, unix_of(buffer_url))[0][0])
        for bucket in {(now - 3) // 10, now // 10}:
            run(
                buffer_url,
                "INSERT INTO flow_history (buffer_id, bucket, holder, n_sampled, n_batches) "
                "VALUES (:id, :bucket, 'a', 600, 1)",
                id=buffer_id(buffer_url),
                bucket=bucket,
            )
        found = buffer.stats(60)
        n_sampled = 600 * len({(now - 3) // 10, now // 10})
        assert found.sample_rate * found.window_s == pytest.approx(n_sampled)


def unix_of(url):
    if url.startswith("sqlite"):
        return "SELECT strftime('%s', 'now')"
    return "SELECT extract(epoch FROM now())::bigint"


def test_uses_of_leased_rows_are_those_that_were_acknowledged(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=3) as buffer:
        buffer.store_batch(rows(5))
        with buffer.lease(2, order="fifo"):
            assert list(buffer.stats().uses.values) == [0] * 5
        assert sorted(buffer.stats().uses.values) == [0, 0, 0, 1, 1]


def test_uses_priorities_and_staleness_are_those_of_the_rows(buffer_url):
    with ReplayBuffer(buffer_url, priorities=True, max_use=3) as buffer:
        for version in (7, 9, None, 12):
            buffer.store_batch(rows(5, version))
        found = buffer.stats()
        assert found.staleness is None
        assert (found.uses.n, found.uses.max) == (20, 0)
        assert (found.priorities.min, found.priorities.max) == (1.0, 1.0)
        number = buffer_id(buffer_url)
        run(buffer_url, "UPDATE buffers SET clock = 10")
        run(buffer_url, "INSERT INTO uses VALUES (:id, 1, 3), (:id, 2, 1)", id=number)
        run(buffer_url, "INSERT INTO priorities VALUES (:id, 1, 0.25), (:id, 2, 2)", id=number)
        given = "CASE WHEN seq IN (1, 3) THEN 0.5 WHEN seq < 10 THEN 4.0 END"
        run(buffer_url, f"UPDATE experiences SET initial_priority = {given}")
        found = buffer.stats()
        assert found.clock == 10
        # 3 behind, 1 behind, not known, and newer than the clock: fresh.
        assert sorted(found.staleness.values) == [0] * 5 + [1] * 5 + [3] * 5
        assert sorted(found.uses.values) == [0] * 18 + [1, 3]
        assert sorted(found.priorities.values) == [0.25, 0.5, *[1.0] * 11, 2.0, *[4.0] * 6]
        assert found.uses.mean == 4 / 20


@pytest.mark.thorough
@pytest.mark.slow
def test_a_large_buffer_is_told_by_a_uniform_sample(buffer_url):
    with fill(buffer_url, 20_000, max_capacity=20_000) as buffer:
        run(buffer_url, "UPDATE experiences SET model_version = seq")
        run(buffer_url, "UPDATE buffers SET clock = 20000")
        found = buffer.stats().staleness
        assert 1_500 < found.n <= 2_000
        # Five standard errors of a uniform sample of 1,900.
        assert found.mean == pytest.approx(10_000, abs=5 * 20_000 / np.sqrt(12 * found.n))
        assert found.median == pytest.approx(10_000, abs=5 * 10_000 / np.sqrt(found.n))
        assert 0 <= found.min < found.p10 < found.median < found.p90 < found.max < 20_000


def test_calls_that_wait_are_counted(buffer_url):
    with ReplayBuffer(buffer_url, rate_limiter=RateLimiter(1)) as buffer:
        store = buffer._store
        store.pacer.write_mark("sample", 5, "one")
        store.pacer.write_mark("insert", 7, "two")
        run(
            buffer_url,
            f"UPDATE flow_waits SET heartbeat_at = {ago(buffer_url, 60)} WHERE holder = 'two'",
        )
        found = buffer.stats()
        assert (found.samples_waiting, found.inserts_waiting, len(found.waiting)) == (1, 0, 2)


@pytest.mark.parametrize("window_s", [0, -1, float("nan"), True, None, "60", 3_601])
def test_a_window_that_cannot_be_looked_at_is_refused(window_s):
    with ReplayBuffer("sqlite://") as buffer, pytest.raises(ArgumentError, match="window_s"):
        buffer.stats(window_s)


def test_a_distribution_of_nothing_is_none_and_of_one_is_that():
    assert distribution([]) is None
    one = distribution([3])
    assert (one.n, one.mean, one.min, one.p10, one.median, one.p90, one.max) == (1, *[3.0] * 6)


@pytest.mark.parametrize(
    ("start", "now", "share"),
    [
        (95.0, 130.0, 1.0),  # the whole bucket, from 100 to 110
        (100.0, 130.0, 1.0),
        (104.0, 130.0, 0.6),
        (110.0, 130.0, 0.0),
        (115.0, 130.0, 0.0),
        (95.0, 105.0, 1.0),
        (103.0, 104.0, 0.25),  # by then it has four seconds in it
        (103.999, 104.0, 0.00025),
    ],
)
def test_of_a_bucket_the_part_of_the_window_is_counted(start, now, share):
    assert share_since(start, 10, now) == pytest.approx(share)


def test_closing_counts_what_was_sampled(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(rows(20))
        for _ in range(5):
            buffer.sample(10)
    with ReplayBuffer(buffer_url) as again:
        stats = again.stats()
    assert (stats.sampled, stats.batches) == (50, 5)
