"""Values of any size print in one short line."""

import numpy as np
import pandas as pd
import pytest
import torch

from sqlbuffer.display import short, shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (0.25, "0.25"),
        ("a b", "'a b'"),
        (np.float32(0.5), "0.5"),
        (np.array([1, 2]), "int64(2,) [1 2]"),
        (np.array(["a", "b"], object), "object(2,) ['a' 'b']"),
        (np.zeros((84, 84), np.uint8), "uint8(84, 84) min 0 mean 0 max 0"),
        (np.array([[np.nan, 1.0]]), "float64(1, 2) min 1 mean 1 max 1 1 not finite"),
        (np.zeros((0, 2)), "float64(0, 2) []"),
        (torch.zeros(2, 3), "tensor of torch.float32(2, 3)"),
        ({"b": [1, {"a": (2,)}]}, "{'b': [1, {'a': (2,)}]}"),
        ({"b": 1, "a": 2}, "{'b': 1, 'a': 2}"),
    ],
)
def test_a_small_value_is_whole_and_a_large_array_is_described(value, shown):
    assert short(value) == shown


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 10_000, list(range(10_000)), dict.fromkeys(range(10_000)), b"x" * 10_000),
        *(bytearray(10_000), pytest.param(10**10_000, id="integer"), Broken()),
    ],
)
def test_a_large_or_broken_value_is_short(value):
    assert len(short(value)) < 120
    assert len(shown([[value] * 9] * 9)) < 120


def test_a_value_in_a_message_is_one_line():
    table = pd.DataFrame({"x": range(99)})
    assert "\n" in repr(table)
    assert "\n" not in shown(table)


def test_deep_values_end_in_dots():
    value = []
    for _ in range(500):
        value = [value]
    assert len(short(value)) < 50
