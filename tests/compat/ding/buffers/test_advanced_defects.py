"""The defects 13 to 18 of DI-engine's advanced buffer, and 12 and 19 as they show there."""

import threading

import numpy as np
import pytest


@pytest.fixture
def buffer(make):
    """A ring of 6 that has wrapped: its items are 4 to 9, the oldest first."""
    buffer = make("advanced", size=6)
    buffer.push([{"obs": i} for i in range(10)], 0)
    return buffer


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (slice(-2, None), {8, 9}),
        (slice(0, 2), {4, 5}),
        (slice(None, 2), {4, 5}),
        (slice(None, None), {4, 5, 6, 7, 8, 9}),
        (slice(None), {4, 5, 6, 7, 8, 9}),
        (slice(-3, -1), {7, 8}),
        (slice(1, None, 2), {5, 7, 9}),
        (slice(None, None, -3), {9, 6}),
        (slice(4, 100), {8, 9}),
    ],
    ids=str,
)
def test_d13_a_range_is_the_items_that_a_slice_of_their_list_by_age_has(make, which, expected):
    buffer = make("advanced", size=6, seed=1)
    buffer.push([{"obs": i} for i in range(10)], 0)
    found = [item["obs"] for _ in range(8) for item in buffer.sample(6, 0, sample_range=which)]
    assert set(found) == expected


def test_d13_a_range_without_items_is_refused(buffer):
    for which in (slice(3, 3), slice(6, None), slice(5, 2)):
        with pytest.raises(ValueError, match="has none of 6 items"):
            buffer.sample(2, 0, sample_range=which)


def test_d12_a_range_goes_by_age_where_items_have_left_between(make):
    buffer = make("advanced", size=6, max_staleness=5, seed=2)
    buffer.push([{"obs": i, "collect_iter": 3 * (i % 2)} for i in range(6)], 0)
    found = {i["obs"] for _ in range(8) for i in buffer.sample(2, 6, sample_range=slice(-2, None))}
    assert found == {3, 5}
    assert {i["obs"] for i in buffer.sample(2, 6, sample_range=slice(0, 1))} == {1}


def test_d14_any_number_is_a_priority_and_any_integer_an_iteration(make):
    torch = pytest.importorskip("torch")
    buffer = make("advanced", size=16)
    priorities = [2, np.float32(2), np.int64(2), torch.tensor(2.0)]
    iterations = [3, np.int64(3), [np.int32(3), 9], torch.tensor([3])]
    items = [{"priority": p, "collect_iter": c} for p in priorities for c in iterations]
    buffer.push(items, np.int64(1))
    batch = buffer.sample(16, np.int64(7))
    for item in batch:
        assert (item["priority"], item["staleness"]) == (2.0, 4)
        assert [type(item[key]) for key in ("priority", "staleness", "use")] == [float, int, int]
    info = {key: [i[key] for i in batch[:4]] for key in ("replay_unique_id", "replay_buffer_idx")}
    for given in (priorities, np.full(4, 2.0, np.float32), torch.full((4,), 2)):
        buffer.update({**info, "priority": given})
    state = buffer.state_dict()["data"]
    assert state[batch[0]["replay_buffer_idx"]]["priority"] == 2.00001


@pytest.mark.thorough
def test_d15_everything_stale_leaves_wherever_it_is(make):
    buffer = make("advanced", size=9, max_staleness=3)
    ages = [5, 0, 5, None, 5, 3, 4, 2]
    items = [
        {"obs": i, **({} if age is None else {"collect_iter": 10 - age})}
        for i, age in enumerate(ages)
    ]
    buffer.push(items, 0)
    found = [item for _ in range(10) for item in buffer.sample(3, 10)]
    assert {item["obs"] for item in found} == {1, 3, 7}
    assert {item["staleness"] for item in found} == {0, -1, 2}
    assert buffer.count() == 3
    # Also where the sample is then refused.
    assert buffer.sample(3, 100) is None
    assert buffer.count() == 1


def test_d15_stale_items_leave_also_where_the_range_is_empty(make):
    buffer = make("advanced", size=9, max_staleness=3, enable_track_used_data=True)
    buffer.push([{"obs": i, "collect_iter": i, "data_id": f"none{i}"} for i in range(9)], 0)
    assert len(buffer.sample(2, 2)) == 2
    with pytest.raises(ValueError, match="has none of 3 items"):
        buffer.sample(2, 8, sample_range=slice(20, None))
    assert buffer.count() == 3
    assert {item["obs"] for _ in range(9) for item in buffer.sample(3, 8)} == {6, 7, 8}


