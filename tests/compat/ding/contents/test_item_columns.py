"""Items that are held column by column come back as those that are encoded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from sqlbuffer.compat.ding import ItemError
from sqlbuffer.compat.ding.items import (
    EncodedItems,
    ItemColumns,
    alike_items,
    copied_items,
    decoded_item,
)
from tests.compat.ding.contents.test_items import same

torch = pytest.importorskip("torch")


def transition(i):
    return {
        "obs": {"image": np.full((2, 3), i, np.uint8), "mask": torch.tensor([i > 0, True])},
        "action": np.array([i]),
        "logit": torch.arange(3, dtype=torch.bfloat16) + i,
        "reward": np.float32(i),
        "done": bool(i % 2),
        "weight": None if i % 2 else float(i),
        "text": f"step {i}",
    }


def test_transitions_are_held_column_by_column_and_come_back_equal():
    found = copied_items([transition(i) for i in range(5)])
    assert isinstance(found, ItemColumns)
    for i in range(5):
        assert same(found.item(i), transition(i))
        assert same(decoded_item(*found.encoded(i)), transition(i))
        assert found.length(i) == 7


def test_what_is_pushed_and_what_comes_back_may_be_changed():
    items = [transition(i) for i in range(3)]
    found = copied_items(items)
    for item in (items[1], found.item(1)):
        item["obs"]["image"] += 7
        item["obs"]["mask"][:] = False
        item["logit"] *= 0
        item["action"][0] = 9
        item["obs"]["more"] = 1
        del item["done"]
    assert same(found.item(1), transition(1))


ARRAYS = {
    "views": [np.arange(12.0).reshape(3, 4).T[1], np.arange(6.0)[::2]],
    "transposed": [np.arange(6).reshape(2, 3).T, np.arange(6, 12).reshape(2, 3).T],
    "fortran": [np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.ones((2, 3))],
    "read only": [np.frombuffer(b"abcd", np.uint8), np.zeros(4, np.uint8)],
    "empty": [np.zeros((0, 3)), np.zeros((0, 3))],
    "half": [np.ones(2, np.float16), np.zeros(2, np.float16)],
    "complex": [np.ones(2, np.complex64), np.array([1j, 2], np.complex64)],
    "tensors with a graph": [torch.ones(2, requires_grad=True), torch.zeros(2)],
    "strided tensors": [torch.arange(6).view(2, 3).t(), torch.zeros(3, 2, dtype=torch.int64)],
}


@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_any_layout_in_memory_is_copied_by_value(values):
    found = alike_items([{"x": value} for value in values])
    assert found is not None
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            assert same(found.item(i)["x"], value.detach())
            assert not found.item(i)["x"].requires_grad
        else:
            assert same(found.item(i)["x"], value)
            assert found.item(i)["x"].flags.writeable


OTHERS = {
    "other keys": [{"a": 1}, {"b": 1}],
    "more keys": [{"a": 1}, {"a": 1, "b": 1}],
    "other shapes": [{"a": np.zeros(2)}, {"a": np.zeros(3)}],
    "as many bytes": [{"a": np.zeros((2, 2))}, {"a": np.zeros((4, 1))}],
    "other dtypes": [{"a": np.zeros(2)}, {"a": np.zeros(2, np.int64)}],
    "dtypes that fit": [{"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)}],
    "fewer dimensions": [{"a": np.zeros((2, 1))}, {"a": np.zeros(2)}, {"a": np.array(5.0)}],
    "other byte order later": [{"a": np.zeros(2, "<f4")}, {"a": np.ones(2, ">f4")}],
    "other kinds": [{"a": np.zeros(2)}, {"a": None}],
    "other dtypes of tensors": [{"a": torch.zeros(2)}, {"a": torch.zeros(2).int()}],
    "other shapes of tensors": [{"a": torch.zeros(2)}, {"a": torch.zeros(3)}],
    "conjugated": [{"a": torch.ones(2, dtype=torch.complex64).conj()}],
    "a parameter": [{"a": torch.nn.Parameter(torch.ones(2))}],
    "other byte order": [{"a": np.zeros(2, ">f4")}],
    "texts": [{"a": np.array(["ab", "c"])}],
    "dates": [{"a": np.array(["2020-01-01"], "M8[D]")}],
    "without dimensions": [{"a": np.array(5)}],
    "a list": [{"a": [1, 2]}],
    "keys that are not text": [{1: 2}],
    "no dicts": [1, 2],
    "nested": [{"a": {"b": 1}}, {"a": {"c": 1}}],
}


@pytest.mark.parametrize("items", OTHERS.values(), ids=OTHERS)
def test_items_that_are_not_alike_are_encoded_and_come_back_equal(items):
    found = copied_items(items)
    assert isinstance(found, EncodedItems)
    for i, item in enumerate(items):
        if not any(isinstance(each, torch.nn.Parameter) for each in _values(item)):
            assert same(found.item(i), item)


def _values(item):
    return item.values() if isinstance(item, dict) else ()


REFUSED = [
    object(), np.array([object()]), np.ma.masked_array([1], [True]), torch.ones(2).to_sparse(),
]  # fmt: skip


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_cannot_be_stored_is_refused_as_at_a_url(value):
    with pytest.raises(ItemError) as expected:
        EncodedItems([{"a": value}])
    with pytest.raises(ItemError) as found:
        copied_items([{"a": value}])
    assert str(found.value) == str(expected.value)


constants = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
arrays = st_numpy.arrays(
    st_numpy.scalar_dtypes(), st_numpy.array_shapes(min_dims=0, min_side=0, max_side=3)
)


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), constants | arrays), max_size=3))
def test_any_items_come_back_as_the_codec_gives_them(items):
    found, encoded = copied_items(items), EncodedItems(items)
    for i in range(len(items)):
        assert same(found.item(i), encoded.item(i))
        assert found.length(i) == encoded.length(i)
