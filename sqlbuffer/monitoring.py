"""Figures of buffers for monitoring: TensorBoard and Prometheus."""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sqlbuffer.arguments import checked_window
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_flag, checked_integer, checked_path, checked_seconds
from sqlbuffer.errors import ArgumentError, MissingExtraError, SQLBufferError, install
from sqlbuffer.stats import Distribution, Stats

__all__ = ["PrometheusCollector", "TensorBoardMonitor", "prometheus_text"]

logger = logging.getLogger("sqlbuffer")

_SCALARS = (
    "rows",
    "fill",
    "inserted",
    "evicted",
    "expired",
    "used_up",
    "other_session",
    "partial",
    "flat",
    "sampled",
    "insert_rate",
    "sample_rate",
    "samples_per_insert",
    "oldest_age_s",
    "newest_age_s",
    "episodes",
    "inserts_waiting",
    "samples_waiting",
)
_DISTRIBUTIONS = ("uses", "priorities", "staleness")


class TensorBoardMonitor:
    """Writes the figures of a buffer to TensorBoard, every few seconds.

    Scalars are named `sqlbuffer/<buffer>/<figure>` after the attributes of `Stats`; uses,
    priorities and staleness are histograms with their means as scalars.

    Either call `write(step)` in the training loop, which reads the buffer when `every_s` has
    passed, or `start()` a thread that ends with the process.

    Args:
        buffer: The buffer.
        writer: A `SummaryWriter` of tensorboardX or of `torch.utils.tensorboard`; or a folder, for
            a writer of tensorboardX or else of torch.
        every_s: Seconds between two looks.
        window_s: Seconds over which rates are measured.

    Raises:
        ArgumentError: An argument is not a buffer, not a writer, or not such a number of seconds.
        MissingExtraError: A folder is given, and neither package is installed.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> class Printing:
        ...     def add_scalar(self, tag, value, step):
        ...         if tag.endswith("/rows"):
        ...             print(tag, value, step)
        >>> buffer = ReplayBuffer("sqlite://")
        >>> buffer.add(state=1).inserted
        1
        >>> TensorBoardMonitor(buffer, Printing()).write(step=100)
        sqlbuffer/default/rows 1.0 100
        True
        >>> TensorBoardMonitor(buffer, Printing(), every_s=60).start().close()
        sqlbuffer/default/rows 1.0 ...
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        writer: Any,
        *,
        every_s: float = 10.0,
        window_s: float = 60.0,
    ) -> None:
        checked_buffer(buffer, "buffer")
        self._window_s = checked_window(window_s)
        self._every_s = checked_seconds(every_s, "every_s")
        self._own = not hasattr(writer, "add_scalar")
        self._writer = _summary_writer(writer) if self._own else writer
        self._buffer = buffer
        self._written_at = float("-inf")
        self._began_at = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, step: int | None = None, *, now: bool = False) -> bool:
        """Write the figures if `every_s` seconds have passed since the last time.

        Args:
            step: Position on the axis; by default the seconds since the monitor was made.
            now: Whether to write in any case.

        Returns:
            True if the figures were written.

        Raises:
            ArgumentError: The step is not an integer of 64 bits, or `now` not True or False.
            BufferNotFoundError: The buffer was dropped.
        """
        step = None if step is None else checked_integer(step, "step", more=", or None")
        now = checked_flag(now, "now")
        began = time.monotonic()
        if not now and began - self._written_at < self._every_s:
            return False
        self._written_at = began
        at = int(began - self._began_at) if step is None else step
        self._write(self._buffer.stats(self._window_s), at)
        return True

    def _write(self, stats: Stats, step: int) -> None:
        for name in _SCALARS:
            value = getattr(stats, name)
            if value is not None:
                self._writer.add_scalar(f"sqlbuffer/{stats.buffer}/{name}", float(value), step)
        for name in _DISTRIBUTIONS:
            distribution: Distribution | None = getattr(stats, name)
            if distribution is not None:
                tag = f"sqlbuffer/{stats.buffer}/{name}"
                self._writer.add_scalar(f"{tag}_mean", distribution.mean, step)
                self._writer.add_histogram(tag, distribution.values, step)

    def start(self) -> "TensorBoardMonitor":
        """Write from a thread from now on. Errors of the database are logged, and the thread
        continues.
        """
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._run, name="sqlbuffer-tensorboard", daemon=True
            )
            self._thread.start()
        return self

    def _run(self) -> None:
        while True:
            try:
                self.write(now=True)
            except SQLBufferError as error:
                logger.warning("the figures of %r are not written: %s", self._buffer, error)
            if self._stop.wait(max(0.1, self._every_s)):
                return

    def close(self) -> None:
        """End the thread, and close the writer unless it was given."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._own:
            self._writer.close()

    def __enter__(self) -> "TensorBoardMonitor":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _summary_writer(folder: Any) -> Any:
    folder = os.fsdecode(folder) if isinstance(folder, bytes) else folder
    path = checked_path(folder, "writer", "a SummaryWriter or the path of a folder")
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError(
                "writing to TensorBoard needs tensorboardX or tensorboard; "
                f"run {install('tensorboardX')}"
            ) from None
    return SummaryWriter(str(path))


