import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sqlbuffer.web.curves import (
    MOST_POINTS,
    grid_of,
    histogram,
    moving_mean,
    rates,
    value_curve,
)

NUMBERS = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=80)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(1, 60))
def test_the_moving_mean_is_that_of_each_value_and_those_before(values, width):
    found = moving_mean(np.array(values), width)
    expected = [np.mean(values[max(0, n - width + 1) : n + 1]) for n in range(len(values))]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@given(NUMBERS)
@example([sys.float_info.max] * 3)
@example([-sys.float_info.max, sys.float_info.max])
def test_every_finite_value_is_in_one_bar(values):
    found = histogram("t", "n", values)
    assert not found.n or np.isfinite([found.mean, found.median]).all()
    assert sum(n for *_, n in found.bars) == found.n == np.isfinite(values).sum()
    assert all(begin <= end for begin, end, _ in found.bars)
    assert len(found.bars) <= 30


@given(NUMBERS)
def test_a_curve_has_what_json_has(values):
    curve = value_curve("k", "t", "n", np.arange(len(values), dtype=float), np.array(values))
    assert curve.is_empty == (not np.isfinite(values).any())
    for each in curve.data["series"]:
        assert len(each["values"]) == len(curve.data["x"])
        assert all(value is None or np.isfinite(value) for value in each["values"])


def test_many_values_are_drawn_as_few_with_their_least_and_greatest():
    values = np.zeros(10_000)
    values[5_003] = 7.0
    curve = value_curve("k", "t", "n", np.arange(10_000.0), values)
    lines = {each.label: each.values for each in curve.series}
    assert set(lines) == {"least", "greatest", "mean of 100"}
    assert curve.x.size == lines["greatest"].size == MOST_POINTS
    assert lines["greatest"].max() == 7.0
    assert lines["least"].max() == 0.0
    assert curve.x[-1] == 9_999


def test_whole_numbers_have_a_bar_each():
    assert histogram("t", "n", [0, 0, 2]).bars == ((0.0, 1.0, 2), (1.0, 2.0, 0), (2.0, 3.0, 1))


def test_rates_are_what_a_counter_grew():
    edges = grid_of(0.0, 100.0, 120, 10.0)
    assert edges.size == 11
    found = rates(edges, np.array([0.0, 50.0, 100.0]), np.array([0.0, 500.0, 500.0]))
    assert found.tolist() == [10.0] * 5 + [0.0] * 5


@pytest.mark.parametrize(("begin", "end"), [(5.0, 5.0), (5.0, 5.5), (5.0, 4.0)])
def test_a_moment_has_one_interval(begin, end):
    assert grid_of(begin, end, 120, 1.0).tolist() == [5.0, 6.0]
