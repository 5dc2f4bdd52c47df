"""Figures of a buffer at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.rate_limits import Waiting

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Removed:
    """Numbers of rows that were deleted because they could never be sampled again, by cause; see
    `ReplayBuffer.expire`. A row with several causes counts under the first.

    Attributes:
        expired: Too old by the clock (`max_staleness`).
        used_up: Sampled `max_use` times.
        other_session: Not of the current session (`current_session_only`).
        aged: Older than `max_age`.
        oversize: Left for `max_bytes`.

    Example:
        >>> (Removed(expired=3, used_up=0, other_session=1) + Removed(1, 0, 0)).total
        5
    """

    expired: int
    used_up: int
    other_session: int
    aged: int = 0
    oversize: int = 0

    @property
    def total(self) -> int:
        """Sum of the numbers."""
        return self.expired + self.used_up + self.other_session + self.aged + self.oversize

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(
            self.expired + other.expired,
            self.used_up + other.used_up,
            self.other_session + other.other_session,
            self.aged + other.aged,
            self.oversize + other.oversize,
        )


@dataclass(frozen=True)
class Distribution:
    """The distribution of a figure over rows.

    Attributes:
        n: Number of rows that were read: all, or a uniform sample.
        mean: Mean.
        min: Least.
        p10: Value that a tenth of the rows is below.
        median: Value that half of the rows is below.
        p90: Value that nine tenths of the rows are below.
        max: Greatest.
        values: The values, float64 of shape (n,), for a histogram.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", priorities=True)
        >>> buffer.extend({"state": [0, 1, 2]}, priority=[1.0, 2.0, 6.0]).inserted
        3
        >>> found = buffer.stats().priorities
        >>> found.mean, found.median, found.max
        (3.0, 2.0, 6.0)
    """

    n: int
    mean: float
    min: float
    p10: float
    median: float
    p90: float
    max: float
    values: NDArray[np.float64] = field(repr=False, compare=False)


def distribution(values: Sequence[float] | NDArray[Any]) -> Distribution | None:
    """Return the distribution of values; None if there are none."""
    array = np.asarray(values, np.float64)
    if not array.size:
        return None
    p10, median, p90 = np.quantile(array, QUANTILES)
    return Distribution(
        array.size,
        float(array.mean()),
        float(array.min()),
        float(p10),
        float(median),
        float(p90),
        float(array.max()),
        array,
    )


@dataclass(frozen=True)
class Stats:
    """Figures of a buffer at one moment, for all processes together; see `ReplayBuffer.stats`.

    Attributes:
        buffer: Name of the buffer.
        rows: Number of rows.
        exact: Whether `rows`, `fill` and `evicted` are exact. `sqlbuffer watch` and the web page
            estimate them in a buffer that only plain SQL has filled with over a million rows.
        capacity: Largest number of rows; None is unlimited.
        inserted: Rows ever inserted. It counts numbers, so rows of writes that were rolled back
            count too.
        evicted: Rows that were evicted, deleted or rolled back; it does not include the next five
            counts. It never falls in one process. It leaves out the numbers that a write took and
            has not stored yet.
        expired: Rows deleted because they were too stale by the clock; see `ReplayBuffer.expire`.
        used_up: Rows deleted because they were sampled `max_use` times.
        other_session: Rows deleted because they were of another session.
        partial: Rows deleted because their group stayed incomplete, or they came late.
        flat: Rows deleted because the rewards of their group differed too little (`on_flat`).
        sampled: Rows ever sampled; processes report them every 5 seconds.
        batches: Number of sampled batches.
        window_s: Seconds over which rates are measured, or the seconds since the buffer was
            created.
        insert_rate: Rows inserted per second; if all rows are younger than the window, since the
            oldest row. None if no row is left to measure it.
        sample_rate: Rows sampled per second, about: processes report them every 5 seconds, and the
            time begins within an interval of 10 seconds.
        oldest_age_s: Seconds since the oldest row was written; None for an empty buffer.
        newest_age_s: Seconds since the newest row was written.
        episodes: Episodes that are open or have stored steps, counted up to 100,000. If `sqlbuffer
            watch` shows many buffers, each is counted up to at least 1,000.
        clock: The learner's iteration or model version; None if it is not set.
        uses: Number of times that rows were sampled or leased; None for a buffer without `max_use`
            and leases.
        priorities: Priorities of rows; None for a buffer without.
        staleness: Distance of rows behind the clock; None without a clock, or without rows that
            have a `model_version`.
        waiting: Calls that wait for a rate limiter.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", max_capacity=2)
        >>> buffer.extend({"state": [0, 1, 2]}).inserted
        3
        >>> stats = buffer.stats()
        >>> stats.rows, stats.inserted, stats.evicted
        (2, 3, 1)
    """

    buffer: str
    rows: int
    exact: bool
    capacity: int | None
    inserted: int
    evicted: int
    expired: int
    used_up: int
    other_session: int
    partial: int
    flat: int
    sampled: int
    batches: int
    window_s: float
    insert_rate: float | None
    sample_rate: float
    oldest_age_s: float | None
    newest_age_s: float | None
    episodes: int
    clock: int | None
    uses: Distribution | None
    priorities: Distribution | None
    staleness: Distribution | None
    waiting: tuple[Waiting, ...]

    @property
    def fill(self) -> float | None:
        """`rows / capacity`; None if the capacity is unlimited."""
        return None if self.capacity is None else self.rows / self.capacity

    @property
    def samples_per_insert(self) -> float | None:
        """Rows sampled for each row inserted, ever; None before any was inserted."""
        return self.sampled / self.inserted if self.inserted else None

    @property
    def inserts_waiting(self) -> int:
        """Number of calls that wait to insert."""
        return sum(call.alive and call.role == "insert" for call in self.waiting)

    @property
    def samples_waiting(self) -> int:
        """Number of calls that wait to sample."""
        return sum(call.alive and call.role == "sample" for call in self.waiting)
