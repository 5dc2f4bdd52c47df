"""`update`, the datapoints, `data[...]` and `meta_data[...]` (spec 1.3, 1.4)."""

import numpy as np
import pytest

from sqlbuffer import QueryBuilder
from sqlbuffer import ReplayBuffer as CoreBuffer
from sqlbuffer.compat.memmap import MemmapError, MemmapIndexError, MemmapTypeError
from tests.support.sql import run


@pytest.fixture
def buffer(make):
    buffer = make()
    buffer.store_episode(r=[1.0, 2.0, 3.0], a=[1, 2, 3], task=5)
    buffer.store_episode(r=[4.0], task=6)
    return buffer


def changes(url: str) -> list[tuple[int, str, int]]:
    return run(url, "SELECT seq, fields, n_changes FROM payload_changes ORDER BY seq")


def test_a_changed_row_is_noted_and_its_note_leaves_with_it(buffer, buffer_url):
    buffer.data["r"][0, :2] = [8, 9]
    buffer.update(indices=0, a=[7], r=[6.0])
    assert buffer.data["r"][0].tolist() == [6, 9, 3, -1]
    assert [(fields, n) for _, fields, n in changes(buffer_url)] == [("a, r", 2), ("r", 1)]
    buffer.clear()
    assert changes(buffer_url) == []


def test_a_change_reaches_what_the_core_reads(make, buffer_url):
    buffer = make(fields={"reward": "float", "state": ("float", 2), "level": "float"})
    buffer.store_episode(reward=[1.0, 2.0], state=np.ones((2, 2)), level=[7.0, 8.0])
    buffer.data["reward"][0, 1] = 5.0
    buffer.data["state"][0, 0] = [3, 4]
    buffer.data["level"][0, 1] = 9.0
    core = CoreBuffer(buffer_url, name="memmap")
    rows = run(buffer_url, "SELECT reward, fields FROM v_experiences ORDER BY seq")
    assert [reward for reward, _ in rows] == [1.0, 5.0]
    assert "9.0" in str(rows[1][1])
    found = core.sample_arrays(64)["state_"].tolist()  # with replacement
    assert sorted(map(list, set(map(tuple, found)))) == [[1, 1], [3, 4]]
    core.close()


def test_changed_rewards_ends_and_successors_reach_batches_of_the_core(make, buffer_url):
    fields = {"reward": "float", "obs": ("float", 2), "terminated": "bool"}
    buffer = make(fields=fields)
    buffer.store_episode(
        reward=[1.0, 2.0, 3.0], obs=np.arange(6).reshape(3, 2), terminated=[False, False, True]
    )
    buffer.data["reward"][0, 1] = 5.0
    buffer.data["obs"][0, 1] = [8, 9]
    buffer.data["terminated"][0, 2] = False
    core = CoreBuffer(buffer_url, name="memmap")
    steps = core.sample_arrays(64)
    assert set(steps["reward"].tolist()) == {1.0, 5.0, 3.0}
    assert not steps["terminated"].any()
    assert set(map(tuple, steps["obs"].tolist())) == {(0, 1), (8, 9), (4, 5)}
    moves = core.sample_transitions(64)
    found = zip(moves["obs"].tolist(), moves["next_obs"].tolist(), strict=True)
    assert {(tuple(obs), tuple(next_obs)) for obs, next_obs in found} >= {
        ((0, 1), (8, 9)), ((8, 9), (4, 5)),
    }  # fmt: skip
    core.close()


def test_conditions_match_changed_values_as_they_match_stored_ones(make, buffer_url):
    buffer = make(fields={"x": "float"})
    buffer.store_episode(x=[0.1, 0.5, 0.7])
    buffer.data["x"][0, 1:3] = [0.1, np.inf]
    core = CoreBuffer(buffer_url, name="memmap")
    assert core.size(QueryBuilder().eq("x", float(np.float32(0.1))).build()) == 2
    assert core.size(QueryBuilder().lt("x", 1.0).build()) == 2
    core.close()


