"""Followers register, renew and leave; one that is gone is forgotten."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.changes import Follower
from tests.support.processes import wait_until
from tests.support.sql import connected, is_sqlite, run, scalar
from tests.support.stepped_rows import make_rows


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, name="other"), ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(make_rows(range(70)))
        yield buffer


def followed(url):
    return [name for (name,) in run(url, "SELECT name FROM buffers WHERE has_followers")]


def trim(url, buffer):
    """Have the clean-up run: on SQLite every 64 entries."""
    if is_sqlite(url):
        for _ in range(64):
            buffer.annotate([1], reward=1.0)
    else:
        scalar(url, "SELECT sqlbuffer_trim_changes_v1()")


def test_a_buffer_is_followed_until_the_last_follower_leaves(buffer_url, buffer):
    first, second = Follower(buffer._store), Follower(buffer._store)
    first.register()
    second.register()
    assert followed(buffer_url) == ["default"]
    first.leave()
    assert followed(buffer_url) == ["default"]
    assert second.renew()
    second.leave()
    assert followed(buffer_url) == []
    assert not second.renew()


@pytest.mark.thorough
def test_a_follower_that_is_gone_is_forgotten(buffer_url, buffer):
    alive, gone = Follower(buffer._store), Follower(buffer._store, live_s=0.0)
    gone.register()
    trim(buffer_url, buffer)
    assert followed(buffer_url) == []
    assert not gone.renew()
    gone.register()
    alive.register()
    trim(buffer_url, buffer)
    assert followed(buffer_url) == ["default"]
    assert alive.renew()
    assert not gone.renew()


def test_a_follower_that_renews_is_kept(buffer_url, buffer):
    follower = Follower(buffer._store, live_s=60.0)
    follower.register()
    run(buffer_url, "UPDATE followers SET live_until = registered_at")
    assert follower.renew()
    trim(buffer_url, buffer)
    assert followed(buffer_url) == ["default"]


def test_a_registration_waits_for_priorities_that_are_being_written(make_database_url):
    """What is not logged is committed, so a follower that reads after it registered sees it."""
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url, priorities=True) as buffer:
        buffer.store_batch(make_rows(range(2)))
        update = "SELECT sqlbuffer_update_priorities_v1(1, '{1}', '{5}')"
        with ThreadPoolExecutor() as threads:
            with connected(url) as writer:
                writer.exec_driver_sql(update)
                registering = threads.submit(Follower(buffer._store).register)
                waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                wait_until(lambda: scalar(url, waiting), "the registration waits")
                assert followed(url) == []
            registering.result()
        assert followed(url) == ["default"]
        assert scalar(url, "SELECT priority FROM priorities") == 5
