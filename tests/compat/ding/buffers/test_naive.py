import logging
import threading

import pytest

from sqlbuffer.compat.ding import NaiveReplayBuffer
from tests.compat.ding.conftest import held


def test_the_oldest_items_leave_when_one_is_pushed_at_a_time(make):
    buffer = make()
    for i in range(7):
        buffer.push({"obs": i}, cur_collector_envstep=i)
    assert held(buffer) == [{"obs": i} for i in range(2, 7)]
    assert (buffer.count(), buffer.push_count, buffer.state_dict()["tail"]) == (5, 7, 2)


def test_of_a_list_longer_than_the_buffer_its_last_items_stay_and_all_are_counted(make):
    buffer = make()
    buffer.push(list(range(3)), 0)
    buffer.push(list(range(100, 113)), 0)
    assert held(buffer) == [108, 109, 110, 111, 112]
    assert (buffer.count(), buffer.push_count, buffer.state_dict()["tail"]) == (5, 16, 1)


def test_an_empty_list_is_no_push(make):
    buffer = make()
    buffer.push([], 0)
    assert (buffer.count(), buffer.push_count) == (0, 0)


def test_none_is_an_item_like_any_other(make):
    buffer = make()
    buffer.push(None, 0)
    buffer.push([None, {"obs": 1}], 0)
    assert (buffer.count(), buffer.push_count) == (3, 3)
    assert sorted(buffer.sample(3, 0), key=str) == [None, None, {"obs": 1}]
    again = make(name="again")
    again.load_state_dict(buffer.state_dict())
    assert held(again) == [None, None, {"obs": 1}]


def test_a_sample_has_each_item_once_and_no_item_that_left(make):
    buffer = make()
    buffer.push(list(range(9)), 0)
    assert sorted(buffer.sample(5, 0)) == [4, 5, 6, 7, 8]
    assert len(set(buffer.sample(3, 0))) == 3


def test_a_sample_of_none_is_an_empty_list_and_of_too_many_is_none(make, caplog):
    buffer = make()
    assert buffer.sample(0, 0) == []
    with caplog.at_level(logging.WARNING, "sqlbuffer"):
        assert buffer.sample(1, 0) is None
        assert buffer.sample(1, 0, replace=True) is None
        assert buffer.sample(1, 0, sample_range=slice(None)) is None
        buffer.push([1, 2], 0)
        assert buffer.sample(3, 0) is None
    assert len(caplog.records) == 4
    assert len(buffer.sample(8, 0, replace=True)) == 8


def test_clear_begins_anew(make):
    buffer = make()
    buffer.push([1, 2, 3], 0)
    buffer.clear()
    assert (buffer.count(), buffer.push_count, buffer.sample(1, 0)) == (0, 0, None)
    buffer.push([4, 5], 0)
    assert (held(buffer), buffer.state_dict()["tail"]) == ([4, 5], 2)


def test_update_warns_and_changes_nothing(make, caplog):
    buffer = make()
    buffer.push([1], 0)
    with caplog.at_level(logging.WARNING, "sqlbuffer"):
        buffer.update({"priority": [1.0]})
    assert "does nothing" in caplog.text
    assert held(buffer) == [1]


def test_closing_clears_a_private_buffer_and_leaves_a_shared_one(make, place):
    buffer = make()
    buffer.push([1, 2], 0)
    buffer.close()
    buffer.close()
    again = make()
    expected = 2 if place else 0
    assert (buffer.count(), again.count(), again.push_count) == (expected,) * 3
    assert buffer.is_shared is bool(place)


def test_two_buffers_of_one_name_are_one_where_there_is_a_url(make, place):
    first, second = make(), make()
    first.push([1, 2], 0)
    second.push([3], 0)
    assert first.count() == (3 if place else 2)
    assert first.push_count == (3 if place else 2)
    assert sorted(second.sample(second.count(), 0)) == ([1, 2, 3] if place else [3])


def test_a_default_buffer_holds_ten_thousand():
    buffer = NaiveReplayBuffer(NaiveReplayBuffer.default_config())
    assert buffer.replay_buffer_size == 10_000
    buffer.close()


# The defects 11, 12 and 19 of DI-engine's naive buffer, each mended.


def test_d11_loading_a_buffer_that_was_not_full_counts_no_padding(make, tmp_path):
    buffer, again, third = make(), make(name="again"), make(name="third")
    buffer.push([{"obs": 1}, {"obs": 2}], 0)
    buffer.save_data(tmp_path / "buffer.hkl")
    again.load_data(tmp_path / "buffer.hkl")
    assert (again.count(), again.push_count) == (2, 2)
    assert sorted(item["obs"] for item in again.sample(2, 0)) == [1, 2]
    assert again.sample(3, 0) is None
    # DI-engine's own padded list, too.
    third.load_state_dict({"data": buffer.state_dict()["data"]})
    assert held(third) == [{"obs": 1}, {"obs": 2}]


def test_d12_sample_range_goes_by_age_after_the_ring_has_wrapped(make):
    buffer = make(size=6)
    buffer.push(list(range(10)), 0)
    assert buffer.state_dict()["data"] == [6, 7, 8, 9, 4, 5]
    assert sorted(buffer.sample(2, 0, sample_range=slice(-2, None))) == [8, 9]
    assert sorted(buffer.sample(2, 0, sample_range=slice(0, 2))) == [4, 5]
    assert sorted(buffer.sample(2, 0, sample_range=slice(None, 2))) == [4, 5]
    assert sorted(buffer.sample(3, 0, sample_range=slice(None, None, 2))) == [4, 6, 8]
    assert sorted(buffer.sample(3, 0, sample_range=slice(-3, -1), replace=True))[0] >= 7
    assert sorted(buffer.sample(6, 0, sample_range=slice(None))) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("which", [slice(0, 1), slice(3, 3), slice(6, None)], ids=str)
def test_a_range_with_too_few_items_is_refused(make, which):
    buffer = make()
    buffer.push([1, 2, 3], 0)
    with pytest.raises(ValueError, match=r"of 3 items, and 2 are to be drawn"):
        buffer.sample(2, 0, sample_range=which)


def test_a_range_of_one_item_may_be_drawn_from_with_replacement(make):
    buffer = make()
    buffer.push([1, 2, 3], 0)
    assert buffer.sample(4, 0, sample_range=slice(-1, None), replace=True) == [3] * 4
    with pytest.raises(ValueError, match="has 0 of 3 items"):
        buffer.sample(4, 0, sample_range=slice(3, 3), replace=True)


def test_d19_no_thread_outlives_close(make):
    before = set(threading.enumerate())
    for kind in ("naive", "elastic", "sequence", "episode"):
        buffer = make(kind, name=kind)
        buffer.start()
        buffer.push([[1], [2]], 0)
        buffer.close()
    assert set(threading.enumerate()) == before
