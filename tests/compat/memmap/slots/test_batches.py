"""`store_batch`, `batched_episode`, `store_episode`, `advance_episode` (spec 1.4)."""

import logging

import numpy as np
import pytest

from sqlbuffer.compat.memmap import MemmapError, MemmapTypeError


def test_a_batch_is_a_step_of_several_episodes(make):
    buffer = make()
    with buffer.batched_episode(2, task=[4, 5]):
        for t in range(3):
            buffer.store_batch(r=[t, t + 10.0], s=np.full((2, 2), t))
            assert buffer.episode_lens.tolist() == [t + 1, t + 1, 0]
    assert (buffer.num_episodes, buffer.episode_index) == (2, 2)
    assert buffer.data["r"][:2].tolist() == [[0, 1, 2, -1], [10, 11, 12, -1]]
    assert buffer.data["a"][0].tolist() == [0, 0, 0, 0]
    assert buffer.meta_data["task"].tolist() == [4, 5, -1]


BAD_BATCHES = [
    ({}, "No data provided"),
    ({"q": [1, 2]}, "invalid field names"),
    ({"task": [1, 2]}, "invalid field names"),
    ({"s": np.ones((2, 2)), "r": [1, 2, 3]}, "same batch size"),
    ({"s": np.ones((2, 3))}, "field s - .*broadcast"),
    ({"r": 1.0}, "expected an array"),
    ({"r": []}, "no episodes"),
]


def test_a_batch_that_does_not_fit_stores_nothing(make):
    buffer = make()
    for given, message in BAD_BATCHES:
        with pytest.raises(ValueError, match=message):
            buffer.store_batch(**given)
    assert (buffer.timestep_index, len(buffer)) == (0, 0)


def test_a_batch_past_max_timesteps_is_refused(make):
    buffer = make(max_timesteps=1)
    buffer.store_batch(r=[1, 2])
    with pytest.raises(ValueError, match="max_timesteps"):
        buffer.store_batch(r=[1, 2])


def test_a_batch_is_cut_to_the_room_that_is_left(make):
    buffer = make()
    buffer.store_episode(r=[1.0])
    buffer.store_batch(r=[5, 6, 7, 8])
    assert buffer.episode_lens.tolist() == [1, 1, 1]
    assert buffer.data["r"][:, 0].tolist() == [1, 5, 6]


def test_in_a_ring_the_last_of_a_large_batch_wins(make):
    buffer = make(circular=True)
    buffer.store_batch(r=[5, 6, 7, 8, 9])
    assert buffer.data["r"][:, 0].tolist() == [8, 9, 7]


def test_a_value_of_the_shape_of_a_step_is_broadcast_over_the_episodes(make):
    buffer = make()
    buffer.store_batch(s=[[1, 2], [1, 2]], r=np.ones((2,)))
    buffer.store_batch(s=np.array([3.0, 4.0]))
    assert buffer.data["s"][:2, 1].tolist() == [[3, 4], [3, 4]]


def test_meta_of_open_episodes_may_be_said_before_their_first_step(make, reopen):
    buffer = make()
    buffer.store_meta_batch(task=[4, 5])
    assert (buffer.timestep_index, buffer.meta_data["task"].tolist()) == (0, [4, 5, -1])
    buffer.store_batch(r=[1, 2])
    buffer.store_meta_batch(task=[6, 7])
    assert buffer.meta_data["task"].tolist() == [6, 7, -1]
    buffer.advance_episode(2)
    assert reopen().meta_data["task"].tolist() == [6, 7, -1]
    for given, message in (
        ({"r": [1]}, "invalid meta field names"),
        ({}, "No data provided to store_meta_batch"),
        ({"task": [1, 2], "goal": np.ones((1, 3))}, "same batch size"),
        ({"task": []}, "no episodes"),
        ({"goal": np.ones((2, 2))}, "field goal - "),
    ):
        with pytest.raises(ValueError, match=message):
            buffer.store_meta_batch(**given)


def test_an_empty_batched_block_advances_empty_episodes(make):
    buffer = make()
    with buffer.batched_episode(2, task=[1, 2]):
        pass
    assert (buffer.num_episodes, len(buffer)) == (2, 0)
    assert buffer.meta_data["task"].tolist() == [1, 2, -1]


def test_a_batched_block_wants_room_for_all(make):
    buffer = make()
    buffer.store_episode(r=[1.0])
    buffer.store_episode(r=[1.0])
    with pytest.raises(ValueError, match="is full"):
        buffer.batched_episode(2).__enter__()
    with pytest.raises(ValueError, match="expected meta values of 1 episodes, got 2"):
        buffer.batched_episode(1, task=[1, 2]).__enter__()
    for bad in (0, -1, 4):
        with pytest.raises(ValueError, match="from 1 to 3"):
            buffer.batched_episode(bad).__enter__()
    with pytest.raises(MemmapTypeError):
        buffer.batched_episode(True).__enter__()
    buffer.store_episode(r=[1.0])
    assert buffer.num_episodes == 3


