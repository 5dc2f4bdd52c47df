"""Logs how many items were pushed, sampled and removed: `PeriodicThruputMonitor`."""

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

from sqlbuffer.checks import real_of
from sqlbuffer.compat.ding.config import config_value
from sqlbuffer.compat.ding.errors import ReplayConfigError
from sqlbuffer.processes import ForkLock


class PeriodicThruputMonitor:
    """Logs the numbers of pushed, sampled and removed items of each period, and of all items.

    `count` is exact with any number of threads; `monitor.push_data_count += 1` only with one.

    Attributes:
        seconds: The length of a period.

    Args:
        name: Name of the buffer: tags of TensorBoard are `<name>_sec/<figure>`, their x the number
            of the period.
        cfg: `seconds`, the length of a period.
        logger: Object with `info(text)`; None: nothing is logged as text.
        tb_logger: Object with `add_scalar(tag, value, x)`; None: nothing is written to TensorBoard.
        gauge: Function that returns the number of items now, or None if that is unknown. It is
            called each time the figures are written. Without it, set `valid_count`.

    Example:
        >>> monitor = PeriodicThruputMonitor("buffer", {"seconds": 60}, None, None)
        >>> monitor.count(pushed=3, sampled=2)
        >>> monitor.valid_count = 3
        >>> monitor.push_data_count, monitor.sample_data_count, monitor.valid_count
        (3, 2, 3)
        >>> monitor.close()
    """

    def __init__(
        self,
        name: str,
        cfg: Any,
        logger: Any,
        tb_logger: Any,
        gauge: Callable[[], int | None] | None = None,
    ) -> None:
        self._name, self.seconds = name, period_of(cfg)
        self._logger, self._tb_logger, self._gauge = logger, tb_logger, gauge
        self._mutex = ForkLock()
        self._pushed = self._sampled = self._removed = self._valid = self._n_periods = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sqlbuffer-throughput", daemon=True)
        self._thread.start()

    def count(self, pushed: int = 0, sampled: int = 0, removed: int = 0) -> None:
        """Count items that go in or out."""
        with self._mutex:
            self._pushed += pushed
            self._sampled += sampled
            self._removed += removed

    @property
    def push_data_count(self) -> int:
        """Items pushed in this period."""
        return self._pushed

    @push_data_count.setter
    def push_data_count(self, n: int) -> None:
        with self._mutex:
            self._pushed = n

    @property
    def sample_data_count(self) -> int:
        """Items sampled in this period."""
        return self._sampled

    @sample_data_count.setter
    def sample_data_count(self, n: int) -> None:
        with self._mutex:
            self._sampled = n

    @property
    def remove_data_count(self) -> int:
        """Items removed in this period."""
        return self._removed

    @remove_data_count.setter
    def remove_data_count(self, n: int) -> None:
        with self._mutex:
            self._removed = n

    @property
    def valid_count(self) -> int:
        """Items in the buffer when this was last set or gauged."""
        return self._valid

    @valid_count.setter
    def valid_count(self, n: int) -> None:
        with self._mutex:
            self._valid = n

    def _run(self) -> None:
        while not self._stop.wait(min(self.seconds, threading.TIMEOUT_MAX)):
            self.write()

    def write(self) -> None:
        """Write the figures of a period, and begin another one."""
        n_held = None if self._gauge is None else self._gauge()
        with self._mutex:
            if n_held is not None:
                self._valid = n_held
            figures = {
                "pushed_in": self._pushed,
                "sampled_out": self._sampled,
                "removed": self._removed,
                "current_have": self._valid,
            }
            self._pushed = self._sampled = self._removed = 0
            period, self._n_periods = self._n_periods, self._n_periods + 1
        if self._logger is not None:
            shown = ", ".join(f"{name} {value}" for name, value in figures.items())
            self._logger.info(f"{self._name}: in the last {self.seconds:g} s: {shown}")
        if self._tb_logger is not None:
            for name, value in figures.items():
                self._tb_logger.add_scalar(f"{self._name}_sec/{name}", value, period)

    def close(self) -> None:
        """End its thread; closing it again does nothing."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def is_first_rank() -> bool:
    """Return True if this process, of several learners, writes the figures."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return bool(distributed.get_rank() == 0)


def period_of(cfg: Any) -> float:
    """Return the length of a period that a config says.

    Raises:
        ReplayConfigError: It cannot be.
    """
    seconds = real_of(config_value(cfg, "seconds"))
    if seconds is None or not 0 < seconds < math.inf:
        raise ReplayConfigError(
            f"periodic_thruput.seconds is a number above 0, got {config_value(cfg, 'seconds')!r}"
        )
    return seconds