def test_cells_without_a_row_are_kept_until_a_step_is_stored_there(make, reopen):
    buffer = make()
    with buffer.one_episode():
        buffer.store(r=1.0)
        buffer.data["r"][0, :3] = [5, 6, 7]
        assert buffer.data["r"][0].tolist() == [5, 6, 7, -1]
        buffer.store(a=3)
        assert buffer.data["r"][0].tolist() == [5, -1, 7, -1]
        assert buffer.data["a"][0].tolist() == [0, 3, 0, 0]
    assert buffer.episode_lens.tolist() == [2, 0, 0]
    assert reopen().data["r"][0].tolist() == [5, -1, 7, -1]


def test_update_writes_the_first_steps_of_all_episodes(buffer):
    buffer.update(r=np.full((2, 2), 8.0), task=[1, 2])
    assert buffer.data["r"].tolist() == [[8, 8, 3, -1], [8, 8, -1, -1], [-1] * 4]
    assert buffer.meta_data["task"].tolist() == [1, 2, -1]
    assert buffer.episode_lens.tolist() == [3, 1, 0]


def test_the_steps_of_an_open_episode_are_updated_as_well(make, reopen):
    buffer = make()
    buffer.store(r=1.0)
    buffer.store(r=2.0)
    buffer.update(r=[[8.0, 9.0, 7.0]], task=[4])
    assert buffer.data["r"][0].tolist() == [8, 9, 7, -1]
    buffer.advance_episode()
    assert reopen().data["r"][0].tolist() == [8, 9, 7, -1]
    assert (reopen().episode_lens[0], reopen().meta_data["task"][0]) == (2, 4)


def test_a_step_of_several_slots_is_counted_from_the_end_too(buffer):
    buffer.store_batch_datapoint([0, 1], -1, "r", [7, 8])
    assert buffer.data["r"][:, 3].tolist() == [7, 8, -1]


def test_update_of_a_scalar_touches_the_first_step_only(buffer):
    buffer.update(r=0)
    assert buffer.data["r"].tolist() == [[0, 2, 3, -1], [0, -1, -1, -1], [-1] * 4]


UPDATES = [
    (1, [7, 8], {1: [7, 8, -1, -1]}),
    (-2, [[7], [8]], {1: [7, 8, -1, -1]}),
    ([0, 1], np.ones((2, 1, 1)), {0: [1, 2, 3, -1], 1: [1, -1, -1, -1]}),
    (np.array([1, 0]), [[7], [8]], {0: [8, 2, 3, -1], 1: [7, -1, -1, -1]}),
    (slice(0, 2), [[7, 7]], {0: [7, 7, 3, -1], 1: [7, 7, -1, -1]}),
    ([], np.ones((0, 2)), {0: [1, 2, 3, -1]}),
]


def test_update_takes_slots_in_any_form(buffer):
    held = buffer.data["r"].copy()
    for indices, given, expected in UPDATES:
        buffer.data["r"][:] = held
        buffer.update(indices, r=given)
        for slot, values in expected.items():
            assert buffer.data["r"][slot].tolist() == values


def test_update_may_set_lengths(buffer):
    buffer.update(indices=[0, 1], episode_lens=[2, 4])
    assert (buffer.episode_lens.tolist(), len(buffer)) == ([2, 4, 0], 2)
    buffer.update(indices=0, episode_lens=0)
    assert len(buffer) == 1


BAD_UPDATES = [
    ({}, MemmapError, "No data provided"),
    ({"q": 1}, MemmapError, "invalid field name `q`"),
    ({"r": np.ones((2, 9))}, MemmapError, "max_timesteps"),
    ({"r": np.ones((5, 2))}, MemmapError, "field r - "),
    ({"s": np.ones((2, 1, 3))}, MemmapError, "field s - "),
    ({"r": [1.0]}, MemmapError, "expected shape"),
    ({"indices": 9, "r": [1.0]}, IndexError, "out of bounds"),
    ({"indices": [0, -4], "r": [[1.0]]}, MemmapIndexError, "out of bounds"),
    ({"indices": [True, False, False], "r": [[1.0]]}, MemmapTypeError, "flatnonzero"),
    ({"indices": "a", "r": [[1.0]]}, MemmapTypeError, "."),
    ({"r": np.ones((2, 1)), "task": [1, 2, 3]}, MemmapError, "field task"),
]