# Figure -> (name, kind, description). The server computes rates from the counters.
_METRICS = {
    "rows": ("rows", "gauge", "Rows held."),
    "capacity": ("capacity_rows", "gauge", "Rows held at most."),
    "inserted": ("inserted_rows", "counter", "Rows ever inserted."),
    "evicted": ("evicted_rows", "counter", "Rows that have left: evicted, deleted, rolled back."),
    "expired": (
        "expired_rows",
        "counter",
        "Rows that left because they were too stale by the clock.",
    ),
    "used_up": ("used_up_rows", "counter", "Rows that left after as many uses as they may have."),
    "other_session": (
        "other_session_rows",
        "counter",
        "Rows that left because they were of another session.",
    ),
    "partial": (
        "partial_rows",
        "counter",
        "Rows that left because their group stayed incomplete, or they came late.",
    ),
    "flat": (
        "flat_rows",
        "counter",
        "Rows that left because the rewards of their group differed too little.",
    ),
    "sampled": ("sampled_rows", "counter", "Rows ever sampled."),
    "batches": ("sampled_batches", "counter", "Batches ever sampled."),
    "episodes": ("episodes", "gauge", "Episodes that are open or have steps held."),
    "oldest_age_s": ("oldest_row_age_seconds", "gauge", "Time since the oldest row was written."),
    "newest_age_s": ("newest_row_age_seconds", "gauge", "Time since the newest row was written."),
    "clock": ("clock_iterations", "gauge", "The learner's iteration or model version."),
}
_SPREADS = {
    "uses": ("row_uses", "How often rows were sampled."),
    "priorities": ("row_priority", "Priorities of rows."),
    "staleness": ("row_staleness_iterations", "By how much rows are behind the clock."),
}
_POINTS = ("mean", "min", "p10", "median", "p90", "max")


class PrometheusCollector:
    """Figures of buffers for `prometheus_client`: register it with your registry.

    Each scrape reads the buffers. Names begin with `sqlbuffer_` and contain their unit. The labels
    are `buffer` (name of the buffer), `stat` (point of a distribution) and `role` (side that
    waits).

    Args:
        *buffers: The buffers.

    Raises:
        ArgumentError: An argument is not a buffer; or two buffers have the same name, so the label
            could not distinguish them.
        MissingExtraError: prometheus_client is not installed.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", max_capacity=10)
        >>> print(prometheus_text(buffer))  # doctest: +ELLIPSIS
        # HELP sqlbuffer_rows Rows held.
        # TYPE sqlbuffer_rows gauge
        sqlbuffer_rows{buffer="default"} 0.0
        ...
        >>> next(PrometheusCollector(buffer).collect()).name
        'sqlbuffer_rows'
    """

    def __init__(self, *buffers: ReplayBuffer) -> None:
        _check_buffers(buffers)
        self._buffers = buffers
        self._families = _families()

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of a scrape.

        Raises:
            BufferNotFoundError: A buffer was dropped.
        """
        return iter(self._collected([buffer.stats() for buffer in self._buffers]))

    def describe(self) -> Sequence[Any]:
        """Name no metrics in advance: a registry would look at the database for them.

        :meta private:
        """
        return ()

    def _collected(self, figures: Sequence[Stats]) -> Iterator[Any]:
        gauge, counter = self._families
        for figure, (name, kind, text) in _METRICS.items():
            family = (gauge if kind == "gauge" else counter)(
                f"sqlbuffer_{name}", text, labels=["buffer"]
            )
            for stats in figures:
                value = getattr(stats, figure)
                if value is not None:
                    family.add_metric([stats.buffer], value)
            yield family
        waiting = gauge(
            "sqlbuffer_waiting_calls",
            "Calls that wait for a rate limiter.",
            labels=["buffer", "role"],
        )
        for stats in figures:
            waiting.add_metric([stats.buffer, "insert"], stats.inserts_waiting)
            waiting.add_metric([stats.buffer, "sample"], stats.samples_waiting)
        yield waiting
        for figure, (name, text) in _SPREADS.items():
            family = gauge(f"sqlbuffer_{name}", text, labels=["buffer", "stat"])
            for stats in figures:
                spread = getattr(stats, figure)
                for point in _POINTS if spread is not None else ():
                    family.add_metric([stats.buffer, point], getattr(spread, point))
            yield family


def prometheus_text(*buffers: ReplayBuffer) -> str:
    """Return the figures of buffers in the text format of Prometheus, for your own endpoint.

    Raises:
        ArgumentError: An argument is not a buffer, or two buffers have the same name.
        BufferNotFoundError: A buffer was dropped.
        MissingExtraError: prometheus_client is not installed.

    Example:
        >>> buffer = ReplayBuffer("sqlite://")
        >>> buffer.add(state=1).inserted
        1
        >>> 'sqlbuffer_rows{buffer="default"} 1.0' in prometheus_text(buffer)
        True
    """
    collector = PrometheusCollector(*buffers)
    from prometheus_client import CollectorRegistry, generate_latest

    # A separate registry: the global one belongs to the program.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return str(generate_latest(registry).decode())


def _check_buffers(buffers: Sequence[Any]) -> None:
    names = [checked_buffer(buffer, "each of buffers").name for buffer in buffers]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ArgumentError(
            f"two buffers are named {double!r}, but metrics distinguish them by name; give each "
            f"one once, and use another registry for those of another database"
        )


def _families() -> tuple[Any, Any]:
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError:
        raise MissingExtraError(
            f"figures for Prometheus need prometheus_client; run {install('prometheus')}"
        ) from None
    return GaugeMetricFamily, CounterMetricFamily
