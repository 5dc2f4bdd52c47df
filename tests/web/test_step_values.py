"""Values of steps as bars, numbers and columns."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sqlbuffer.spaces import Spaces
from sqlbuffer.web.step_values import MOST_BARS, bars, columns_of, numbers_text, shown_value

BOX = {"type": "Box", "dtype": "float32", "shape": [3], "low": -1.0, "high": 1.0}
SPACES = Spaces(
    {"type": "Dict", "spaces": [["front camera", {**BOX}], ["arm", {"type": "Dict", "spaces": [
        ["pose", {**BOX}], ["grip", {"type": "Discrete", "n": 2}]]}]]},
    {"type": "Tuple", "spaces": [{"type": "Discrete", "n": 4}, {**BOX}]},
)  # fmt: skip


@given(st.lists(st.floats(width=64), min_size=1, max_size=MOST_BARS))
def test_bars_stay_in_their_place_and_numbers_that_are_none_have_no_bar(numbers):
    value = shown_value("obs", np.array(numbers))
    (column,), _ = columns_of([value])
    drawn = str(bars(numbers, column.least, column.greatest))
    assert "nan" not in drawn
    assert "inf" not in drawn
    height = float(re.search(r'height="(\d+)"', drawn)[1])
    found = re.findall(r"M(\d+) ([\d.]+)v(-?[\d.]+)h", drawn)
    assert len(found) == np.sum(~np.isnan(numbers))
    for _, zero, up in found:
        assert float(zero) + min(float(up), 0) >= -1
        assert float(zero) + max(float(up), 0) <= height + 1


@given(st.lists(st.lists(st.floats(-1e5, 1e5), min_size=3, max_size=3), min_size=1))
@example([[-0.0, 1.0, 2.0], [3.0, 1.0, 2.5]])
@example([[1e-300, -1e-301, 0.0], [0.0, 0.0, 1e-5]])
def test_numbers_of_a_column_are_equally_wide(rows):
    values = [shown_value("obs", np.array(row)) for row in rows]
    (column,), _ = columns_of(values)
    assert len({len(numbers_text(value.numbers, column)) for value in values}) == 1


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (np.float32(0.5), "float32", "0.5"),
        (np.arange(17, dtype=np.int8), "int8(17,)", "min 0 mean 8 max 16"),
        (np.zeros((2, 0)), "float64(2, 0)", "[]"),
        (np.zeros(0), "float64(0,)", "[]"),
        (np.full(9, 1.7e308), "float64(9,)", "min 1.7e+308 mean inf max 1.7e+308"),
        (np.array("text"), "<U4", "text"),
        (np.array(["a", "b"]), "<U1(2,)", "a b"),
        (np.array([np.nan] * 20), "float64(20,)", "no finite number"),
        (True, "", "true"),
        (None, "", "none"),
        ({"a": 1}, "", "{a: 1}"),
        ("<b>", "", "<b>"),
    ],
)
def test_the_dtype_is_apart_from_the_value(value, kind, text):
    found = shown_value("x", value)
    assert (found.kind, found.text.replace('"', "")) == (kind, text)


def test_a_column_has_the_dtype_once_unless_values_differ():
    same = [shown_value("x", np.zeros(6, np.float32)) for _ in range(3)]
    (column,), _ = columns_of(same)
    assert (column.kind, column.is_number) == ("float32(6,)", False)
    (column,), _ = columns_of([*same, shown_value("x", np.zeros(7, np.float32))])
    assert column.kind == ""
    (column,), _ = columns_of([shown_value("x", 3), shown_value("x", np.nan)])
    assert column.is_number


def test_columns_have_the_keys_of_their_spaces():
    names = ["obs_front_camera", "obs_arm_pose", "next_obs_arm_grip", "action_0", "other"]
    columns, n_more = columns_of([shown_value(name, 1) for name in names], SPACES)
    titles = [
        "obs \u203a front camera",
        "obs \u203a arm \u203a pose",
        "next_obs \u203a arm \u203a grip",
        "action \u203a 0",
    ]
    assert [column.title for column in columns] == [*titles, "other"]
    assert [column.space for column in columns[2:]] == ["Discrete(2)", "Discrete(4)", ""]
    assert n_more == 0


def test_columns_that_have_no_place_are_counted():
    columns, n_more = columns_of([shown_value(f"x{i}", i) for i in range(40)])
    assert (len(columns), n_more) == (24, 16)