def test_an_update_that_does_not_fit_changes_nothing(buffer):
    for given, error, message in BAD_UPDATES:
        with pytest.raises(error, match=message):
            buffer.update(**given)
    assert buffer.data["r"].tolist() == [[1, 2, 3, -1], [4, -1, -1, -1], [-1] * 4]


def test_datapoints_change_single_cells(buffer):
    buffer.store_datapoint(0, 1, "r", 9.0)
    buffer.store_datapoint(1, 3, "s", [1, 2])
    buffer.store_meta_datapoint(0, "goal", [1, 2, 3])
    buffer.store_batch_datapoint([0, 1], 0, "a", [7, 8])
    buffer.store_batch_meta_datapoint(np.array([1, 2]), "task", [7, 8])
    assert buffer.data["r"][0].tolist() == [1, 9, 3, -1]
    assert buffer.data["s"][1].tolist() == [[0, 0], [0, 0], [0, 0], [1, 2]]
    assert buffer.data["a"][:, 0].tolist() == [7, 8, 0]
    assert buffer.meta_data["goal"][0].tolist() == [1, 2, 3]
    assert buffer.meta_data["task"].tolist() == [5, 7, 8]
    assert buffer.episode_lens.tolist() == [3, 1, 0]


BAD_DATAPOINTS = [
    ("store_datapoint", (3, 0, "r", 1.0), ValueError),
    ("store_datapoint", (-1, 0, "r", 1.0), ValueError),
    ("store_datapoint", (0, 4, "r", 1.0), ValueError),
    ("store_datapoint", (0, 0, "task", 1.0), ValueError),
    ("store_datapoint", (0, 0, "r", [1.0]), ValueError),
    ("store_datapoint", (0, 0, "s", 1.0), ValueError),
    ("store_datapoint", (0, 0, "r", None), TypeError),
    ("store_datapoint", ("a", 0, "r", 1.0), TypeError),
    ("store_datapoint", (True, 0, "r", 1.0), TypeError),
    ("store_meta_datapoint", (3, "task", 1), ValueError),
    ("store_meta_datapoint", (0, "r", 1), ValueError),
    ("store_meta_datapoint", (0, "goal", 1), ValueError),
    ("store_batch_datapoint", ([0, 1], 0, "q", [1, 2]), ValueError),
    ("store_batch_datapoint", ([0, 5], 0, "r", [1, 2]), IndexError),
    ("store_batch_datapoint", ([0, 1], 4, "r", [1, 2]), IndexError),
    ("store_batch_datapoint", ([0, 1], -5, "r", [1, 2]), IndexError),
    ("store_batch_datapoint", ([0, 1], "0", "r", [1, 2]), MemmapTypeError),
    ("store_batch_datapoint", ([0, 1], None, "r", [1, 2]), MemmapTypeError),
    ("store_batch_datapoint", ([0, 1], True, "r", [1, 2]), MemmapTypeError),
    ("store_batch_datapoint", ([0, 1], 0, "r", [1, 2, 3]), ValueError),
    ("store_batch_meta_datapoint", ([0, 1], "q", [1, 2]), ValueError),
]


def test_datapoints_out_of_range_are_refused(buffer):
    for call, given, error in BAD_DATAPOINTS:
        with pytest.raises(error):
            getattr(buffer, call)(*given)
    assert buffer.data["r"].tolist() == [[1, 2, 3, -1], [4, -1, -1, -1], [-1] * 4]
    assert buffer.meta_data["task"].tolist() == [5, 6, -1]


