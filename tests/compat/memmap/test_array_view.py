"""Writing to what an index of `data[...]` returned."""

import copy
import pickle
import warnings

import numpy as np
import pytest

from sqlbuffer.compat.memmap import MemmapError

CHAINS = [
    (0, 1), (0, slice(1, 3)), (slice(1, None), 0, 1), (slice(None), -1), (0, ...), (0, 1, 0),
    ((0, slice(None, None, 2)), 1), (0, (slice(None), 1)), (..., 0), (None, 0), (0, [0, 2]),
    (0, (np.array([True, False, True, False]), 1)), (slice(0, 2), (slice(None), [1, 1])),
    ((), (0, 1, 0)),
]  # fmt: skip


@pytest.fixture
def buffer(make):
    buffer = make()
    buffer.store_episode(r=[3.0, 1.0, 2.0], s=np.arange(6.0).reshape(3, 2), a=[1, 2, 3], task=4)
    buffer.store_episode(r=[4.0], s=[[7.0, 8.0]], a=[5], goal=[1, 2, 3])
    return buffer


@pytest.mark.thorough
def test_assigning_to_what_an_index_returned_writes_to_the_database(buffer, reopen):
    model, other = buffer.data["s"].copy(), reopen()
    for n, (*before, last) in enumerate(CHAINS, start=10):
        found, expected = buffer.data["s"], model
        for index in before:
            found, expected = found[index], expected[index]
        found[last] = n
        expected[last] = n
        assert np.array_equal(found, expected), (before, last)
        assert np.array_equal(other.data["s"], model), (before, last)
    buffer.meta_data["goal"][0][1] = 7
    buffer.meta_data["task"][:2][1] = 8
    buffer.episode_lens[:][0] = 2
    assert other.meta_data["goal"].tolist() == [[0, 7, 0], [1, 2, 3], [0, 0, 0]]
    assert other.meta_data["task"].tolist() == [4, 8, -1]
    assert other.episode_lens.tolist() == [2, 1, 0]


def test_operators_in_place_fill_and_sort_write_to_the_database(buffer, reopen):
    other = reopen().data
    rewards = buffer.data["r"][0]
    rewards *= 2
    assert other["r"][0].tolist() == rewards.tolist() == [6, 2, 4, -2]
    part = rewards[1:3]
    part -= 1
    assert other["r"][0].tolist() == rewards.tolist() == [6, 1, 3, -2]
    buffer.data["r"][0] += 1
    assert other["r"][0].tolist() == [7, 2, 4, -1]
    rewards.sort()
    assert other["r"][0].tolist() == rewards.tolist() == [-1, 2, 4, 7]
    np.add.at(rewards, [0, 0], 5)
    np.divmod(other["a"][0], 2, out=(buffer.data["a"][1], buffer.data["a"][2]))
    assert other["r"][0].tolist() == [9, 2, 4, 7]
    assert other["a"].tolist() == [[1, 2, 3, 0], [0, 1, 1, 0], [1, 0, 1, 0]]
    for row in buffer.data["s"]:
        row[0] = 9
    assert other["s"][:, 0].tolist() == [[9, 9]] * 3
    buffer.data["a"].sort(axis=0)
    assert other["a"].tolist() == [[0, 0, 1, 0], [1, 1, 1, 0], [1, 2, 3, 0]]
    buffer.data["r"].fill(9)
    buffer.meta_data["goal"][1].fill(8)
    assert other["r"].tolist() == [[9] * 4] * 3
    assert buffer.meta_data["goal"].tolist() == [[0] * 3, [8] * 3, [0] * 3]


def test_an_operator_in_place_uses_the_values_that_are_stored_then(buffer, reopen):
    rewards = buffer.data["r"][0]
    reopen().data["r"][0, 1] = 70
    rewards += 1
    assert buffer.data["r"][0].tolist() == rewards.tolist() == [4, 71, 3, 0]


def test_what_cannot_be_written_through_is_refused(buffer):
    before, field, view = buffer.data["s"].tolist(), buffer.data["s"], buffer.data["s"][0]
    for write in (
        lambda: view.partition(0),
        lambda: view.put([0], 5),
        lambda: view.flat.__setitem__(0, 5),
        lambda: np.copyto(view, 5),
        lambda: np.clip(view, 0, 1, out=view),
        lambda: np.random.default_rng(0).shuffle(view.T[0]),
        lambda: np.asarray(view).fill(5),
        lambda: np.asarray(field).fill(5),
        lambda: np.put(field, [0], 5),
        lambda: field.partition(0),
        lambda: field.T.fill(5),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    for made in (view.T, view.reshape(-1), view[...].ravel()):
        with pytest.raises(MemmapError, match=r"read-only: assign to buffer\.data"):
            made[0] = 5
        with pytest.raises(MemmapError, match=r"change a copy\(\)"):
            np.add.at(made, [0], 5)
    with pytest.raises(TypeError, match="Cannot cast"):
        buffer.data["a"][0] *= 1.5
    assert field.tolist() == before


def test_a_buffer_that_is_read_only_refuses_to_write_to_a_view(buffer, reopen):
    view = reopen(read_only=True).data["r"][0]
    with pytest.raises(MemmapError, match="read-only"):
        view[0] = 5
    with pytest.raises(MemmapError, match="read-only"):
        view *= 2
    assert view.tolist() == buffer.data["r"][0].tolist() == [3, 1, 2, -1]


def test_copies_can_be_changed_and_are_not_stored(buffer):
    field, view = buffer.data["s"], buffer.data["s"][0]
    copies = [
        field.copy(), np.array(field), field[[0, 1]], field[field[:] >= 0], field.astype(int),
        view.copy(), np.array(view), view[[0, 1]], view[view > 0], view.astype(int), view + 1,
        np.sort(view), view.sum(0), copy.copy(view), copy.deepcopy(view),
        *(pickle.loads(pickle.dumps(view, protocol)) for protocol in (2, 5)),
    ]  # fmt: skip
    before = field.tolist()
    for each in copies:
        each[...] = 5
        each += 1
        assert (each == 6).all()
    assert field.tolist() == before
    assert repr(view).startswith("array([[0., 1.]")


def test_a_view_is_a_value_to_store(buffer):
    buffer.store(s=buffer.data["s"][0, 1], r=buffer.data["r"][0, 0])
    buffer.data["s"][1] = buffer.data["s"][0]
    buffer.advance_episode()
    assert buffer.data["s"][2, 0].tolist() == [2, 3]
    assert buffer.data["s"][1].tolist() == buffer.data["s"][0].tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.update(0, s=buffer.data["s"][1, :2])


def test_an_index_that_picks_nothing_changes_nothing(buffer):
    before = [buffer.data[name].tolist() for name in "rsa"]
    steps, goals = buffer.data["s"], buffer.meta_data["goal"]
    steps[steps[:] > 100] = 0
    steps[:, :, 0:0] = 0
    steps[0:0] = 0
    steps[0][0:0, 1] = 0
    goals[np.zeros(3, bool), 0] = 0
    goals[0:0] = 0
    goals[[]] *= 2
    buffer.data["r"][buffer.data["r"][:] > 100] = 0
    assert [buffer.data[name].tolist() for name in "rsa"] == before
    assert steps[:, :, 0:0].shape == (3, 4, 0)
    assert goals[np.zeros(3, bool), 0].shape == (0,)
    assert buffer.meta_data["goal"][1].tolist() == [1, 2, 3]
