"""Points to curves and histograms: pure functions over arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 1_000
N_BINS = 30
_FEWEST_PER_MEAN = 2
_SHARE_OF_MEAN = 50
_LARGEST_WHOLE = 2.0**53

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One line of a curve.

    Attributes:
        label: Its name.
        values: A value for each x; NaN if there is none.
        kind: `line`, `points` or `faint`.
        mean: Mean over the whole time; None for that of the values.
    """

    label: str
    values: Floats
    kind: str = "line"
    mean: float | None = None


@dataclass(frozen=True)
class Curve:
    """A figure over time.

    Attributes:
        key: A name for the page.
        title: Title of the figure.
        note: Source of the data, or the reason why the figure is empty.
        x: Unix times, increasing.
        series: Its lines.
    """

    key: str
    title: str
    note: str
    x: Floats
    series: tuple[Series, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(np.isfinite(each.values).any() for each in self.series)

    @property
    def data(self) -> dict[str, Any]:
        """The data that the browser draws."""
        return {
            "x": [round(float(value), 3) for value in self.x],
            "series": [
                {
                    "label": each.label,
                    "kind": each.kind,
                    "values": [_short(value) for value in each.values],
                }
                for each in self.series
            ],
        }

    @property
    def summary(self) -> tuple[tuple[str, float, float, float, float], ...]:
        """Label, least, mean, greatest and last value of each line."""
        found = []
        for each in self.series:
            finite = each.values[np.isfinite(each.values)]
            if finite.size:
                least, most = float(finite.min()), float(finite.max())
                mean = float(finite.mean()) if each.mean is None else each.mean
                found.append((each.label, least, mean, most, float(finite[-1])))
        return tuple(found)


@dataclass(frozen=True)
class Histogram:
    """A distribution of values.

    Attributes:
        title: Title of the figure.
        note: Source of the data, or the reason why the figure is empty.
        bars: Start, end and number of values of each bar.
        n: Number of values.
        least: Least value.
        median: Median of the values.
        mean: Mean of the values.
        most: Greatest value.
    """

    title: str
    note: str
    bars: tuple[tuple[float, float, int], ...] = ()
    n: int = 0
    least: float = 0.0
    median: float = 0.0
    mean: float = 0.0
    most: float = 0.0

    @property
    def tallest(self) -> int:
        """Number of values of the highest bar."""
        return max((n for *_, n in self.bars), default=0)


def value_curve(key: str, title: str, note: str, x: Floats, values: Floats) -> Curve:
    """Return a curve of single values with their moving mean, in few enough points to draw."""
    has_value = np.isfinite(values)
    x, values = x[has_value], values[has_value]
    width = mean_width(values.size)
    mean = Series(f"mean of {width}", moving_mean(values, width))
    if values.size <= MOST_POINTS:
        return Curve(key, title, note, x, (Series("each", values, "points"), mean))
    parts = np.linspace(0, values.size, MOST_POINTS + 1).astype(np.int64)[:-1]
    sizes = np.diff(np.append(parts, values.size))
    lines = (
        Series("least", np.minimum.reduceat(values, parts), "faint"),
        Series("greatest", np.maximum.reduceat(values, parts), "faint"),
        Series(mean.label, mean.values[parts + sizes - 1]),
    )
    return Curve(key, title, note, x[parts + sizes - 1], lines)


def mean_width(n: int) -> int:
    """Return over how many of n values the moving mean is: 100, or a fiftieth of few."""
    return int(np.clip(n // _SHARE_OF_MEAN, _FEWEST_PER_MEAN, 100))


def moving_mean(values: Floats, width: int) -> Floats:
    """Return the mean of each value and those before it, `width` in all."""
    with np.errstate(all="ignore"):  # of values near the largest float
        sums = np.concatenate([[0.0], np.cumsum(values)])
        ends = np.arange(1, values.size + 1)
        begins = np.maximum(0, ends - width)
        return np.asarray((sums[ends] - sums[begins]) / (ends - begins), np.float64)


def grid_of(begin: float, end: float, n: int, shortest_s: float) -> Floats:
    """Return the edges of at most n equal intervals, none of them shorter than given."""
    n = int(np.clip((end - begin) // shortest_s, 1, n))
    return np.linspace(begin, max(end, begin + shortest_s), n + 1)


def aligned_grid(begin: float, end: float, n: int, width_s: float) -> Floats:
    """Return the edges of about n equal intervals at most, which begin and end at multiples of a
    width.
    """
    width = width_s * max(1, math.ceil((end - begin) / (n * width_s)))
    first = math.floor(begin / width)
    last = max(first + 1, math.ceil(end / width))
    return np.arange(first, last + 1, dtype=np.float64) * width


def ratio_of(parts: Floats, wholes: Floats) -> tuple[Floats, float | None]:
    """Return each part of its whole, and the sum of all parts of the sum of all wholes.

    NaN stands for unknown. A part of nothing is NaN, and counts in the sum.
    """
    is_known = np.isfinite(parts) & np.isfinite(wholes)
    total = float(wholes[is_known].sum())
    ratios = np.divide(
        parts, wholes, out=np.full_like(parts, np.nan), where=is_known & (wholes > 0)
    )
    return ratios, float(parts[is_known].sum()) / total if total else None


def histogram(title: str, note: str, values: Sequence[float] | Floats) -> Histogram:
    """Return how values are distributed; those that are not finite are left out."""
    given = np.asarray(values, np.float64)
    finite = given[np.isfinite(given)]
    if not finite.size:
        return Histogram(title, note)
    if n_left_out := given.size - finite.size:
        note = f"{note} Left out: {n_left_out:,} without a finite value."
    least, most = float(finite.min()), float(finite.max())
    edges = _edges(finite, least, most)
    counts = np.histogram(finite, edges)[0] if edges.size > 2 else [finite.size]
    bars = tuple(
        (float(begin), float(end), int(n))
        for begin, end, n in zip(edges[:-1], edges[1:], counts, strict=True)
    )
    # As parts of the largest: sums may be beyond the largest float.
    largest = max(-least, most) or 1.0
    middle, mean = (
        float(np.clip(of(finite / largest), -1.0, 1.0)) * largest for of in (np.median, np.mean)
    )
    return Histogram(title, note, bars, finite.size, least, middle, mean, most)


def _edges(values: Floats, least: float, most: float) -> Floats:
    is_whole = bool(np.all(values == np.round(values))) and max(-least, most) < _LARGEST_WHOLE
    if is_whole and most / 2 - least / 2 < N_BINS / 2:
        return np.arange(least, most + 2)
    # Half the range: it may be beyond the largest float.
    if (width := (most / 2 - least / 2) / N_BINS) > 0 and np.isfinite(2 * width * N_BINS):
        return np.linspace(least, most, N_BINS + 1)
    return np.array([least, most])


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