def test_d16_used_up_items_that_are_tracked_stay_and_are_not_drawn(make):
    buffer = make("advanced", size=4, max_use=1, enable_track_used_data=True)
    buffer.push([{"obs": i, "data_id": f"no/such/file{i}"} for i in range(3)], 0)
    batch = buffer.sample(3, 0)
    info = {key: [i[key] for i in batch] for key in ("replay_unique_id", "replay_buffer_idx")}
    buffer.update({**info, "priority": [5.0] * 3})
    assert buffer.count() == 3
    left = {0, 1, 2} - {item["obs"] for item in batch}
    while left:
        (item,) = buffer.sample(1, 0)
        left.remove(item["obs"])
    assert buffer.sample(1, 0) is None
    assert buffer.count() == 3
    buffer.push({"obs": 9, "data_id": "none"}, 0)
    assert buffer.sample(1, 0)[0]["obs"] == 9


@pytest.mark.thorough
def test_d17_a_state_is_a_copy_and_gives_everything_back(make):
    changes = {"size": 6, "max_use": 4, "anneal_step": 10, "seed": 4}
    buffer, again = (make("advanced", name=name, **changes) for name in ("buffer", "again"))
    buffer.push([{"obs": np.arange(3) + i, "collect_iter": i} for i in range(9)], 0)
    for iteration in range(6):
        batch = buffer.sample(2, iteration)
        info = {key: [i[key] for i in batch] for key in ("replay_unique_id", "replay_buffer_idx")}
        buffer.update({**info, "priority": [3.0 + iteration, 0.5]})
    state, same = buffer.state_dict(), buffer.state_dict()
    assert any(item is None for item in state["data"])  # used up: places are kept free
    again.load_state_dict(state)
    np.testing.assert_equal(again.state_dict(), state)
    assert (again.beta, again.push_count) == (pytest.approx(0.76), 9)
    assert again.count() == state["valid_count"]
    buffer.clear()
    buffer.push([{"obs": 1}] * 3, 0)
    np.testing.assert_equal(state, same)
    # Ids, places and the largest priority go on, and items leave in the same order.
    again.push([{"obs": 0}], 0)
    now = again.state_dict()
    assert now["data"][3]["replay_unique_id"] == "again_9"
    assert now["data"][3]["priority"] == state["max_priority"] == 8.0


def test_d17_a_file_gives_everything_back(make, tmp_path):
    buffer, again = (make("advanced", name=name, max_use=4) for name in ("buffer", "again"))
    buffer.push([{"obs": i, "priority": 0.1 * i} for i in range(1, 5)], 0)
    batch = buffer.sample(3, 0)
    info = {key: [i[key] for i in batch] for key in ("replay_unique_id", "replay_buffer_idx")}
    buffer.update({**info, "priority": [7.0, 1 / 3, 1e-7]})
    buffer.save_data(tmp_path / "buffer.hkl")
    again.load_data(tmp_path / "buffer.hkl")
    assert again.state_dict() == buffer.state_dict()


def test_d18_what_the_config_says_of_the_rate_limit_is_what_happens(make):
    limits = {"push_sample_rate_limit": {"max": 2, "min": 0.5}, "window_seconds": 1e6}
    buffer = make("advanced", size=50, thruput_controller=limits)
    buffer.push([{"obs": i} for i in range(4)], 0)  # nothing was sampled yet: it may
    assert buffer.sample(4, 0) is not None  # 4 / 4
    buffer.push([{"obs": i} for i in range(3)], 0)  # 7 / 4
    buffer.push([{"obs": 9}] * 2, 0)  # 9 / 4 > 2: thrown away
    assert (buffer.count(), buffer.push_count) == (7, 7)
    assert buffer.sample(6, 0) is not None  # 7 / 10
    assert buffer.sample(3, 0) is not None  # 7 / 13
    assert buffer.sample(2, 0) is None  # 7 / 15 < 0.5
    buffer.push({"obs": 9}, 0)
    assert buffer.sample(2, 0) is not None  # 8 / 15


def test_d19_no_thread_of_an_advanced_buffer_outlives_close(make):
    before = set(threading.enumerate())
    limits = {"push_sample_rate_limit": {"max": 2, "min": 0}}
    buffer = make("advanced", enable_track_used_data=True, thruput_controller=limits)
    buffer.start()
    buffer.push([{"obs": 1, "data_id": "none"}] * 2, 0)
    buffer.sample(1, 0)
    buffer.close()
    buffer.close()
    assert set(threading.enumerate()) == before
