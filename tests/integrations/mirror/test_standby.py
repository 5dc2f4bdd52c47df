"""A mirror that follows a standby misses nothing and reads nothing twice, nor after a promotion."""

import random

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.conftest import close_pool
from tests.support.mirrors import LATE_CHUNK, assert_same_draws
from tests.support.processes import running, wait_until
from tests.support.servers import primary_and_standby, server_programs, wait_for_replay
from tests.support.sql import buffer_id, connected

SETTINGS = {"fields": {"x": "int64"}, "max_capacity": 3_000}


@pytest.fixture
def servers():
    programs = server_programs()
    if programs is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    with primary_and_standby(programs) as (primary, standby):
        yield primary, standby
        close_pool(standby.url)
        close_pool(primary.url)


def every(mirror):
    """Return the value of each step of the mirror."""
    return sorted(x for batch in mirror.loader("step", 500, epochs=1) for x in batch.x.tolist())


def test_a_transaction_that_is_open_longer_delays_nothing_and_is_not_missed(servers):
    primary, standby = servers
    with ReplayBuffer(primary.url, create=True, **SETTINGS) as buffer:
        buffer.extend({"x": range(10)})
        wait_for_replay(primary, standby)
        with (
            ReplayBuffer(standby.url) as replica,
            replica.mirror(refresh_s=600) as mirror,
            connected(primary.url) as writer,
        ):
            writer.exec_driver_sql(LATE_CHUNK)  # a copy of the first ten
            for n in (20, 30):
                buffer.extend({"x": range(n - 10, n)})
                wait_for_replay(primary, standby)
                mirror.refresh()
                assert every(mirror) == list(range(n))
            mirror.refresh()
            assert every(mirror) == list(range(30))
            writer.commit()
            wait_for_replay(primary, standby)
            assert mirror.lag().steps == 10
            mirror.refresh()
            assert every(mirror) == sorted([*range(10), *range(30)])
            assert mirror.lag().steps == 0


def write(url, writer):
    """Store three windows full with two others, and burn numbers."""
    rng = random.Random(writer)
    with ReplayBuffer(url) as buffer:
        number = buffer_id(url)
        for n in range(150):
            buffer.extend({"x": np.arange(20) + writer * 10**6 + n * 20})
            if rng.random() < 0.2:
                with connected(url) as connection:
                    connection.exec_driver_sql(f"SELECT sqlbuffer_reserve_v1({number}, 5)")
                    connection.rollback()


def by_seq(buffer):
    return {
        seq: x
        for batch in buffer.loader("step", 500, epochs=1)
        for seq, x in zip(batch.info["seq"].tolist(), batch.x.tolist(), strict=True)
    }


def test_a_mirror_shows_what_the_standby_shows_next_to_writers_and_after_a_promotion(servers):
    primary, standby = servers
    with ReplayBuffer(primary.url, create=True, **SETTINGS) as buffer:
        buffer.extend({"x": [-1]})
        wait_for_replay(primary, standby)
        with ReplayBuffer(standby.url) as replica, replica.mirror(refresh_s=0.01) as mirror:
            with running([(write, primary.url, writer) for writer in range(3)]) as writers:
                while writers.running:
                    found = np.array(every(mirror))
                    assert len(found) <= 3_000
                    assert len(np.unique(found)) == len(found)
                writers.results()
            wait_for_replay(primary, standby)
            mirror.refresh()
            assert_same_draws(replica, mirror, "step")
            before = by_seq(mirror)
            assert before == by_seq(buffer)
            assert 2_500 < len(before) <= 3_000, "burnt numbers count against the capacity"
            primary.kill()
            standby.promote()
            with ReplayBuffer(standby.url) as promoted:
                seqs = promoted.extend({"x": range(-100, -50)}).seqs.tolist()
                mirror.refresh()
                kept = {seq: x for seq, x in before.items() if seq > seqs[-1] - 3_000}
                assert kept
                assert by_seq(mirror) == kept | dict(zip(seqs, range(-100, -50), strict=True))
                assert by_seq(mirror) == by_seq(promoted)
            assert_same_draws(replica, mirror, "step")
            wait_until(lambda: mirror.lag().steps == 0, "the mirror to be up to date")
