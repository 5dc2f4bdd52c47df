"""Items come back equal, or are refused."""

import collections
import datetime
import enum
import importlib
import pathlib
import re
import sys
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from sqlbuffer import ReplayBuffer
from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.encoder import ExactEncoder
from sqlbuffer.codec.equality import equal
from sqlbuffer.codec.plain_values import dumps
from sqlbuffer.compat.ding import ItemError, ReplayError, create_buffer
from sqlbuffer.compat.ding.items import decoded_item, encoded_item
from tests.compat.ding.conftest import held

torch = pytest.importorskip("torch")

Step = collections.namedtuple("Step", "obs reward")


class Outer:
    class Pair(NamedTuple):
        left: int
        right: int = 0

        def sum(self):
            return self.left + self.right


def same(left, right):
    """Tell whether two values are the same in kind, dtype, shape and content."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return equal(left, right, strict=True)


def round_trip(item):
    text, arrays = encoded_item(item, "item")
    return decoded_item(text, None if arrays is None else bytes(arrays))


ITEMS = {
    "cartpole": {
        "obs": np.arange(4, dtype=np.float32), "action": np.array([1]), "done": False,
        "reward": np.array([1.0], np.float32), "next_obs": np.ones(4, np.float32), "n": None,
    },
    "nested": {"a": [1, (2.5, "x", None), {"b": [np.zeros((2, 3)), b"raw"]}], "$tensor": {1: True}},
    "named tuple": Step(np.zeros(2), 0.5),
    "named tuples inside": {"x": [Outer.Pair(1), (Step(Outer.Pair(2, 3), {"y": Step(1, 2)}),)]},
    "numpy scalars": [np.float32(0.1), np.float16(2), np.int8(-3), np.bool_(True)],
    "large numpy": [np.uint64(2**63), np.datetime64("2020-01-01")],
    "odd numpy": [np.complex64(1j), np.array(["ab", "c"]), np.float64("nan")],
    "odd arrays": [np.zeros((0, 3)), np.array(5), np.arange(12).reshape(3, 4).T, np.array([True])],
    "numbers": [float("nan"), float("inf"), -0.0, 1e300, 2**70, 3j, datetime.date(2020, 1, 1)],
    "text": ["", "a\0b", "\ud800", "é", {"k\0": 1, "$array": [1]}],
    "a list": [1, 2],
    "a tuple": (1, 2),
    "a number": 3,
    "an array": np.arange(3),
    "a large array": {"x": np.arange(300_000, dtype=np.float64), "y": torch.ones(20_000)},
}  # fmt: skip
TENSORS = [
    torch.arange(4, dtype=torch.float32), torch.tensor(3, dtype=torch.int64), torch.zeros(0, 3),
    torch.ones(2, 3).t(), torch.tensor([True, False]), torch.ones(2, dtype=torch.bfloat16),
    torch.tensor(1.5, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float16)[::2],
    torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.uint8),
    torch.zeros(0, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float8_e4m3fn).view(torch.int8),
]  # fmt: skip


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_an_item_comes_back_equal(item):
    assert same(round_trip(item), item)


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype} {tuple(t.shape)}")
def test_a_tensor_comes_back_as_one_of_its_dtype(tensor):
    for item in (tensor, {"x": tensor}, {"x": [tensor, {"y": tensor}]}):
        assert same(round_trip(item), item)


def test_a_tensor_with_a_graph_comes_back_without(make):
    buffer = make()
    weight = torch.nn.Parameter(torch.ones(2))
    buffer.push([{"w": weight, "y": weight * 2}], 0)
    (item,) = buffer.sample(1, 0)
    assert item["w"].tolist() == [1, 1]
    assert item["y"].tolist() == [2, 2]
    assert not item["y"].requires_grad


def test_items_come_back_equal_from_a_database(make):
    buffer = make(size=20)
    buffer.push(list(ITEMS.values()), 0)
    assert all(map(same, held(buffer), ITEMS.values()))
    assert all(any(same(item, other) for other in ITEMS.values()) for item in buffer.sample(9, 0))


def test_what_is_sampled_may_be_changed_without_changing_what_is_stored(make):
    buffer = make()
    for more in ({}, {"list": [1]}):  # alike, and not
        pushed = {"obs": np.zeros(2), "t": torch.zeros(2), **more}
        buffer.clear()
        buffer.push(pushed, 0)
        pushed["obs"] += 1
        for item in buffer.sample(3, 0, replace=True):
            item["obs"] += 1
            item["t"] += 1
            item.setdefault("list", []).append(2)
        (item,) = buffer.sample(1, 0)
        assert (item["obs"].tolist(), item["t"].tolist()) == ([0, 0], [0, 0])
        assert item.get("list") == more.get("list")
        assert more in ({}, {"list": [1]})


def test_a_named_tuple_without_a_class_of_its_name_is_refused_and_named(make):
    Local = collections.namedtuple("Local", "x")
    other = collections.namedtuple("Step", "obs reward")  # not the one that this name has
    buffer = make()
    for value in (Local(1), other(1, 2), collections.namedtuple("Missing", "x")(1)):
        kind = type(value)
        name = re.escape(f"class {kind.__module__}.{kind.__qualname__}")
        with pytest.raises(
            ItemError, match=rf"item\.a\[0\]: cannot store a named tuple of {name},"
        ):
            buffer.push({"a": [value]}, 0)
    assert buffer.count() == 0


def test_a_class_that_is_not_imported_is_named_and_never_imported(make, tmp_path, monkeypatch):
    (tmp_path / "steps_of_mine.py").write_text(
        "from typing import NamedTuple\n"
        "class Mine(NamedTuple):\n    x: int\n"
        "class Loud(Mine):\n    def __new__(cls, *args): raise AssertionError('constructed')\n"
        "def __getattr__(name): raise AssertionError(name)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    steps = importlib.import_module("steps_of_mine")
    buffer = make()
    buffer.push({"step": steps.Mine(1), "loud": tuple.__new__(steps.Loud, (2,))}, 0)
    (item,) = buffer.sample(1, 0)
    assert (type(item["step"]), type(item["loud"])) == (steps.Mine, steps.Loud)
    buffer.save_data(tmp_path / "items")
    del sys.modules["steps_of_mine"]
    expected = r"class steps_of_mine\.(Mine|Loud) with the fields x, which is not found; import"
    for read in (lambda: buffer.sample(1, 0), lambda: buffer.load_data(tmp_path / "items")):
        with pytest.raises(ItemError, match=expected):
            read()
    assert "steps_of_mine" not in sys.modules
    assert buffer.count() == 1


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "tuple"), ("builtins", "eval"), ("os", "system"), ("sys", "version_info"),
        ("sqlbuffer", "ReplayBuffer"), (__name__, "Outer"), (__name__, "Outer.Pair._make"),
        (__name__, "Step.__new__"), (__name__, "Step.__class__"), ("no.such.module", "Step"),
        (__name__, ""), (__name__, "Outer..Pair"),
    ],
)  # fmt: skip
def test_only_named_tuples_are_found_by_a_stored_name(module, name):
    text = dumps({"$namedtuple": [module, name, ["obs", "reward"], [1, 2]]})
    with pytest.raises(ItemError, match="is not found"):
        decoded_item(text, b"")


def test_the_core_reads_named_tuples_whose_class_is_not_there():
    found = decode(dumps({"$namedtuple": ["no.such", "A.B", ["x", "y"], [1, 2]]}), b"")
    assert (type(found).__name__, found._asdict()) == ("B", {"x": 1, "y": 2})


class Color(enum.Enum):
    RED = 1


REFUSED = [
    object(), torch.ones(2).to_sparse(), np.array([object()]), Color.RED, pathlib.Path("x"),
    collections.deque([1]), torch.float32, int, lambda: 0, np.ma.masked_array([1], [True]),
]  # fmt: skip


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_would_come_back_as_something_else_is_refused_and_its_place_named(value):
    for item in ({"a": [1, {"b": value}]}, {"a": [np.zeros(2), {"b": value}]}):
        with pytest.raises(TypeError, match=r"item\.a\[1\]\.b: cannot store"):
            encoded_item(item, "item")


def test_a_list_with_a_refused_item_is_not_stored_at_all(make):
    buffer = make()
    with pytest.raises(ItemError, match=r"item 1\.obs: cannot store a builtins.object"):
        buffer.push([{"obs": 1}, {"obs": object()}], 0)
    assert (buffer.count(), buffer.push_count) == (0, 0)


def test_an_item_inside_itself_is_refused():
    item = {}
    item["self"] = item
    with pytest.raises(TypeError, match="contains itself"):
        encoded_item(item, "item")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.binary(max_size=5)
    | st_numpy.arrays(
        st_numpy.scalar_dtypes(), st_numpy.array_shapes(min_dims=0, min_side=0, max_side=3)
    )
    | st.builds(lambda x: torch.as_tensor(x), st.lists(st.floats(width=32), max_size=3)),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    | st.tuples(inner, inner),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=150)
@given(values)
def test_any_value_is_written_as_the_general_encoder_writes_it(value):
    text, arrays = encoded_item({"v": value}, "item")
    general = ExactEncoder()
    tree = general.tree({"v": value}, "item")
    expected = decode(dumps(tree), bytes(general.blob))
    assert same_to_the_bit(decode(text, arrays), expected)
    for _ in range(2):  # as it is read first, and once it is known
        assert same_to_the_bit(decoded_item(text, bytes(arrays or b"")), expected)


def same_to_the_bit(left, right):
    encoded = [ExactEncoder() for _ in range(2)]
    trees = [encoder.tree(v, "") for encoder, v in zip(encoded, (left, right), strict=True)]
    return trees[0] == trees[1] and encoded[0].blob == encoded[1].blob


def test_the_core_reads_what_was_pushed_and_scalars_are_columns(buffer_url):
    config = {"type": "naive", "replay_buffer_size": 5, "url": buffer_url}
    buffer = create_buffer(config, None, "experiment", "learner")
    buffer.push(
        {"obs": torch.zeros(3), "reward": torch.tensor([0.5]), "done": True, "collect_iter": 7}, 12
    )
    with ReplayBuffer(buffer_url, name="learner") as core:
        (row,) = core.get_all()
    buffer.close()
    assert (row.exp_data.reward_t, row.exp_meta.step, row.exp_meta.model_version) == (0.5, 12, 7)
    assert (row.exp_meta.task_id, row.exp_meta.agent_id) == ("learner", "experiment")
    assert row.exp_data.state["done"] is True
    assert row.exp_data.state["obs"].dtype == torch.float32


# What a buffer holds, as a dict and as a file.


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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
