"""The curves and distributions of buffers, with what each is made from."""

import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.stats import Distribution, Stats
from sqlbuffer.storage.browsing.buffers import WINDOW_S
from sqlbuffer.storage.browsing.curves import (
    LOOKED_AT_BATCHES,
    MOST_EPISODES,
    ROWS_OF_A_BATCH,
    DrawnCounts,
    DrawnStaleness,
    EpisodePoints,
    StepTimes,
    TimeSpan,
    buffer_number,
    drawn_counts,
    drawn_staleness,
    episode_points,
    now_of,
    rollout_points,
    step_times,
    written_before,
)
from sqlbuffer.storage.flow import BUCKET_S
from sqlbuffer.storage.inspect import buffer_stats, listings

AXES = {"time": "time", "step": "step", "episode": "episode", "version": "version"}
# Lines of one figure; more could not be told apart.
MOST_LINES = 12
# Bands on top of each other hide the lines.
MOST_BANDS = 2
N_COLORS = 12
# More values than this are shown by means.
MOST_VALUES, MOST_MEANS = 100, 240
# Fewer values of two kinds are shown each.
FEWEST_OF_A_RATE = 20
N_BINS = 30
_SHARE_OF_BAND, _FEWEST_OF_BAND, _MOST_OF_BAND = 20, 10, 100
_QUANTILES = (0.1, 0.9)
_Z = 1.6449  # of the 95 % quantile of the normal distribution
_LEAST_STEP = 0.001
_NUMBERED = re.compile(r"(.*?)(\d{0,6})", re.DOTALL | re.ASCII)
_LARGEST_WHOLE = 2.0**53
_MOST_INTERVALS = 120
_SHORTEST_S = 1.0
_OF_DRAWS_S = 60.0
_PRECISION_S = 0.001
_REPORTED = "≈: processes report their draws every 5 seconds."

Floats = NDArray[np.float64]
_NO_TIMES: Floats = np.empty(0)


@dataclass(frozen=True)
class Line:
    """One line of a curve.

    Attributes:
        name: Its name, which its color follows.
        x: Its places on the axis, increasing.
        values: A value for each place; NaN if there is none.
        raw: The values that it is made of.
        times: Unix time of each place; empty on an axis of versions.
        low: Lower end of the band around each value; None without a band.
        high: Upper end of it.
        are_points: The values are single ones, and no line leads from each to the next.
        color: Number of its color; None for that of the name.
        dash: Number of its pattern: 0 is a solid line.
        mean: Mean of all values; None for that of `raw`.
    """

    name: str
    x: Floats
    values: Floats
    raw: Floats
    times: Floats
    low: Floats | None = None
    high: Floats | None = None
    are_points: bool = False
    color: int | None = None
    dash: int = 0
    mean: float | None = None

    @property
    def hue(self) -> int:
        """Number of its color."""
        return color_of(self.name) if self.color is None else self.color

    @property
    def last(self) -> float | None:
        """The last value; None if there is none."""
        finite = self.values[np.isfinite(self.values)]
        return float(finite[-1]) if finite.size else None

    @property
    def data(self) -> dict[str, Any]:
        """The data that the browser draws."""
        data: dict[str, Any] = {
            "name": self.name,
            "color": self.hue,
            "dash": self.dash,
            "points": self.are_points,
            "x": [round(float(place), 3) for place in self.x],
            "t": [round(float(time), 3) for time in self.times],
            "values": [_short(value) for value in self.values],
        }
        if self.low is not None and self.high is not None:
            data["low"] = [_short(value) for value in self.low]
            data["high"] = [_short(value) for value in self.high]
        return data


@dataclass(frozen=True)
class Curve:
    """A figure over time, steps, episodes or versions.

    Attributes:
        key: A name for the page.
        title: Title of the figure.
        note: Source of the data, or the reason why the figure is empty.
        axis: One of `AXES`.
        lines: Its lines.
        has_zero: The axis of its values begins at zero.
    """

    key: str
    title: str
    note: str
    axis: str = "time"
    lines: tuple[Line, ...] = ()
    has_zero: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(np.isfinite(line.values).any() for line in self.lines)

    @property
    def data(self) -> dict[str, Any]:
        """The data that the browser draws."""
        lines = [line.data for line in self.lines]
        return {"axis": self.axis, "zero": self.has_zero, "lines": lines}

    @property
    def summary(self) -> tuple[tuple[str, float, float, float, float], ...]:
        """Name, least, mean, greatest and last value of each line."""
        rows = []
        for line in self.lines:
            finite = line.raw[np.isfinite(line.raw)]
            if finite.size:
                least, most = float(finite.min()), float(finite.max())
                mean = float(finite.mean()) if line.mean is None else line.mean
                rows.append((line.name, least, mean, most, float(finite[-1])))
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
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.bars

    @property
    def tallest(self) -> int:
        """Number of values of the highest bar."""
        return max((n for *_, n in self.bars), default=0)