def test_a_batched_block_that_raises_leaves_nothing(make):
    buffer = make()

    def block() -> None:
        with buffer.batched_episode(2):
            buffer.store_batch(r=[1, 2])
            raise KeyError

    with pytest.raises(KeyError):
        block()
    assert (len(buffer), buffer.num_episodes, buffer.timestep_index) == (0, 0, 0)


def test_of_a_batch_that_advances_fewer_the_others_are_let_go(make):
    buffer = make()
    buffer.store_batch(r=[1, 2, 3])
    buffer.advance_episode()
    assert (buffer.num_episodes, buffer.episode_lens.tolist()) == (1, [1, 0, 0])
    buffer.store_episode(s=np.ones((2, 2)))
    assert buffer.data["r"][1].tolist() == [-1] * 4


def test_advance_without_steps_does_nothing_for_one_episode(make):
    buffer = make()
    buffer.advance_episode()
    assert buffer.num_episodes == 0
    for _ in range(3):
        buffer.store_episode(r=[1.0])
    buffer.advance_episode()
    assert buffer.num_episodes == 3
    with pytest.raises(MemmapError, match="is full"):
        buffer.advance_episode(2)


def test_store_episode_converts_scalars_and_single_items(make):
    buffer = make(fields={"r": "float", "one": ("int", 1)}, meta_fields={"k": ("int", 1)})
    buffer.store_episode(r=np.ones((2, 1)), one=[1, 2], k=3)
    assert buffer.data["r"][0].tolist() == [1, 1, 0, 0]
    assert buffer.data["one"][0].tolist() == [[1], [2], [0], [0]]
    assert buffer.meta_data["k"][0].tolist() == [3]
    scalar = make(name="scalar")
    scalar.store_episode(r=[1.0], task=[7])
    assert scalar.meta_data["task"][0] == 7


BAD_EPISODES = [
    ({}, "No data provided"),
    ({"q": [1]}, "invalid field name q"),
    ({"s": np.ones((2, 2)), "r": [1.0, 2.0, 3.0]}, "same time dimension"),
    ({"s": np.ones((2, 3))}, r"invalid shape \(3,\)"),
    ({"task": 1}, "time-varying"),
    ({"r": np.ones(5)}, "max_timesteps"),
    ({"r": [1.0], "goal": [1.0, 2.0]}, r"goal - invalid shape \(2,\)"),
    ({"r": 1.0}, "one value a step"),
    ({"r": ["x"]}, "expected numbers"),
    ({"r": None}, "expected numbers"),
]


def test_an_episode_that_does_not_fit_leaves_nothing(make):
    buffer = make()
    for given, message in BAD_EPISODES:
        with pytest.raises(ValueError, match=message):
            buffer.store_episode(**given)
    assert (buffer.num_episodes, len(buffer), buffer.data["r"][0, 0]) == (0, 0, -1)


def test_an_episode_of_no_steps_stores_nothing(make):
    buffer = make()
    buffer.store_episode(r=np.ones(0), task=4)
    assert (buffer.num_episodes, len(buffer), buffer.meta_data["task"][0]) == (0, 0, -1)


@pytest.mark.thorough
def test_store_episode_overwrites_an_open_episode_and_says_so(make, caplog):
    buffer = make()
    buffer.store(r=1.0)
    buffer.store(r=2.0)
    with caplog.at_level(logging.WARNING, "sqlbuffer"):
        buffer.store_episode(r=[7.0])
    assert "overwrites an open episode of 2 steps" in caplog.text
    assert (buffer.num_episodes, buffer.timestep_index) == (1, 0)
    assert buffer.data["r"][0].tolist() == [7, -1, -1, -1]


def test_values_are_converted_as_numpy_assigns(make):
    torch = pytest.importorskip("torch")
    buffer = make(fields={"i": "int", "u": "uint8", "b": "bool", "f": "float"}, meta_fields=None)
    given = torch.tensor(1.9, requires_grad=True)
    stored = buffer.store(i=given, u=np.array(300), b=2, f=torch.tensor(0.5, dtype=torch.bfloat16))
    assert stored.i is given
    buffer.store(i=np.int64(2**32 + 5), u=[True][0], b=0.0, f=float("nan"))
    assert buffer.data["i"][0, :2].tolist() == [1, 5]
    assert buffer.data["u"][0, :2].tolist() == [300 - 256, 1]
    assert buffer.data["b"][0, :2].tolist() == [True, False]
    assert buffer.data["f"][0, 0] == 0.5
    assert np.isnan(buffer.data["f"][0, 1])
    with pytest.raises(OverflowError):
        buffer.store(u=300)
    assert buffer.timestep_index == 2


def test_a_batched_block_over_used_slots_begins_all_of_them_from_defaults(make):
    buffer = make(circular=True)
    for i in range(4):
        buffer.store_episode(r=np.full(4, 10.0 + i), s=np.ones((4, 2)), task=i)
    with buffer.batched_episode(2):
        buffer.store_batch(r=[1, 2])
    assert buffer.data["r"].tolist() == [[13] * 4, [1, -1, -1, -1], [2, -1, -1, -1]]
    assert buffer.data["s"][1:].tolist() == [[[0, 0]] * 4] * 2
    assert buffer.meta_data["task"].tolist() == [3, -1, -1]
