"""`store`, `one_episode` and what they leave behind (spec 1.3, 1.4)."""

import sqlite3

import numpy as np
import pytest

import sqlbuffer
from sqlbuffer import ReplayBuffer as CoreBuffer
from sqlbuffer.compat.memmap import MemmapError, MemmapTypeError, ReplayBuffer


@pytest.mark.thorough
def test_an_episode_is_read_as_it_was_stored(make, reopen):
    buffer = make()
    with buffer.one_episode(task=7) as late:
        for t in range(3):
            stored = buffer.store(s=np.array([t, t + 0.5]), r=float(t), a=t)
            assert (stored.s.tolist(), stored.r, stored.a) == ([t, t + 0.5], t, t)
        late["goal"] = [1.0, 2.0, 3.0]
    for each in (buffer, reopen(), reopen(read_only=True)):
        assert (each.num_episodes, len(each), each.episode_index, each.timestep_index) == (
            1, 1, 1, 0,
        )  # fmt: skip
        assert each.episode_lens.tolist() == [3, 0, 0]
        assert each.data["s"][0].tolist() == [[0, 0.5], [1, 1.5], [2, 2.5], [0, 0]]
        assert each.data["r"][0].tolist() == [0, 1, 2, -1]
        assert each.data["r"][1].tolist() == [-1] * 4
        assert each.data["a"][0].dtype == np.int32
        assert each.meta_data["task"][:].tolist() == [7, -1, -1]
        assert each.meta_data["goal"][0].tolist() == [1, 2, 3]


def test_a_field_that_is_missing_or_none_has_its_default(make):
    buffer = make()
    stored = buffer.store(s=None)
    assert stored.s.tolist() == [0, 0]
    assert (stored.r, stored.a) == (-1, 0)
    assert buffer.data["r"][0, 0] == -1


def test_a_scalar_is_broadcast_and_other_shapes_are_refused(make):
    buffer = make()
    assert buffer.store(s=4).s.tolist() == [4, 4]
    for bad in ({"s": np.ones(1)}, {"r": np.ones(1)}, {"s": np.array(3.0)}, {"s": np.ones((2, 2))}):
        with pytest.raises(ValueError, match="invalid shape"):
            buffer.store(**bad)
    with pytest.raises(MemmapTypeError, match="field s"):
        buffer.store(s="x")
    with pytest.raises(MemmapError, match="field a"):
        buffer.store(s=[8, 8], r=9.0, a=[1, 2])
    assert (buffer.timestep_index, buffer.episode_lens[0]) == (1, 1)
    assert buffer.data["s"][0, 1].tolist() == [0, 0]


def test_lists_tuples_and_numbers_of_numpy_are_values(make):
    buffer = make()
    buffer.store(s=[1, 2], r=np.float64(3), a=np.array(4))
    buffer.store(s=(3, 4), r=True, a=np.int64(5))
    assert buffer.data["s"][0, :2].tolist() == [[1, 2], [3, 4]]
    assert buffer.data["r"][0, :2].tolist() == [3, 1]
    assert buffer.data["a"][0, :2].tolist() == [4, 5]


def test_a_step_stored_before_a_block_is_the_first_of_its_episode(make):
    buffer = make()
    buffer.store(r=9.0)
    with buffer.one_episode(task=2):
        buffer.store(r=1.0)
    assert (buffer.num_episodes, buffer.meta_data["task"][0]) == (1, 2)
    assert buffer.data["r"][0].tolist() == [9, 1, -1, -1]


def test_unknown_names_are_ignored_by_store(make):
    buffer = make()
    assert buffer.store(r=1.0, other=3, task=9)._asdict().keys() == {"s", "r", "a"}
    assert buffer.meta_data["task"][0] == -1


def test_no_more_than_max_timesteps_are_stored(make):
    buffer = make()
    for _ in range(4):
        buffer.store(r=1)
    with pytest.raises(MemmapError, match="max_timesteps"):
        buffer.store(r=1)
    buffer.advance_episode()
    assert buffer.episode_lens.tolist() == [4, 0, 0]


def test_the_open_episode_is_seen_by_its_writer_alone(make, reopen):
    buffer = make()
    buffer.store(r=1)
    buffer.store(r=2)
    assert (buffer.num_episodes, len(buffer), buffer.is_new_episode) == (0, 1, False)
    assert buffer.data["r"][0].tolist() == [1, 2, -1, -1]
    assert len(reopen(read_only=True)) == 0


