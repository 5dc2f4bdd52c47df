"""Figures of the batches that an advanced buffer sampled last."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlbuffer.checks import real_of
from sqlbuffer.compat.ding.config import checked_count
from sqlbuffer.compat.ding.errors import ReplayConfigError
from sqlbuffer.compat.ding.monitors.sampled_attributes import SampledDataAttrMonitor, TickTime
from sqlbuffer.processes import ForkLock

_FIGURES = (
    ("use", "avg"), ("use", "max"), ("priority", "avg"), ("priority", "max"), ("priority", "min"),
    ("staleness", "avg"), ("staleness", "max"),
)  # fmt: skip


class BatchFigures:
    """The uses, priorities and staleness of the last batches.

    Args:
        cfg: `average_range`, the number of batches that figures are taken over, and `print_freq`,
            the number of batches after which they are due.

    Raises:
        ReplayConfigError: One of these is out of range.
    """

    def __init__(self, cfg: Any) -> None:
        if real_of(cfg.average_range) is None or not cfg.average_range > 0:
            raise ReplayConfigError(f"average_range is a number above 0, got {cfg.average_range!r}")
        self._ticks = TickTime()
        self._monitor = SampledDataAttrMonitor(self._ticks, cfg.average_range)
        self._print_freq = checked_count(cfg.print_freq, "print_freq")
        self._n_batches = 0
        self._mutex = ForkLock()

    def add(self, batch: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Add a sampled batch; return the figures where they are due."""
        uses, priorities, stale = (
            [item[key] for item in batch] for key in ("use", "priority", "staleness")
        )
        with self._mutex:
            monitor, n = self._monitor, len(batch)
            monitor.use_max, monitor.use_avg = max(uses), sum(uses) / n
            monitor.priority_max, monitor.priority_min = max(priorities), min(priorities)
            monitor.priority_avg = sum(priorities) / n
            monitor.staleness_max, monitor.staleness_avg = max(stale), sum(stale) / n
            self._ticks.step()
            is_due = self._n_batches % self._print_freq == 0
            self._n_batches += 1
            # Reading them also drops the batches that are too old.
            figures = {f"{what}_{how}": getattr(monitor, how)[what]() for what, how in _FIGURES}
        return figures if is_due else None
