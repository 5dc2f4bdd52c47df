"""The curves and distributions of a buffer, with what each is made from."""

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
)
from sqlbuffer.storage.browsing.buffer_overviews import WINDOW_S
from sqlbuffer.storage.browsing.rollout_curves import rollout_points
from sqlbuffer.storage.inspect import buffer_stats, listings
from sqlbuffer.web.curves import (
    Curve,
    Floats,
    Histogram,
    Series,
    grid_of,
    histogram,
    rates,
    value_curve,
)

# Counting 100,000 would take half of the time that the page may take.
MOST_EPISODES = 10_000
_MOST_INTERVALS = 120
_SHORTEST_S = 1.0
_OF_DRAWS_S = 60.0


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
        _speed(steps, counts),
        value_curve(
            "staleness", "Staleness of sampled steps", stale_note, drawn.drawn_at, drawn.mean
        ),
        _samples_per_insert(steps, counts),
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


def _speed(steps: StepTimes, counts: DrawnCounts) -> Curve:
    if steps.seqs.size < 2:
        return Curve("speed", "Steps per second", "Nothing to show: no steps.", steps.seqs)
    edges = grid_of(steps.written_at[0], steps.written_at[-1], _MOST_INTERVALS, _SHORTEST_S)
    written = Series("in", rates(edges, steps.written_at, steps.seqs))
    note = (
        f"In: from the times of {steps.seqs.size:,} stored steps, at even distances. Out: rows "
        "sampled in the last hour."
    )
    return Curve("speed", "Steps per second", note, edges[1:], (written, _drawn_on(edges, counts)))


def _drawn_on(edges: Floats, counts: DrawnCounts) -> Series:
    """Return the rows sampled in a second of each interval, where they are known."""
    if not counts.rows.size:
        return Series("out", np.full(edges.size - 1, np.nan))
    times, total = _drawn_in_all(counts)
    values = rates(edges, times, total)
    values[edges[1:] <= times[0]] = np.nan
    return Series("out", values)


def _drawn_in_all(counts: DrawnCounts) -> tuple[Floats, Floats]:
    """Return a counter of the rows sampled: the times at which it was read, and its values."""
    ends = counts.begun_at + counts.interval_s
    times = np.column_stack([counts.begun_at, ends]).ravel()
    summed = np.cumsum(counts.rows)
    return times, np.column_stack([summed - counts.rows, summed]).ravel()


def _samples_per_insert(steps: StepTimes, counts: DrawnCounts) -> Curve:
    title = "Samples per insert"
    if steps.seqs.size < 2 or not counts.rows.size:
        note = "Nothing to show: no rows were written and sampled within the last hour."
        return Curve("ratio", title, note, steps.seqs[:0])
    times, total = _drawn_in_all(counts)
    begin, end = max(times[0], steps.written_at[0]), max(times[-1], steps.written_at[-1])
    edges = grid_of(begin, end, _MOST_INTERVALS // 2, _OF_DRAWS_S)
    written = rates(edges, steps.written_at, steps.seqs)
    drawn = rates(edges, times, total)
    ratio = np.divide(drawn, written, out=np.full_like(drawn, np.nan), where=written > 0)
    note = "Rows sampled for each row written, minute by minute of the last hour."
    return Curve("ratio", title, note, edges[1:], (Series("sampled / written", ratio),))


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