def test_an_empty_block_advances_nothing(make):
    buffer = make()
    with buffer.one_episode(task=3):
        pass
    assert (buffer.num_episodes, len(buffer), buffer.meta_data["task"][0]) == (0, 0, -1)


def test_a_full_circular_buffer_lets_the_oldest_go(make):
    buffer = make(circular=True)
    for n in range(5):
        buffer.store_episode(r=np.full(n % 4 + 1, n), task=n)
    assert (buffer.num_episodes, buffer.episode_index) == (3, 2)
    assert buffer.meta_data["task"].tolist() == [3, 4, 2]
    assert buffer.episode_lens.tolist() == [4, 1, 3]
    assert buffer.data["r"][1].tolist() == [4, -1, -1, -1]


@pytest.mark.thorough
def test_the_rows_of_an_episode_leave_with_it(make, buffer_url):
    buffer = make(circular=True)
    for n in range(7):
        with buffer.batched_episode(2):
            for _ in range(n % 4 + 1):
                buffer.store_batch(r=[n, n])
        buffer.store_episode(r=[1.0, 2.0])
    core = CoreBuffer(buffer_url, name="memmap")
    assert len(core) == buffer.episode_lens.sum() == 3 + 3 + 2
    core.close()


def test_numbers_that_json_has_not_are_stored_as_well(make, buffer_url):
    buffer = make(fields={"reward": "float", "r": "float"})
    special = [float("nan"), float("inf"), -float("inf"), -0.0, 1e20, 1e39]
    for value in special[:4]:
        buffer.store(reward=value, r=value)
    buffer.advance_episode()
    buffer.store_episode(reward=special[2:], r=special[2:])
    for slot, values in enumerate((special[:4], special[2:])):
        with np.errstate(over="ignore"):
            expected = np.array(values).astype(np.float32)
        for name in ("reward", "r"):
            assert buffer.data[name][slot].tobytes() == expected.tobytes()
    core = CoreBuffer(buffer_url, name="memmap")
    found = core.sample_arrays(128)["r"]
    assert np.isnan(found).any()
    assert np.isinf(found).any()
    core.close()


# Rows of whole episodes are joined by the database: to the byte as they were written.


FIELDS = {"raw": ("uint8", (256,)), "x": "float"}
BYTES = np.arange(256, dtype=np.uint8)


@pytest.fixture
def of_50(make):
    return make(fields=FIELDS, meta_fields=None, max_timesteps=50)


def store(buffer, n=40):
    rows = np.stack([np.roll(BYTES, i) for i in range(n)])
    buffer.store_episode(raw=rows, x=np.arange(n, dtype="f4"))
    return rows


def test_whole_episodes_of_any_bytes_come_back_as_they_were(of_50):
    rows = store(of_50)
    store(of_50, n=50)
    np.testing.assert_array_equal(of_50.data["raw"][0, :40], rows)
    np.testing.assert_array_equal(of_50.data["x"][1], np.arange(50))


def test_steps_whose_rows_were_deleted_have_defaults(of_50, buffer_url):
    rows = store(of_50)
    with sqlbuffer.ReplayBuffer(buffer_url, name="memmap") as core:
        assert core.delete({"field": "exp_meta.step", "op": "eq", "value": 7}) == 1
    rows[7] = 0
    np.testing.assert_array_equal(of_50.data["raw"][0, :40], rows)


@pytest.mark.parametrize("n", [8, 49])
def test_long_runs_are_read_wherever_they_begin(of_50, n):
    store(of_50, n=50)
    np.testing.assert_array_equal(of_50.data["x"][0, 50 - n :], np.arange(50 - n, 50))


def test_a_file_in_utf_16_is_read_to_the_byte_too(tmp_path):
    file = tmp_path / "wide.sqlite"
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA encoding = 'UTF-16'")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    url = f"sqlite:///{file}"
    sqlbuffer.ReplayBuffer(url, create=True).close()
    buffer = ReplayBuffer(url, max_episodes=3, max_timesteps=50, fields=FIELDS)
    rows = store(buffer)
    np.testing.assert_array_equal(buffer.data["raw"][0, :40], rows)
    buffer.close()
