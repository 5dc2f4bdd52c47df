"""The defects 11, 12 and 19 of DI-engine's naive buffer, each mended."""

import threading

import pytest

from tests.compat.ding.conftest import held


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
