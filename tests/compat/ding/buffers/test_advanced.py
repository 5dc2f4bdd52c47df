"""What an advanced buffer does beside what a model can say: shares of draws, doors, ranges."""

import numpy as np
import pytest

from sqlbuffer.compat.ding import AdvancedReplayBuffer
from tests.support.priorities import assert_shares

KEYS = ("replay_unique_id", "replay_buffer_idx")


def info_of(batch, priorities):
    return {**{key: [item[key] for item in batch] for key in KEYS}, "priority": priorities}


def priorities_of(buffer):
    return [item["priority"] for item in buffer.state_dict()["data"] if item is not None]


@pytest.mark.thorough
@pytest.mark.slow
def test_items_are_drawn_by_priority_over_many_blocks(make):
    buffer = make("advanced", size=3_000, seed=1, anneal_step=0)
    rng = np.random.default_rng(0)
    buffer.push([{"obs": i, "priority": float(p)} for i, p in enumerate(rng.gamma(1, 1, 4_000))], 0)
    for _ in range(6):
        batch = buffer.sample(256, 0)
        buffer.update(info_of(batch, rng.gamma(1, 2, 256).tolist()))
    weights = {
        item["obs"]: item["priority"] ** 0.6
        for item in buffer.state_dict()["data"]
        if item is not None
    }
    least = min(weights.values())
    drawn = []
    for _ in range(60):
        batch = buffer.sample(256, 0)
        drawn += [item["obs"] for item in batch]
    assert_shares(drawn, weights)
    for item in batch:
        assert item["IS"] == pytest.approx((least / weights[item["obs"]]) ** 0.4, rel=1e-9)
    # The ends of a range lie inside of blocks.
    of_range = {obs: weight for obs, weight in weights.items() if 1_350 <= obs < 3_700}
    drawn = []
    for _ in range(40):
        batch = buffer.sample(256, 0, sample_range=slice(350, 2_700))
        drawn += [item["obs"] for item in batch]
    assert_shares(drawn, of_range)
    assert batch[0]["IS"] == pytest.approx((least / weights[batch[0]["obs"]]) ** 0.4, rel=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(("n_items", "size"), [(64, 64), (1_000, 64), (3_000, 32)])
def test_a_batch_of_equal_items_repeats_none(make, n_items, size):
    buffer = make("advanced", size=n_items, seed=1)
    buffer.push([{"obs": i} for i in range(n_items)], 0)
    counts = np.zeros(n_items)
    for _ in range(10):
        drawn = [item["obs"] for item in buffer.sample(size, 0)]
        assert len(set(drawn)) == size
        counts[drawn] += 1
    if n_items == size:
        assert (counts == 10).all()


def test_an_item_is_repeated_only_where_its_weight_is_more_than_a_part(make):
    buffer = make("advanced", size=8, alpha=1.0)
    priorities = [6.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0]  # eight parts of 2
    buffer.push([{"obs": i, "priority": p} for i, p in enumerate(priorities)], 0)
    for _ in range(10):
        *heavy, x, y, last = (item["obs"] for item in buffer.sample(8, 0))
        assert (heavy, last) == ([0, 0, 0, 1, 2], 7)
        assert x in (3, 4)
        assert y in (5, 6)


def test_only_update_raises_what_new_items_begin_with(make):
    buffer = make("advanced", size=9)
    buffer.push([{"obs": 0, "priority": 10.0}, {"obs": 1}], 0)
    assert priorities_of(buffer) == [10.0, 1.0]
    batch = buffer.sample(2, 0, sample_range=slice(0, 1))
    buffer.update(info_of(batch, [4.0, 2.0]))
    buffer.push({"obs": 2}, 0)
    assert priorities_of(buffer) == [2.00001, 1.0, 4.0]
    buffer.clear()
    buffer.push({"obs": 3}, 0)
    assert priorities_of(buffer) == [1.0]
    assert (buffer.push_count, buffer.sample(1, 0)[0][KEYS[0]]) == (4, "buffer_3")


def test_items_that_are_no_longer_there_are_not_updated(make):
    buffer = make("advanced", size=2)
    buffer.push([{"obs": 0}, {"obs": 1}], 0)
    batch = buffer.sample(2, 0)
    buffer.push([{"obs": 2}, {"obs": 3}], 0)
    buffer.update(info_of(batch, [7.0, 7.0]))
    buffer.update({KEYS[0]: ["buffer_2", "x", "buffer_3"], KEYS[1]: [1, 0, 1], "priority": [5, 6]})
    buffer.update({KEYS[0]: [], KEYS[1]: [], "priority": []})
    buffer.update({"loss": 1.0})
    assert priorities_of(buffer) == [1.0, 1.0]


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), None, "1", True])
def test_a_wrong_priority_sets_none(make, wrong):
    buffer = make("advanced", size=4)
    buffer.push([{"obs": 0}, {"obs": 1}], 0)
    batch = buffer.sample(2, 0)
    with pytest.raises(AssertionError, match="priority of entry 1"):
        buffer.update(info_of(batch, [5.0, wrong]))
    with pytest.raises(
        KeyError, match=r"^update takes the lists .*; 'replay_buffer_idx' is missing"
    ):
        buffer.update({"priority": [1.0], KEYS[0]: ["buffer_0"]})
    assert priorities_of(buffer) == [1.0, 1.0]
    if wrong is not None:
        with pytest.raises(TypeError, match="item 0: priority"):
            buffer.push({"obs": 2, "priority": wrong}, 0)
        assert buffer.count() == 2