def color_of(name: str) -> int:
    """Return the number of the color of a name, from 1 on: the same on each page.

    Names that differ in the number at their end have different colors next to each other.

    Example:
        >>> color_of("actor-2") == color_of("actor-2")
        True
        >>> len({color_of(f"actor-{number}") for number in range(12)})
        12
    """
    stem, digits = _NUMBERED.fullmatch(name).groups()  # type: ignore[union-attr]
    return (zlib.crc32(stem.encode("utf-8", "replace")) + int(digits or 0)) % N_COLORS + 1


def value_line(
    name: str,
    x: Floats,
    times: Floats,
    values: Floats,
    *,
    by_version: bool = False,
    has_band: bool = True,
) -> Line:
    """Return a line of single values: each of few, and means of many with a band.

    The band of values that are different is from their 10 % to their 90 % quantile. If there are
    two values alone, such as 0 and 1, it is the interval of their mean: from the 5 % to the 95 %
    quantile of what the mean may be (the score interval of Wilson, 1927).

    Args:
        name: Name of the line.
        x: Places of the values, of shape (n,). Those that are not finite are left out.
        times: Unix time of each.
        values: The values.
        by_version: Values at the same place become one.
        has_band: Many values have a band.
    """
    raw = values[np.isfinite(values)]
    is_known = np.isfinite(values) & np.isfinite(x)
    order = np.flatnonzero(is_known)[np.argsort(x[is_known], kind="stable")]
    x, times, values = x[order], times[order], values[order]
    if not values.size:
        return Line(name, x, values, raw, times)
    two_values = _two_values(values)
    places, firsts = np.unique(x, return_index=True)
    if by_version and places.size <= MOST_MEANS:
        ends = np.append(firsts[1:], x.size)
        parts = [values[first:end] for first, end in zip(firsts, ends, strict=True)]
        means = np.array([_mean(part) for part in parts])
        low, high = np.array([_band(part[None], two_values) for part in parts])[:, :, 0].T
        return _banded(Line(name, places, means, values, _NO_TIMES), low, high, has_band)
    x = _apart(x)  # those of one transaction have the same time
    if two_values is None and values.size <= MOST_VALUES:
        return Line(name, x, values, values, times)
    if values.size < FEWEST_OF_A_RATE:
        return Line(name, x, values, values, times, are_points=True)
    n = min(values.size, MOST_MEANS)
    width = int(np.clip(values.size // _SHARE_OF_BAND, _FEWEST_OF_BAND, _MOST_OF_BAND))
    width = min(values.size, max(width, -(-values.size // n)))
    ends = np.linspace(width, values.size, n).round().astype(np.int64)
    ends = np.unique(ends)
    windows = values[ends[:, None] - width + np.arange(width)]
    low, high = _band(windows, two_values)
    line = Line(name, x[ends - 1], _mean(windows), values, times[ends - 1])
    return _banded(line, low, high, has_band)


def _apart(x: Floats) -> Floats:
    """Return places that increase, each at least a thousandth behind the one before."""
    steps = np.arange(x.size) * _LEAST_STEP
    return np.asarray(np.maximum.accumulate(x - steps) + steps)


def _banded(line: Line, low: Floats, high: Floats, has_band: bool) -> Line:
    return replace(line, low=low, high=high) if has_band else line


def _mean(values: Floats) -> Any:
    with np.errstate(all="ignore"):  # of values near the largest float
        return values.mean(axis=-1)


def _two_values(values: Floats) -> tuple[float, float] | None:
    """Return the two values that there are, if there are no others."""
    least, most = float(values.min()), float(values.max())
    return (least, most) if least < most and np.isin(values, (least, most)).all() else None


def _band(windows: Floats, two_values: tuple[float, float] | None) -> tuple[Floats, Floats]:
    """Return the ends of the band of each window, from values of shape (n, width)."""
    if two_values is None:
        with np.errstate(all="ignore"):
            low, high = np.quantile(windows, _QUANTILES, axis=1)
        return low, high
    least, most = two_values
    n, share = windows.shape[1], (windows == most).mean(axis=1)
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * np.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    ends = (np.clip(middle + sign * half, 0, 1) for sign in (-1, 1))
    low, high = (least + (most - least) * end for end in ends)
    return low, high


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


@dataclass(frozen=True)
class View:
    """What the figures show.

    Attributes:
        span: Part of the history.
        axis: One of `AXES`.
        by: Episodes have a line for each agent, session or version; None: one for each buffer.
    """

    span: TimeSpan = field(default_factory=TimeSpan)
    axis: str = "time"
    by: str | None = None


EVERYTHING = View()


@dataclass(frozen=True)
class BufferFigures:
    """The figures of a buffer that a page shows.

    Attributes:
        stats: Its figures now.
        curves: Its curves, with those of other buffers.
        histograms: Its distributions.
    """

    stats: Stats
    curves: tuple[Curve, ...]
    histograms: tuple[Histogram, ...]

    @property
    def missing(self) -> tuple[Curve | Histogram, ...]:
        """The figures without data."""
        shown: list[Curve | Histogram] = [*self.curves, *self.histograms]
        return tuple(one for one in shown if one.is_empty)


@dataclass(frozen=True)
class _Read:
    """What the curves of one buffer are made of."""

    number: int
    name: str
    ended: EpisodePoints
    steps: StepTimes
    counts: DrawnCounts
    drawn: DrawnStaleness

    def places_of(self, times: Floats, axis: str) -> Floats:
        """Return the places of times on an axis; NaN if unknown."""
        of_step = self.steps.written_at, self.steps.seqs
        of_end = self.ended.ended_at, self.ended.places
        if axis == "time":
            return times
        if axis == "version":
            before = np.searchsorted(self.ended.ended_at, times, side="right") - 1
            known = np.append(self.ended.versions, np.nan)
            return np.asarray(known[before])
        known_at, places = of_step if axis == "step" else of_end
        if not known_at.size:
            return np.full(times.size, np.nan)
        return np.asarray(np.interp(times, known_at, places))

    def places_of_ends(self, axis: str) -> Floats:
        """Return the places of the episodes."""
        ended = self.ended
        places = {"step": ended.seqs, "episode": ended.places, "version": ended.versions}
        return places.get(axis, ended.ended_at)


def _read(connection: Any, name: str, view: View) -> _Read | None:
    number = buffer_number(connection, name)
    if number is None:
        return None
    span = view.span
    ended = episode_points(connection, number, span, view.by)
    if not ended.ended_at.size:
        ended = rollout_points(connection, number, span, view.by)
    return _Read(
        number,
        name,
        ended,
        step_times(connection, number, span),
        drawn_counts(connection, number),
        drawn_staleness(connection, number, span),
    )


def figures_of(
    connection: Any, name: str, view: View = EVERYTHING, others: Sequence[str] = ()
) -> BufferFigures | None:
    """Return the figures of a buffer; None if there is no such buffer.

    Args:
        connection: A snapshot.
        name: The buffer.
        view: What the figures show.
        others: Other buffers that have lines in its curves; those that do not exist are left out.
    """
    own = _read(connection, name, view)
    if own is None:
        return None
    held = listings.held_rows(connection, [own.number])
    (stats,) = buffer_stats.look(connection, held, WINDOW_S, most_episodes=MOST_EPISODES)
    found = [own, *filter(None, (_read(connection, other, view) for other in others))]
    server_time = now_of(connection)
    curves: tuple[Curve, ...] = (
        _of_ends("returns", "Returns", found, view, "returns"),
        _of_ends("lengths", "Lengths of episodes", found, view, "lengths"),
        _speed(connection, found, view),
        _staleness(found, view),
        _samples_per_insert(connection, found, view),
    )
    if view.axis in _UNPLACED and any(one.steps.seqs.size for one in found):
        curves = tuple(_explained(curve) for curve in curves)
    ages = server_time - own.steps.written_at
    return BufferFigures(
        stats, curves, _histograms(stats, own.ended, _of_episodes(own.ended), ages)
    )


_UNPLACED = {
    "version": "No episode here has a model version.",
    "episode": "No episode has ended in this part of the history.",
}


def _explained(curve: Curve) -> Curve:
    """Return a curve whose values have no place on its axis with that reason."""
    has_values = any(np.isfinite(line.raw).any() for line in curve.lines)
    return replace(curve, note=_UNPLACED[curve.axis]) if curve.is_empty and has_values else curve


def _of_episodes(ended: EpisodePoints) -> str:
    n = ended.ended_at.size
    if not n:
        return "No rollout has ended in this part of the history."
    if not ended.has_ends:
        return (
            f"The newest {n:,} rollouts that are stored, at the times of their last steps: none "
            "has a recorded end."
        )
    if ended.is_sample:
        return f"{n:,} episodes, spread evenly over about {ended.places[-1]:,.0f}."
    return f"All {n:,} episodes that have ended."


def _of_ends(key: str, title: str, found: Sequence[_Read], view: View, value: str) -> Curve:
    """Return a curve of values of episodes, with a line for each buffer or each name."""
    parts: list[tuple[str, Floats, Floats, Floats]] = []
    for one in found:
        values, x = getattr(one.ended, value), one.places_of_ends(view.axis)
        if view.by is None:
            parts.append((one.name, x, one.ended.ended_at, values))
            continue
        names = np.array([_name_of(view.by, name) for name in one.ended.names], object)
        for name in _most_frequent(names, view.by):
            is_of = names == name
            label = name if len(found) == 1 else f"{one.name}: {name}"
            parts.append((label, x[is_of], one.ended.ended_at[is_of], values[is_of]))
    n_parts, parts = len(parts), parts[:MOST_LINES]
    has_band = len(parts) <= MOST_BANDS
    lines = [
        value_line(*part, by_version=view.axis == "version", has_band=has_band) for part in parts
    ]
    return Curve(key, title, _note_of_ends(found, lines, n_parts), view.axis, _told_apart(lines))


def _name_of(by: str, name: str | None) -> str:
    return f"no {by}" if name is None else name


def _most_frequent(names: Any, by: str) -> list[str]:
    """Return the names with the most episodes in order, or versions at even distances."""
    counts = Counter(names.tolist())
    if by == "version":
        ordered = sorted(counts, key=_natural)
        places = np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_LINES)).round()
        return [ordered[int(place)] for place in places]
    return sorted([name for name, _ in counts.most_common(MOST_LINES)], key=_natural)


def _natural(name: str) -> tuple[str, int, str]:
    """Return what orders names with the number at their end as a number."""
    stem, digits = _NUMBERED.fullmatch(name).groups()  # type: ignore[union-attr]
    return stem, int(digits or -1), name


def _note_of_ends(found: Sequence[_Read], lines: Sequence[Line], n_parts: int) -> str:
    notes = [
        _of_episodes(one.ended) if len(found) == 1 else f"{one.name}: {_of_episodes(one.ended)}"
        for one in found
    ]
    if banded := next((line for line in lines if line.low is not None), None):
        is_rate = _two_values(banded.raw) is not None
        notes.append(
            "Line: mean. Band: 5 % to 95 % quantile of the mean, by its uncertainty."
            if is_rate
            else "Line: mean. Band: 10 % to 90 % quantile."
        )
    if n_parts > MOST_LINES:
        notes.append(f"The first {MOST_LINES} of {n_parts} lines.")
    return " ".join(notes)


def _told_apart(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return lines with patterns, where two have the same color."""
    counts: Counter[int] = Counter()
    told = []
    for line in lines:
        told.append(replace(line, dash=counts[line.hue]))
        counts[line.hue] += 1
    return tuple(told)


def _staleness(found: Sequence[_Read], view: View) -> Curve:
    lines = [
        value_line(
            one.name, one.places_of(one.drawn.drawn_at, view.axis), one.drawn.drawn_at,
            one.drawn.mean, by_version=view.axis == "version", has_band=False,
        )
        for one in found
    ]  # fmt: skip
    note = (
        f"Mean staleness of the first {ROWS_OF_A_BATCH} rows that are still stored, "
        f"in up to {LOOKED_AT_BATCHES} batches at even distances."
        if any(one.drawn.drawn_at.size for one in found)
        else "This needs track_samples=True, a clock, and steps with a model_version."
    )
    title = "Staleness of sampled steps"
    return Curve("staleness", title, note, view.axis, _told_apart(lines))


@dataclass(frozen=True)
class _Activity:
    """Steps written and rows sampled in intervals; NaN where that is unknown."""

    edges: Floats
    written: Floats
    drawn: Floats

    def per_second(self, counted: Floats) -> tuple[Floats, float | None]:
        """Return a count of each interval as a rate, and that of all known intervals."""
        seconds = np.diff(self.edges)
        known = seconds[np.isfinite(counted)].sum()
        return counted / seconds, float(np.nansum(counted) / known) if known else None


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


def _speed(connection: Any, found: Sequence[_Read], view: View) -> Curve:
    lines = []
    for one in found:
        if not one.steps.seqs.size:
            continue
        activity = _activity(
            connection, one.number, view.span, one.steps, one.counts, _MOST_INTERVALS, BUCKET_S
        )
        for dash, (direction, counted) in enumerate(
            (("in", activity.written), ("≈ out", activity.drawn))
        ):
            rates, mean = activity.per_second(counted)
            name = direction if len(found) == 1 else f"{one.name} {direction}"
            line = _of_intervals(one, view, name, activity.edges[1:], rates, mean)
            lines.append(replace(line, color=color_of(one.name), dash=dash))
    note = (
        f"In: steps written. Out: rows sampled in the last hour. {_REPORTED}"
        if lines
        else "No steps in this part of the history."
    )
    return Curve("speed", "Steps per second", note, view.axis, tuple(lines), has_zero=True)


def _of_intervals(
    one: _Read, view: View, name: str, times: Floats, values: Floats, mean: float | None
) -> Line:
    """Return a line of values of intervals, at the ends of these."""
    x = one.places_of(times, view.axis)
    if view.axis != "version":
        is_placed = np.isfinite(x)
        x = _apart(x[is_placed])
        return Line(name, x, values[is_placed], values, times[is_placed], mean=mean)
    line = value_line(name, x, times, values, by_version=True, has_band=False)
    return replace(line, mean=mean)


def _samples_per_insert(connection: Any, found: Sequence[_Read], view: View) -> Curve:
    lines = []
    for one in found:
        if not one.steps.seqs.size:
            continue
        counts = one.counts
        activity = _activity(
            connection, one.number, view.span, one.steps, counts, _MOST_INTERVALS // 2, _OF_DRAWS_S,
            counts.since,
        )  # fmt: skip
        ratios, of_all = ratio_of(activity.drawn, activity.written)
        if of_all is not None:
            name = "≈ sampled / written" if len(found) == 1 else one.name
            line = _of_intervals(one, view, name, activity.edges[1:], ratios, of_all)
            lines.append(replace(line, color=color_of(one.name)))
    note = (
        "Rows sampled for each row written, minute by minute of the last hour. The mean is that of "
        f"all of them. {_REPORTED}"
        if lines
        else "No rows were written and sampled within the last hour."
    )
    return Curve("ratio", "Samples per insert", note, view.axis, tuple(lines), has_zero=True)


def _histograms(
    stats: Stats, ended: EpisodePoints, of: str, ages_s: Floats
) -> tuple[Histogram, ...]:
    return (
        histogram("Returns", of, ended.returns),
        _of_rows("Priorities", stats.priorities, "The buffer has no priorities."),
        _of_rows(
            "Reuse: number of times a step was sampled",
            stats.uses,
            "Uses are counted in buffers with max_use or leases. On average each "
            f"step was sampled {stats.samples_per_insert or 0:.3g} times.",
        ),
        _of_rows(
            "Staleness of stored steps",
            stats.staleness,
            "The buffer has no clock, or its steps no model_version.",
        ),
        histogram(
            "Age in seconds",
            f"{ages_s.size:,} stored steps, at even distances."
            if ages_s.size
            else "The buffer is empty.",
            ages_s,
        ),
    )


def _of_rows(title: str, distribution: Distribution | None, missing: str) -> Histogram:
    if distribution is None:
        return Histogram(title, missing)
    return histogram(
        title, f"{distribution.n:,} stored steps: all, or an even sample.", distribution.values
    )
