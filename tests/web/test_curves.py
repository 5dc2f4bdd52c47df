"""What the curves of a buffer are drawn as: few points, bands, colors of names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.web.curves import (
    MOST_MEANS,
    MOST_VALUES,
    N_COLORS,
    Curve,
    color_of,
    value_line,
)

NUMBERS = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300)


def line_of(values, **settings):
    x = np.arange(len(values), dtype=float)
    return value_line("n", x, x, np.array(values, float), **settings)


@given(NUMBERS, st.booleans())
def test_a_curve_has_what_json_has(values, by_version):
    line = line_of(values, by_version=by_version)
    curve = Curve("k", "t", "n", "version" if by_version else "time", (line,))
    assert curve.is_empty == (not np.isfinite(values).any())
    (data,) = curve.data["lines"]
    assert data["x"] == sorted(set(data["x"]))
    for name in {"values", "low", "high"} & data.keys():
        assert len(data[name]) == len(data["x"]) <= max(MOST_VALUES, MOST_MEANS)
        assert all(value is None or np.isfinite(value) for value in data[name])


@given(st.lists(st.floats(-1e6, 1e6), min_size=MOST_VALUES + 1, max_size=500))
def test_many_values_are_few_means_within_their_band_of_all_values(values):
    line = line_of(values)
    assert len(line.values) <= MOST_MEANS
    assert line.x[-1] == len(values) - 1
    if len(set(values)) > 2:
        assert (line.low <= line.high).all()
    assert min(values) <= line.low.min()
    assert line.high.max() <= max(values)
    assert line.raw.tolist() == values


@pytest.mark.parametrize("n", [20, 300, 5_000])
def test_wins_and_losses_are_a_rate_with_its_uncertainty(n):
    rng = np.random.default_rng(n)
    line = line_of(rng.random(n) < 0.3)
    # No line between 0 and 1: the means are of 10 episodes at least.
    assert set(np.unique(line.values * 10).round(6)) - {0.0, 10.0}
    assert (line.low < line.values).sum() > 0
    assert ((line.low <= line.values) & (line.values <= line.high)).all()
    inside = (line.low <= 0.3) & (line.high >= 0.3)
    assert inside.mean() > 0.6


def test_a_few_wins_and_losses_are_points_without_lines():
    line = line_of([0, 1, 0, 0, 1])
    assert line.are_points
    assert line.values.tolist() == [0, 1, 0, 0, 1]


def test_episodes_of_one_version_are_one_point():
    versions, values = np.array([3.0, 1.0, 3.0, np.nan]), np.array([10.0, 5.0, 20.0, 7.0])
    line = value_line("n", versions, versions, values, by_version=True)
    assert line.x.tolist() == [1, 3]
    assert line.values.tolist() == [5, 15]
    assert line.raw.tolist() == [5, 10, 20]


def test_episodes_that_end_at_the_same_time_stay_apart():
    line = value_line("n", np.full(5, 1.7e9), np.full(5, 1.7e9), np.arange(5.0))
    assert np.all(np.diff(np.round(line.x, 3)) > 0)
    assert line.values.tolist() == [0, 1, 2, 3, 4]


@given(st.text(), st.integers(0, 10**6))
def test_a_color_follows_the_name(stem, number):
    name = f"{stem}{number}"
    assert 1 <= color_of(name) <= N_COLORS
    assert color_of(name) == color_of(str(name))


def test_numbered_names_have_different_colors():
    for stem in ("actor-", "", "run ", "\u6578", "a.b_"):
        assert len({color_of(f"{stem}{number}") for number in range(N_COLORS)}) == N_COLORS
