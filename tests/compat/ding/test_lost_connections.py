"""Connections to PostgreSQL that are cut at the commit: each push is counted once."""

import pytest

from sqlbuffer.compat.ding import create_buffer
from tests.compat.ding.conftest import held
from tests.compat.ding.test_used_data_remover import Tracking, items
from tests.conftest import close_pool
from tests.support.proxy import proxied


@pytest.fixture
def proxy(make_database_url):
    with proxied(make_database_url("postgresql", schema=True)) as proxy:
        yield proxy
        close_pool(proxy.url)


@pytest.mark.parametrize("cuts", [["before"], ["after"], ["before", "after"]], ids=str)
def test_a_push_is_counted_once_and_what_it_overwrites_used_once(proxy, cuts):
    buffer = Tracking({"replay_buffer_size": 3, "enable_track_used_data": True, "url": proxy.url})
    buffer.push(items(0, 1, 2), 0)
    proxy.cuts = list(cuts)
    buffer.push(items(3, 4), 0)
    assert proxy.n_cut == len(cuts)
    # The numbers of a push that was undone count against the capacity: items may leave early.
    used, left = buffer._remover.calls, [item["data_id"] for item in held(buffer)]
    assert (buffer.push_count, [*used, *left]) == (5, [0, 1, 2, 3, 4])
    assert left[-2:] == [3, 4]
    state = buffer.state_dict()
    buffer.push(items(5), 0)
    proxy.cuts = list(cuts)
    buffer.load_state_dict(state)
    assert proxy.n_cut == 2 * len(cuts)
    assert buffer.state_dict() == state
    assert sorted(buffer.sample(len(left), 0, slice(None)), key=str) == items(*left)
    buffer.close()


@pytest.mark.parametrize("cuts", [["before"], ["after"]], ids=str)
def test_stale_items_leave_though_the_connection_of_the_sample_is_lost(proxy, cuts):
    config = {"type": "advanced", "replay_buffer_size": 9, "max_staleness": 3}
    buffer = create_buffer({**config, "url": proxy.url})
    buffer.push([{"obs": i, "collect_iter": i} for i in range(9)], 0)
    assert len(buffer.sample(2, 2)) == 2
    proxy.cuts = list(cuts)
    drawn = buffer.sample(3, 8)
    assert proxy.n_cut == 1
    assert {item["obs"] for item in drawn} <= {6, 7, 8}
    assert buffer.count() == 3
    buffer.close()


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_a_push_whose_connection_is_lost_behind_its_commit_is_counted_once(proxy, kind):
    buffer = create_buffer({"type": kind, "replay_buffer_size": 9, "url": proxy.url})
    buffer.push([{"obs": 0}], 0)
    proxy.cuts = ["after"]
    items = [{"obs": 1}, {"obs": 2}]
    buffer.push(items, 0)
    assert proxy.n_cut == 1
    assert buffer._throughput.push_data_count == 3
    assert (buffer.count(), buffer.push_count) == (3, 3)
    state = buffer.state_dict()
    assert [item["obs"] for item in state["data"][:3]] == [0, 1, 2]
    if kind == "advanced":
        assert [item["replay_unique_id"] for item in items] == ["buffer_1", "buffer_2"]
    buffer.close()