def test_what_fails_a_check_is_left_out(make):
    buffer = make("advanced", size=4)
    buffer.push([1, {"obs": 0}, None, [2]], 0)
    buffer.push(3, 0)
    buffer.push([], 0)
    buffer.check_list.append(lambda item: item["obs"] < 5)
    buffer.push([{"obs": 9}, {"obs": 4}], 0)
    assert [item["obs"] for item in buffer.state_dict()["data"] if item] == [0, 4]
    assert buffer.push_count == 2


def test_a_pushed_dict_is_told_its_id_place_and_priority(make):
    buffer, copying = make("advanced", size=2), make("advanced", name="copying", deepcopy=True)
    items = [{"obs": 0}, {"obs": 1, "priority": 3.0}, {"obs": 2, "priority": None}]
    buffer.push(items, 0)
    assert items == [
        {"obs": 0},
        {"obs": 1, "priority": 3.0, KEYS[0]: "buffer_1", KEYS[1]: 1},
        {"obs": 2, "priority": 1.0, KEYS[0]: "buffer_2", KEYS[1]: 0},
    ]
    mine = {"obs": 0}
    copying.push(mine, 0)
    assert mine == {"obs": 0}
    # One dict pushed twice is two items.
    buffer.push([mine, mine], 0)
    assert [item[KEYS[0]] for item in buffer.state_dict()["data"]] == ["buffer_4", "buffer_3"]


def test_too_few_items_give_none_and_none_asked_for_an_empty_list(make):
    buffer = make("advanced", size=9, thruput_controller={"sample_min_limit_ratio": 2})
    assert (buffer.sample(0, 0), buffer.sample(1, 0)) == ([], None)
    buffer.push([{"obs": i} for i in range(5)], 0)
    assert buffer.sample(3, 0) is None
    assert len(buffer.sample(2, 0)) == 2
    for wrong, error in ((-1, ValueError), (1.5, TypeError), (None, TypeError), (True, TypeError)):
        with pytest.raises(error, match="size"):
            buffer.sample(wrong, 0)
    with pytest.raises(TypeError, match="cur_learner_iter"):
        buffer.sample(1, None)
    with pytest.raises(TypeError, match="collect_iter"):
        buffer.push({"obs": 1, "collect_iter": 1.5}, 0)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"alpha": 1.1}, "alpha"),
        ({"alpha": None}, "alpha"),
        ({"beta": -0.1}, "beta"),
        ({"beta": "1"}, "beta"),
        ({"anneal_step": -1}, "anneal_step"),
        ({"max_use": 0}, "max_use"),
        ({"max_use": None}, "max_use"),
        ({"max_staleness": -1}, "max_staleness"),
        ({"max_staleness": float("nan")}, "max_staleness"),
        ({"thruput_controller": {"sample_min_limit_ratio": 0.5}}, "sample_min_limit_ratio"),
        ({"thruput_controller": {"window_seconds": 0}}, "window_seconds"),
        ({"thruput_controller": {"push_sample_rate_limit": {"max": 0}}}, "push_sample_rate_limit"),
        ({"thruput_controller": {"push_sample_rate_limit": {"min": -1}}}, "push_sample_rate_limit"),
        ({"monitor": {"periodic_thruput": {"seconds": 0}}}, "seconds"),
        ({"monitor": {"sampled_data_attr": {"print_freq": 0}}}, "print_freq"),
        ({"monitor": {"sampled_data_attr": {"average_range": 0}}}, "average_range"),
        ({"monitor": {"sampled_data_attr": {"average_range": None}}}, "average_range"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_refused(config, said, tmp_path):
    path = tmp_path / "replay.db"
    with pytest.raises(AssertionError, match=said):
        AdvancedReplayBuffer({"url": path, **config})
    assert not path.exists()


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (5, "info is a dict"),
        ([1.0], "info is a dict"),
        ({"priority": None, KEYS[0]: ["buffer_0"], KEYS[1]: [0]}, "'priority' of an update"),
        ({"priority": 1.0, KEYS[0]: ["buffer_0"], KEYS[1]: [0]}, "'priority' of an update"),
        ({"priority": [1.0], KEYS[0]: "buffer_0", KEYS[1]: [0]}, "'replay_unique_id' of"),
        ({"priority": [1.0], KEYS[0]: ["buffer_0"], KEYS[1]: 0}, "'replay_buffer_idx' of"),
    ],
    ids=str,
)
def test_an_update_is_a_dict_of_lists(make, info, said):
    buffer = make("advanced", size=4)
    buffer.push({"obs": 0}, 0)
    with pytest.raises(TypeError, match=said):
        buffer.update(info)
    for skipped in (["x"], [["buffer_0"]], [0], [None]):
        buffer.update({"priority": [2.0], KEYS[0]: skipped, KEYS[1]: [0]})
    assert priorities_of(buffer) == [1.0]
    buffer.update({"priority": (2,), KEYS[0]: np.array(["buffer_0"]), KEYS[1]: np.array([0])})
    assert priorities_of(buffer) == [2.00001]


