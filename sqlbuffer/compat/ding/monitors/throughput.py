"""How many items go in and out: what is logged of it, and what limits it."""

import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlbuffer.compat.ding.errors import ReplayConfigError
from sqlbuffer.rate_limits import FlowCounts, RatioWindow
from sqlbuffer.scalars import real_of
from sqlbuffer.storage.database.fork_lock import ForkLock


class PeriodicThruputMonitor:
    """Logs how many items were pushed, sampled and removed in each period, and how many there are.

    `count` is exact with any number of threads; `monitor.push_data_count += 1` is so with one.

    Attributes:
        seconds: The length of a period.

    Args:
        name: Name of the buffer: tags of TensorBoard are `<name>_sec/<figure>`, their x the number
            of the period.
        cfg: `seconds`, the length of a period.
        logger: What has `info(text)`; None: nothing is logged as text.
        tb_logger: What has `add_scalar(tag, value, x)`; None: nothing is written to TensorBoard.
        gauge: Returns how many items there are now, or None where that is unknown. It is called
            each time the figures are written. Without it, set `valid_count`.

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


class ThruputController:
    """Keeps the items pushed for each item sampled between two limits, over a window that decays.

    Both counts decay to a hundredth within `window_seconds`, in steps of one second. Above `max`
    pushes are refused, and their items thrown away; never before anything was sampled. Below `min`
    samples are refused. It has no thread: it computes what is left of a count when that is used.

    Args:
        cfg: `push_sample_rate_limit` with `max` and `min`, and `window_seconds`.
        clock: Returns seconds.

    Raises:
        ReplayConfigError: A limit or window that cannot be.

    Example:
        >>> limits = {"push_sample_rate_limit": {"max": 2, "min": 0.5}, "window_seconds": 30}
        >>> controller = ThruputController(limits, clock=lambda: 0.0)
        >>> controller.count(pushed=5)
        >>> controller.can_sample(10), controller.can_sample(11)[0]
        ((True, 'nothing is against it'), False)
        >>> controller.count(sampled=4)
        >>> controller.can_push(4)
        (False, 'push(5.0 + 4) / sample(4.0) > max (2)')
    """

    def __init__(self, cfg: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit_of(cfg), clock
        self._window = RatioWindow(math.inf, 1.0, window_of(cfg))
        self._mutex = ForkLock()
        self._pushed = self._sampled = 0.0
        self._decayed_at = clock()

    def _decay(self) -> None:
        counts, self._decayed_at = self._window.decayed_by_second(
            FlowCounts(self._pushed, self._sampled), self._decayed_at, self._clock()
        )
        self._pushed, self._sampled = counts.inserted, counts.sampled

    def count(self, pushed: float = 0, sampled: float = 0) -> None:
        """Count items that were pushed or sampled; exact with any number of threads."""
        with self._mutex:
            self._decay()
            self._pushed += pushed
            self._sampled += sampled

    @property
    def history_push_count(self) -> float:
        """What is left of the items pushed."""
        with self._mutex:
            self._decay()
            return self._pushed

    @history_push_count.setter
    def history_push_count(self, n: float) -> None:
        with self._mutex:
            self._decay()
            self._pushed = n

    @property
    def history_sample_count(self) -> float:
        """What is left of the items sampled."""
        with self._mutex:
            self._decay()
            return self._sampled

    @history_sample_count.setter
    def history_sample_count(self, n: float) -> None:
        with self._mutex:
            self._decay()
            self._sampled = n

    def can_push(self, push_size: int) -> tuple[bool, str]:
        """Tell whether so many items may be pushed now, and why."""
        with self._mutex:
            self._decay()
            counts = FlowCounts(self._pushed, self._sampled)
        refused = None if self._limit is None else self._limit.refused_insert(counts, push_size)
        return refused is None, refused or _NOTHING_AGAINST

    def can_sample(self, sample_size: int) -> tuple[bool, str]:
        """Tell whether so many items may be sampled now, and why."""
        with self._mutex:
            self._decay()
            counts = FlowCounts(self._pushed, self._sampled)
        refused = None if self._limit is None else self._limit.refused_sample(counts, sample_size)
        return refused is None, refused or _NOTHING_AGAINST

    def close(self) -> None:
        """Do nothing: there is no thread to end."""


def is_first_rank() -> bool:
    """Tell whether this process is the one of several learners that writes figures."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return bool(distributed.get_rank() == 0)


_NOTHING_AGAINST = "nothing is against it"


def period_of(cfg: Any) -> float:
    """Return the length of a period that a config says.

    Raises:
        ReplayConfigError: It cannot be.
    """
    seconds = real_of(_get(cfg, "seconds"))
    if seconds is None or not 0 < seconds < math.inf:
        raise ReplayConfigError(
            f"periodic_thruput.seconds is a number above 0, got {_get(cfg, 'seconds')!r}"
        )
    return seconds


def limit_of(cfg: Any) -> RatioWindow | None:
    """Return the limit that a config says; None: nothing is limited.

    Raises:
        ReplayConfigError: A limit or window that cannot be.
    """
    rates = _get(cfg, "push_sample_rate_limit")
    most, least = (real_of(_get(rates, name)) for name in ("max", "min"))
    if most is None or least is None or not 0 <= least <= most or most == 0 or least == math.inf:
        raise ReplayConfigError(
            f"push_sample_rate_limit has numbers 0 <= min <= max, max above 0, got {rates!r}"
        )
    window_s = window_of(cfg)
    if most == math.inf and least == 0:
        return None
    return RatioWindow(most, least, window_s)


def window_of(cfg: Any) -> float:
    """Return the window that a config says.

    Raises:
        ReplayConfigError: It cannot be.
    """
    window_s = real_of(_get(cfg, "window_seconds"))
    if window_s is None or not 0 < window_s < math.inf:
        raise ReplayConfigError(
            f"window_seconds is a number above 0, got {_get(cfg, 'window_seconds')!r}"
        )
    return window_s


def _get(cfg: Any, name: str) -> Any:
    try:
        return cfg[name] if isinstance(cfg, dict) else getattr(cfg, name)
    except (KeyError, AttributeError):
        raise ReplayConfigError(f"the config lacks {name!r}: {cfg!r:.200}") from None
