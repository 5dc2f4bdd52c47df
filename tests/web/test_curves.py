import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sqlbuffer.web.curves import (
    MOST_POINTS,
    aligned_grid,
    grid_of,
    histogram,
    moving_mean,
    ratio_of,
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


@given(st.floats(0, 1e9), st.floats(0, 1e5), st.integers(1, 130), st.integers(1, 60))
def test_an_aligned_grid_covers_a_time_with_few_multiples_of_a_width(begin, length, most, width):
    edges = aligned_grid(begin, begin + length, most, float(width))
    assert edges[0] <= begin < edges[1]
    assert edges[-2] < begin + length <= edges[-1] or edges.size == 2
    assert edges.size <= most + 2
    assert np.ptp(np.diff(edges)) == 0
    assert (edges % width == 0).all()


def test_the_ratio_of_all_counts_parts_of_nothing_and_leaves_out_what_is_unknown():
    nan = np.nan
    parts, wholes = np.array([30.0, 5.0, nan, 7.0]), np.array([10.0, 0.0, 10.0, nan])
    ratios, of_all = ratio_of(parts, wholes)
    np.testing.assert_array_equal(ratios, [3.0, nan, nan, nan])
    assert of_all == 3.5
    assert ratio_of(parts[1:3], wholes[1:3])[1] is None


@pytest.mark.parametrize(("begin", "end"), [(5.0, 5.0), (5.0, 5.5), (5.0, 4.0)])
def test_a_moment_has_one_interval(begin, end):
    assert grid_of(begin, end, 120, 1.0).tolist() == [5.0, 6.0]
