"""A mirror that was ahead of what its server still has starts again."""

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from tests.support.episodes import FIELDS
from tests.support.mirrors import assert_same_draws
from tests.support.processes import wait_until
from tests.support.servers import (
    own_server,
    primary_and_standby,
    server_programs,
    wait_for_replay,
)
from tests.support.sql import run


def columns(n, first):
    t = np.arange(first, first + n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


def actions(mirror):
    return set(mirror.sample_arrays(2_000).action.tolist())


@pytest.mark.parametrize("shared", [False, True])
def test_steps_that_a_crash_takes_back_are_not_served(shared):
    programs = server_programs()
    # Relaxed durability: what was acknowledged may be lost when the server dies.
    with (
        own_server(programs, wal_writer_delay="10s") as server,
        ReplayBuffer(
            server.url, fields=FIELDS, durability="relaxed", create=True, retry_s=30
        ) as buffer,
        buffer.mirror(shared=shared, refresh_s=3_600) as mirror,
    ):
        buffer.extend(columns(50, 0), task_id="kept")
        run(server.url, "CHECKPOINT")
        buffer.extend(columns(50, 1_000), task_id="lost")
        assert actions(mirror) == {*range(50), *range(1_000, 1_050)}
        server.kill()
        assert actions(mirror) == {*range(50), *range(1_000, 1_050)}, "the server is away"
        server.start()
        assert len(buffer) == 50, "the server had written it"
        # The same numbers again.
        buffer.extend(columns(50, 2_000), task_id="new")
        assert actions(mirror) == {*range(50), *range(2_000, 2_050)}
        assert_same_draws(buffer, mirror, "step")


def test_labels_that_a_crash_takes_back_are_not_served():
    with (
        own_server(server_programs(), wal_writer_delay="10s") as server,
        ReplayBuffer(
            server.url, fields=FIELDS, durability="relaxed", create=True, retry_s=30
        ) as buffer,
        buffer.mirror(refresh_s=3_600) as mirror,
    ):
        buffer.extend(columns(50, 0))
        buffer.annotate([50], reward=-1.0)
        run(server.url, "CHECKPOINT")
        buffer.annotate(range(1, 11), reward=-7.0)
        buffer.delete(QueryBuilder().gte("step", 40).build())
        mirror.refresh()
        assert_same_draws(buffer, mirror, "step")
        server.kill()
        server.start()
        assert len(buffer) == 50, "the server had written it"
        buffer.annotate(range(11, 21), reward=-9.0)
        mirror.refresh()
        assert_same_draws(buffer, mirror, "step")


def test_after_a_failover_only_what_the_standby_has_is_served():
    with primary_and_standby(server_programs()) as (primary, standby):
        # The one of both that takes writes.
        hosts = ",".join(server.url.partition("host=")[2] for server in (primary, standby))
        url = f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"
        with (
            ReplayBuffer(url, fields=FIELDS, create=True, retry_s=30) as buffer,
            buffer.mirror(refresh_s=3_600) as mirror,
        ):
            buffer.extend(columns(50, 0))
            wait_for_replay(primary, standby)
            standby.stop()  # it does not receive what comes now
            buffer.extend(columns(50, 1_000))
            assert actions(mirror) == {*range(50), *range(1_000, 1_050)}
            primary.kill()
            standby.start()
            standby.promote()
            wait_until(lambda: len(buffer) == 50, "the standby to take over")
            buffer.extend(columns(50, 2_000))
            assert actions(mirror) == {*range(50), *range(2_000, 2_050)}
            assert_same_draws(buffer, mirror, "step")
