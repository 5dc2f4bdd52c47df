"""Connections to PostgreSQL that are cut at the commit: nothing counted twice, nothing held."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from tests.support.leases import GivenBack, store, uses_of
from tests.support.proxy import proxied
from tests.support.sql import scalar

CUTS = [["before"], ["after"], ["before", "after"], ["after", "after"]]


@pytest.fixture
def url(make_database_url):
    return make_database_url("postgresql", schema=True)


@pytest.fixture
def proxy(url):
    with ReplayBuffer(url, leases=True, max_use=2, track_samples=True) as buffer:
        store(buffer, range(8))
    with proxied(url) as proxy:
        yield proxy
        engine_for(resolve_url(proxy.url)).dispose()


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_an_acknowledgement_is_counted_once(url, proxy, cuts):
    buffer = ReplayBuffer(proxy.url)
    lease = buffer.lease(4, order="fifo")
    lease.__enter__()
    proxy.cuts = list(cuts)
    lease.__exit__(None, None, None)
    assert proxy.n_cut == len(cuts)
    assert list(uses_of(url).values()) == [1] * 4 + [0] * 4


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("group_by", [None, "task_id"])
def test_a_claim_holds_one_batch(url, proxy, cuts, group_by):
    buffer = ReplayBuffer(proxy.url)
    n = 4 if group_by is None else 1
    proxy.cuts = list(cuts)
    with buffer.lease(n, group_by=group_by, timeout_s=0) as batch:
        assert proxy.n_cut == len(cuts)
        held = "SELECT count(*) FROM queue_items WHERE leased_until IS NOT NULL"
        assert scalar(url, held) == len(batch) == (8 if group_by else 4)
        assert scalar(url, "SELECT count(*) FROM leases") == 1
        assert scalar(url, "SELECT n_rows FROM samples") == len(batch)
    assert sum(uses_of(url).values()) == len(batch)


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_checkpoint_is_made_and_restored_once(url, proxy, cut):
    buffer = ReplayBuffer(proxy.url)
    proxy.cuts = [cut]
    assert buffer.checkpoint("start", consumer="a").name == "start"
    with buffer.lease(4, order="fifo", consumer="a"):
        pass
    proxy.cuts = [cut]
    assert buffer.restore("start", consumer="a").n_freed == 4
    assert proxy.n_cut == 2
    assert set(uses_of(url).values()) == {0}


@pytest.mark.parametrize("cut", ["before", "after"])
def test_rows_are_given_back_and_a_lease_is_renewed_over_a_lost_connection(url, proxy, cut):
    buffer = ReplayBuffer(proxy.url)
    lease = buffer.lease(4)
    batch = lease.__enter__()
    proxy.cuts = [cut]
    batch.renew(60)
    assert proxy.n_cut == 1
    proxy.cuts = [cut]
    lease.__exit__(GivenBack, GivenBack(), None)
    assert proxy.n_cut == 2
    assert scalar(url, "SELECT count(*) FROM queue_items WHERE leased_until IS NOT NULL") == 0