INDICES = [
    0, -1, np.int64(1), slice(None), slice(1, None), slice(None, None, -1), ..., None,
    (0, 1), (0, slice(1, 3)), (slice(None), 0), (slice(0, 2), slice(None, None, 2)),
    [0, 2], np.array([2, 0]), ([0, 1], [1, 2]), (np.array([[0], [1]]), np.array([0, 2])),
    (0, ..., 1), (..., 1), (slice(None), 0, 1), (0, 1, slice(None)), (slice(0, 2), [0, 1], 0),
    np.array([True, False, True]), (np.array([True, False, True]), 0), ([], 0),
    np.arange(12).reshape(3, 4) % 5 == 0,
]  # fmt: skip


@pytest.mark.thorough
def test_a_proxy_reads_and_writes_by_any_index_of_numpy(make):
    buffer = make()
    buffer.store_episode(s=np.arange(6.0).reshape(3, 2))
    buffer.store_episode(s=np.arange(4.0).reshape(2, 2))
    proxy, model = buffer.data["s"], np.array(buffer.data["s"])
    assert model.shape == proxy.shape == (3, 4, 2)
    for n, index in enumerate(INDICES):
        found, expected = proxy[index], model[index]
        assert (np.shape(found), found.dtype) == (expected.shape, expected.dtype), index
        assert np.array_equal(found, expected), index
        value = np.arange(expected.size, dtype=float).reshape(expected.shape) + 100 * n
        proxy[index] = value
        model[index] = value
        assert np.array_equal(proxy, model), index


def test_a_proxy_behaves_like_an_array(buffer):
    rewards, lens = buffer.data["r"], buffer.episode_lens
    assert (rewards.shape, rewards.dtype, rewards.ndim, len(rewards)) == (
        (3, 4), np.float32, 2, 3,
    )  # fmt: skip
    assert (lens == [3, 1, 0]).all()
    assert (lens > 0).sum() == 2
    assert lens[lens > 0].tolist() == [3, 1]
    assert lens[np.array([True, False, True])].tolist() == [3, 0]
    assert (rewards + 1)[0, 0] == 2
    assert rewards.max() == 4
    assert np.concatenate([rewards, rewards]).shape == (6, 4)
    assert isinstance(rewards.copy(), np.ndarray)
    buffer.data["r"] *= 2
    assert rewards[0].tolist() == [2, 4, 6, -2]
    assert repr(lens) == repr(np.array([3, 1, 0], np.int32))
    with pytest.raises(IndexError):
        rewards[3]
    with pytest.raises(IndexError):
        rewards[0.5]
    with pytest.raises(ValueError, match="broadcast"):
        rewards[0, :2] = [1, 2, 3]
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = rewards.nope
    with pytest.raises(TypeError, match="assign to a part"):
        buffer.data["r"] = np.zeros((3, 4))


def test_a_tensor_is_an_index_and_a_value(buffer):
    torch = pytest.importorskip("torch")
    buffer.data["r"][torch.tensor([0, 1]), :2] = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    assert buffer.data["r"][:2, :2].tolist() == [[5, 6], [7, 8]]
    assert buffer.episode_lens[torch.tensor(0)] == 3


def test_an_unknown_field_is_an_error_that_names_the_fields(make):
    buffer = make(fields={"s": "float", "r": "float"}, meta_fields={"task": "int"})
    with pytest.raises(KeyError, match="no field 'obs'; the fields are s, r"):
        buffer.data["obs"]
    with pytest.raises(KeyError, match="no field 'goal'; the fields are task, "):
        buffer.meta_data["goal"]
    assert "obs" not in buffer.data
    assert buffer.data.get("obs") is None


def test_meta_data_is_written_through(buffer, reopen):
    buffer.meta_data["task"][:] = [7, 8, 9]
    buffer.meta_data["goal"][1, 2] = 5
    buffer.episode_lens[0] = 2
    other = reopen()
    assert other.meta_data["task"].tolist() == [7, 8, 9]
    assert other.meta_data["goal"].tolist() == [[0, 0, 0], [0, 0, 5], [0, 0, 0]]
    assert other.episode_lens.tolist() == [2, 1, 0]


def test_several_cells_of_one_name_take_the_last_value(buffer):
    buffer.data["r"][[0, 0, 0], [1, 1, 3]] = [7, 8, 9]
    assert buffer.data["r"][0].tolist() == [1, 8, 3, 9]