def test_a_shared_buffer_has_one_alpha(buffer_url):
    AdvancedReplayBuffer({"url": buffer_url}).close()
    with pytest.raises(AssertionError, match=r"made with alpha=0.6, not 0.7"):
        AdvancedReplayBuffer({"url": buffer_url, "alpha": 0.7})


def test_beta_is_set_for_every_process_and_reaches_one(buffer_url):
    config = {"url": buffer_url, "anneal_step": 2, "replay_buffer_size": 4}
    first, second = AdvancedReplayBuffer(config), AdvancedReplayBuffer(config)
    assert first.beta == 0.4
    first.beta = 0.5
    first.push({"obs": 1}, 0)
    assert second.sample(2, 0) is None
    assert (first.beta, second.beta) == (0.5, 0.5)
    seen = []
    for _ in range(3):
        second.sample(1, 0)
        seen.append(first.beta)
    assert seen == pytest.approx([0.8, 1.0, 1.0])
    with pytest.raises(ValueError, match="beta"):
        first.beta = 1.5
    first.close()
    second.close()


@pytest.mark.thorough
def test_a_state_fits_a_buffer_of_another_size(make):
    large, small, wide = (
        make("advanced", name=name, size=n) for name, n in (("a", 6), ("b", 3), ("c", 9))
    )
    large.push([{"obs": i, "priority": 1.0 + i} for i in range(8)], 0)
    for other, left in ((small, [5, 6, 7]), (wide, [2, 3, 4, 5, 6, 7])):
        other.load_state_dict(large.state_dict())
        held = sorted((i for i in other.state_dict()["data"] if i), key=lambda item: item["obs"])
        assert [item["obs"] for item in held] == left
        assert [item["priority"] for item in held] == [1.0 + obs for obs in left]
        other.update(info_of(held, [0.5] * len(held)))
        assert set(priorities_of(other)) == {0.50001}
        assert other.push_count == 8
    small.load_state_dict({"data": [None, {"obs": 11}, None]})
    assert (small.count(), small.push_count) == (3, 9)


@pytest.mark.parametrize(
    "change",
    [
        {"data": 3},
        {"use_count": 3},
        {"beta": -1},
        {"beta": 1.5},
        {"max_priority": 1e300},
        {"use_count": {1: "x"}},
        {"use_count": {1: -1}},
        {"use_count": {1: 2**40}},
        {"push_count": None},
        {"tail": 99},
        {"push_count": 1},
        {"data": [{"obs": 1}]},
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_together_is_refused(make, change):
    buffer = make("advanced", size=3)
    buffer.push([{"obs": i} for i in range(5)], 0)
    before = buffer.state_dict()
    with pytest.raises(ValueError, match="state"):
        buffer.load_state_dict({**before, **change})
    with pytest.raises(AssertionError, match="data"):
        buffer.load_state_dict({})
    assert buffer.state_dict() == before
