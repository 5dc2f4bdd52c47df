"""The curves and distributions of a buffer, with what each is made from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.stats import Distribution, Stats
from sqlbuffer.storage.browsing import curves as stored_curves
from sqlbuffer.storage.browsing.buffers import WINDOW_S
from sqlbuffer.storage.browsing.curves import (
    DrawnCounts,
    EpisodePoints,
    StepTimes,
    TimeSpan,
    rollout_points,
    written_before,
)
from sqlbuffer.storage.flow import BUCKET_S
from sqlbuffer.storage.inspect import buffer_stats, listings

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
        return not any(np.isfinite(line.values).any() for line in self.series)

    @property
    def data(self) -> dict[str, Any]:
        """The data that the browser draws."""
        return {
            "x": [round(float(value), 3) for value in self.x],
            "series": [
                {
                    "label": line.label,
                    "kind": line.kind,
                    "values": [_short(value) for value in line.values],
                }
                for line in self.series
            ],
        }

    @property
    def summary(self) -> tuple[tuple[str, float, float, float, float], ...]:
        """Label, least, mean, greatest and last value of each line."""
        rows = []
        for line in self.series:
            finite = line.values[np.isfinite(line.values)]
            if finite.size:
                least, most = float(finite.min()), float(finite.max())
                mean = float(finite.mean()) if line.mean is None else line.mean
                rows.append((line.label, least, mean, most, float(finite[-1])))
        return tuple(rows)


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
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return Histogram(title, note)
    if n_left_out := numbers.size - finite.size:
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


# Counting 100,000 would take half of the time that the page may take.
MOST_EPISODES = 10_000
_MOST_INTERVALS = 120
_SHORTEST_S = 1.0
_OF_DRAWS_S = 60.0
_PRECISION_S = 0.001
_REPORTED = "≈: processes report their draws every 5 seconds."


@dataclass(frozen=True)
class BufferFigures:
    """The figures of a buffer that a page shows.

    Attributes:
        stats: Its figures now.
        curves: Its curves over time.
        histograms: Its distributions.
    """

    stats: Stats
    curves: tuple[Curve, ...]
    histograms: tuple[Histogram, ...]


def figures_of(connection: Any, name: str, span: TimeSpan) -> BufferFigures | None:
    """Return the figures of a buffer over a part of its history; None if there is no such buffer.

    Args:
        connection: A snapshot.
        name: The buffer.
        span: Part of the history.
    """
    number = stored_curves.buffer_number(connection, name)
    if number is None:
        return None
    held = listings.held_rows(connection, [number])
    (stats,) = buffer_stats.look(connection, held, WINDOW_S, most_episodes=MOST_EPISODES)
    ended = stored_curves.episode_points(connection, number, span)
    if not ended.ended_at.size:
        ended = rollout_points(connection, number, span)
    steps = stored_curves.step_times(connection, number, span)
    counts = stored_curves.drawn_counts(connection, number)
    drawn = stored_curves.drawn_staleness(connection, number, span)
    server_time = stored_curves.now_of(connection)
    of = _of_episodes(ended)
    stale_note = (
        f"Mean staleness of the first {stored_curves.ROWS_OF_A_BATCH} rows that are still stored, "
        f"in up to {stored_curves.LOOKED_AT_BATCHES} batches at even distances."
        if drawn.drawn_at.size
        else "Nothing to show: this needs track_samples=True, a clock, and steps with a "
        "model_version."
    )
    curves = (
        value_curve("returns", "Returns", of, ended.ended_at, ended.returns),
        value_curve("lengths", "Lengths of episodes", of, ended.ended_at, ended.lengths),
        _speed(connection, number, span, steps, counts),
        value_curve(
            "staleness", "Staleness of sampled steps", stale_note, drawn.drawn_at, drawn.mean
        ),
        _samples_per_insert(connection, number, span, steps, counts),
    )
    return BufferFigures(
        stats, curves, _histograms(stats, ended, of, server_time - steps.written_at)
    )


def _of_episodes(ended: EpisodePoints) -> str:
    n = ended.ended_at.size
    if not n:
        return "Nothing to show: no rollout has ended in this part of the history."
    if not ended.has_ends:
        return (
            f"The newest {n:,} rollouts that are stored, at the times of their last steps: none "
            "has a recorded end."
        )
    if ended.is_sample:
        return f"{n:,} episodes, at even distances among more than {stored_curves.MOST_EPISODES:,}."
    return f"All {n:,} episodes that have ended."


@dataclass(frozen=True)
class _Activity:
    """Steps written and rows sampled in intervals; NaN where that is unknown."""

    edges: Floats
    written: Floats
    drawn: Floats

    def per_second(self, label: str, counted: Floats) -> Series:
        """Return a count of each interval as a rate, with that of all known intervals."""
        seconds = np.diff(self.edges)
        known = seconds[np.isfinite(counted)].sum()
        mean = float(np.nansum(counted) / known) if known else None
        return Series(label, counted / seconds, mean=mean)


def _activity(
    connection: Any,
    number: int,
    span: TimeSpan,
    steps: StepTimes,
    counts: DrawnCounts,
    most: int,
    width_s: float,
    since: float = -math.inf,
) -> _Activity:
    """Count written and sampled steps in at most `most` intervals.

    Draws are counted in buckets of ten seconds, so each interval is made of whole buckets. The
    intervals begin with the first step, or with the first whole one if earlier steps have left.
    They end with the last write or draw.
    """
    begin, end = float(steps.written_at[0]), max(float(steps.written_at[-1]), counts.last_at)
    if steps.n_before or begin < since:
        begin = math.ceil(max(begin, since) / BUCKET_S) * BUCKET_S
    if span.until is not None:
        end = min(end, span.until // BUCKET_S * BUCKET_S)
    if counts.rows.size and begin < end:
        cells = aligned_grid(begin, end, most, width_s)
        edges = np.concatenate([[begin], cells[1:-1], [end]])
        is_inside = counts.begun_at > begin - BUCKET_S
        inside = counts.begun_at[is_inside]
        drawn, _ = np.histogram(inside, cells, weights=counts.rows[is_inside])
        drawn[edges[:-1] < counts.since] = np.nan
    else:
        edges = grid_of(steps.written_at[0], steps.written_at[-1], most, _SHORTEST_S)
        drawn = np.full(edges.size - 1, np.nan)
    bounds = edges.copy()
    # Times are read to some microseconds.
    bounds[0], bounds[-1] = bounds[0] - _PRECISION_S, bounds[-1] + _PRECISION_S
    written = np.diff(written_before(connection, number, steps, bounds))
    return _Activity(edges, written, drawn)


def _speed(
    connection: Any, number: int, span: TimeSpan, steps: StepTimes, counts: DrawnCounts
) -> Curve:
    if not steps.seqs.size:
        return Curve("speed", "Steps per second", "Nothing to show: no steps.", steps.seqs)
    activity = _activity(connection, number, span, steps, counts, _MOST_INTERVALS, BUCKET_S)
    note = f"In: steps written. Out: rows sampled in the last hour. {_REPORTED}"
    series = (
        activity.per_second("in", activity.written),
        activity.per_second("≈ out", activity.drawn),
    )
    return Curve("speed", "Steps per second", note, activity.edges[1:], series)


def _samples_per_insert(
    connection: Any, number: int, span: TimeSpan, steps: StepTimes, counts: DrawnCounts
) -> Curve:
    title = "Samples per insert"
    empty = Curve(
        "ratio",
        title,
        "Nothing to show: no rows were written and sampled within the last hour.",
        steps.seqs[:0],
    )
    if not steps.seqs.size:
        return empty
    activity = _activity(
        connection, number, span, steps, counts, _MOST_INTERVALS // 2, _OF_DRAWS_S, counts.since
    )
    ratios, of_all = ratio_of(activity.drawn, activity.written)
    if of_all is None:
        return empty
    note = (
        "Rows sampled for each row written, minute by minute of the last hour. The mean is that of "
        f"all of them. {_REPORTED}"
    )
    series = (Series("≈ sampled / written", ratios, mean=of_all),)
    return Curve("ratio", title, note, activity.edges[1:], series)


def _histograms(
    stats: Stats, ended: EpisodePoints, of: str, ages_s: Floats
) -> tuple[Histogram, ...]:
    return (
        histogram("Returns", of, ended.returns),
        _of_rows("Priorities", stats.priorities, "Nothing to show: the buffer has no priorities."),
        _of_rows(
            "Reuse: number of times a step was sampled",
            stats.uses,
            "Nothing to show: uses are counted in buffers with max_use or leases. On average each "
            f"step was sampled {stats.samples_per_insert or 0:.3g} times.",
        ),
        _of_rows(
            "Staleness of stored steps",
            stats.staleness,
            "Nothing to show: the buffer has no clock, or its steps no model_version.",
        ),
        histogram(
            "Age in seconds",
            f"{ages_s.size:,} stored steps, at even distances."
            if ages_s.size
            else "Nothing to show: the buffer is empty.",
            ages_s,
        ),
    )


def _of_rows(title: str, distribution: Distribution | None, missing: str) -> Histogram:
    if distribution is None:
        return Histogram(title, missing)
    return histogram(
        title, f"{distribution.n:,} stored steps: all, or an even sample.", distribution.values
    )
