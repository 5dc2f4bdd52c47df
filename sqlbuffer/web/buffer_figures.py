"""The curves and distributions of a buffer, with what each is made from."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sqlbuffer.stats import Distribution, Stats
from sqlbuffer.storage.browsing import buffer_curves
from sqlbuffer.storage.browsing.buffer_curves import (
    DrawnCounts,
    EpisodePoints,
    StepTimes,
    TimeSpan,
    written_before,
)
from sqlbuffer.storage.browsing.buffer_overviews import WINDOW_S
from sqlbuffer.storage.browsing.rollout_curves import rollout_points
from sqlbuffer.storage.flow.limiters import BUCKET_S
from sqlbuffer.storage.inspect import buffer_stats, listings
from sqlbuffer.web.curves import (
    Curve,
    Floats,
    Histogram,
    Series,
    aligned_grid,
    grid_of,
    histogram,
    ratio_of,
    value_curve,
)

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
    number = buffer_curves.buffer_number(connection, name)
    if number is None:
        return None
    held = listings.held_rows(connection, [number])
    (stats,) = buffer_stats.look(connection, held, WINDOW_S, most_episodes=MOST_EPISODES)
    ended = buffer_curves.episode_points(connection, number, span)
    if not ended.ended_at.size:
        ended = rollout_points(connection, number, span)
    steps = buffer_curves.step_times(connection, number, span)
    counts = buffer_curves.drawn_counts(connection, number)
    drawn = buffer_curves.drawn_staleness(connection, number, span)
    now = buffer_curves.now_of(connection)
    of = _of_episodes(ended)
    stale_note = (
        f"Mean staleness of the first {buffer_curves.ROWS_OF_A_BATCH} rows that are still stored, "
        f"in up to {buffer_curves.LOOKED_AT_BATCHES} batches at even distances."
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
    return BufferFigures(stats, curves, _histograms(stats, ended, of, now - steps.written_at))


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
        return f"{n:,} episodes, at even distances among more than {buffer_curves.MOST_EPISODES:,}."
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
    """Count what was written and sampled in at most so many intervals.

    Draws are counted in intervals of ten seconds, so these are made of such. They begin with the
    first step, or with the first whole interval if earlier steps have left; and they end with the
    last write or draw.
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
    at = edges.copy()
    # Times are read to some microseconds.
    at[0], at[-1] = at[0] - _PRECISION_S, at[-1] + _PRECISION_S
    written = np.diff(written_before(connection, number, steps, at))
    return _Activity(edges, written, drawn)


def _speed(
    connection: Any, number: int, span: TimeSpan, steps: StepTimes, counts: DrawnCounts
) -> Curve:
    if not steps.seqs.size:
        return Curve("speed", "Steps per second", "Nothing to show: no steps.", steps.seqs)
    found = _activity(connection, number, span, steps, counts, _MOST_INTERVALS, BUCKET_S)
    note = f"In: steps written. Out: rows sampled in the last hour. {_REPORTED}"
    series = found.per_second("in", found.written), found.per_second("≈ out", found.drawn)
    return Curve("speed", "Steps per second", note, found.edges[1:], series)


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
    found = _activity(
        connection, number, span, steps, counts, _MOST_INTERVALS // 2, _OF_DRAWS_S, counts.since
    )
    ratios, of_all = ratio_of(found.drawn, found.written)
    if of_all is None:
        return empty
    note = (
        "Rows sampled for each row written, minute by minute of the last hour. The mean is that of "
        f"all of them. {_REPORTED}"
    )
    series = (Series("≈ sampled / written", ratios, mean=of_all),)
    return Curve("ratio", title, note, found.edges[1:], series)


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


def _of_rows(title: str, found: Distribution | None, missing: str) -> Histogram:
    if found is None:
        return Histogram(title, missing)
    return histogram(title, f"{found.n:,} stored steps: all, or an even sample.", found.values)
