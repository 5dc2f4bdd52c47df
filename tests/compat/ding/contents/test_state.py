"""What a buffer holds, as a dict and as a file."""

import numpy as np
import pytest

from sqlbuffer.compat.ding import ReplayError
from tests.compat.ding.conftest import held


def everything(buffer):
    state = buffer.state_dict()
    return state, buffer.count(), buffer.push_count


def test_a_state_has_the_keys_of_di_engine_and_its_places(make):
    buffer = make()
    buffer.push([{"obs": i} for i in range(7)], 0)
    assert buffer.state_dict() == {
        "data": [{"obs": 5}, {"obs": 6}, {"obs": 2}, {"obs": 3}, {"obs": 4}],
        "tail": 2, "valid_count": 5, "push_count": 7,
    }  # fmt: skip


@pytest.mark.parametrize("n", [0, 1, 5, 8])
def test_state_and_file_bring_everything_back(make, tmp_path, n):
    buffer = make()
    buffer.push([{"obs": i} for i in range(n)], 0)
    path = tmp_path / "a" / "b" / "data_latest.hkl"
    buffer.save_data(str(path))
    for name, load in (
        ("state", lambda other: other.load_state_dict(buffer.state_dict())),
        ("file", lambda other: other.load_data(path)),
    ):
        other = make(name=name)
        other.push(["old"] * 3, 0)
        load(other)
        assert everything(other) == everything(buffer)
        assert held(other) == held(buffer)
        for each in (other, make(name=f"{name}_fresh")):
            each.load_state_dict(buffer.state_dict())
            each.push([{"obs": 100}], 0)
            assert each.push_count == n + 1
            assert held(each)[-1] == {"obs": 100}
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def test_a_state_shares_nothing_with_the_buffer(make):
    buffer = make()
    buffer.push([{"obs": np.zeros(2)}], 0)
    state = buffer.state_dict()
    state["data"][0]["obs"] += 1
    buffer.load_state_dict(state)
    state["data"][0]["obs"] += 1
    buffer.push({"obs": np.ones(2) * 9}, 0)
    assert [item["obs"].tolist() for item in held(buffer)] == [[1, 1], [9, 9]]
    buffer.clear()
    assert (state["valid_count"], len(state["data"])) == (1, 5)


def test_data_alone_is_pushed_behind_what_there_is(make):
    buffer = make()
    buffer.push([1, 2], 0)
    buffer.load_state_dict({"data": [3, None, 4]})
    assert (held(buffer), buffer.push_count) == ([1, 2, 3, 4], 4)


def test_of_a_larger_buffer_the_newest_items_are_kept(make, tmp_path):
    large, small = make(size=8), make(size=3, name="small")
    large.push(list(range(12)), 0)
    large.save_data(tmp_path / "large")
    for load in (
        lambda: small.load_state_dict(large.state_dict()),
        lambda: small.load_data(tmp_path / "large"),
    ):
        load()
        assert (held(small), small.push_count, small.count()) == ([9, 10, 11], 12, 3)
    large.load_state_dict(small.state_dict())
    assert (held(large), large.push_count) == ([9, 10, 11], 12)


def test_a_file_is_replaced_whole_or_stays_as_it_was(make, tmp_path, monkeypatch):
    buffer = make()
    path = tmp_path / "buffer"
    buffer.push([1], 0)
    buffer.save_data(path)
    before = path.read_bytes()
    buffer.push([2], 0)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            buffer.save_data(path)
    assert path.read_bytes() == before
    assert list(tmp_path.glob(".buffer*")) == []
    # Not written over: who reads the old file goes on reading it.
    (tmp_path / "link").hardlink_to(path)
    buffer.save_data(path)
    assert (tmp_path / "link").read_bytes() == before
    other = make(name="other")
    other.load_data(path)
    assert held(other) == [1, 2]


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"PK\x03\x04 cut off"])
def test_another_kind_of_file_is_refused_and_changes_nothing(make, tmp_path, content):
    buffer = make()
    buffer.push([1], 0)
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ReplayError, match=r"is not a file of save_data\(\), or is damaged"):
        buffer.load_data(path)
    with pytest.raises(FileNotFoundError):
        buffer.load_data(tmp_path / "none")
    assert held(buffer) == [1]


BAD_STATES = [
    ({}, "with 'data'"), (None, "with 'data'"), ({"data": 3}, "is a list of items"),
    ({"data": [1], "tail": 0, "valid_count": 2, "push_count": 2}, "cannot have valid_count=2"),
    ({"data": [1], "tail": 1, "valid_count": 1, "push_count": 1}, "tail=1"),
    ({"data": [1], "tail": -1, "valid_count": 1, "push_count": 1}, "'tail' of a state"),
    ({"data": [1], "tail": 0, "valid_count": True, "push_count": 1}, "'valid_count' of a state"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "message"), BAD_STATES)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(make, state, message):
    buffer = make()
    buffer.push([1], 0)
    with pytest.raises(ValueError, match=message):
        buffer.load_state_dict(state)
    assert held(buffer) == [1]


def test_a_state_without_data_is_an_assertion_as_in_di_engine(make):
    with pytest.raises(AssertionError):
        make().load_state_dict({"tail": 0})


@pytest.mark.parametrize("name", [None, "", 3])
def test_a_file_name_is_a_path(make, name):
    buffer = make()
    for call in (buffer.save_data, buffer.load_data):
        with pytest.raises(TypeError, match="file_name is the path"):
            call(name)
