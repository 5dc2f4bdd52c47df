"""The monitors of DI-engine's buffers, and the remover of files."""

import contextlib
import logging
import math
import os
import queue
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from sqlbuffer.checks import real_of
from sqlbuffer.compat.ding.config import checked_count, config_value
from sqlbuffer.compat.ding.errors import ReplayConfigError
from sqlbuffer.processes import ForkLock
from sqlbuffer.rate_limits import FlowCounts, RatioWindow


def generate_id(name: str, data_id: int) -> str:
    """Return the id of the item of a number.

    Example:
        >>> generate_id("buffer", 3)
        'buffer_3'
    """
    return f"{name}_{data_id}"


logger = logging.getLogger("sqlbuffer")


class UsedDataRemover:
    """Deletes the files that used items name, in a separate thread.

    In DI-engine's parallel mode an item's payload is a file, and the item a dict whose `data_id` is
    the path.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "payload"
        >>> _ = path.write_bytes(b"123")
        >>> remover = UsedDataRemover()
        >>> remover.start()
        >>> remover.add_used_data({"data_id": str(path)})
        >>> remover.close()
        >>> path.exists()
        False
    """

    def __init__(self) -> None:
        self._paths: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: It runs already.
        """
        if self._thread is not None:
            raise RuntimeError("the remover runs already; close it before it is started again")
        self._thread = threading.Thread(
            target=self._run, name="sqlbuffer-used-data-remover", daemon=True
        )
        self._thread.start()

    def add_used_data(self, data: Any) -> None:
        """Mark the file of an item for deletion, by the thread or by `close`.

        Raises:
            AssertionError: The item is not a dict with a `data_id`.
        """
        if not isinstance(data, dict) or "data_id" not in data:
            raise AssertionError(f"a used item is a dict with 'data_id', got {data!r:.200}")
        self._paths.put(data["data_id"])

    def close(self) -> None:
        """Delete the files of all items that were added, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._paths.put(None)
            thread.join()
        with contextlib.suppress(queue.Empty):
            while True:
                _remove(self._paths.get_nowait())

    def _run(self) -> None:
        while (path := self._paths.get()) is not None:
            _remove(path)


def _remove(path: Any) -> None:
    if path is None:
        return
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
    except (OSError, TypeError, ValueError) as error:
        logger.warning("the file %r of a used item is not removed: %s", path, error)


class Time(Protocol):
    """A clock."""

    def time(self) -> float:
        """Return it."""


class TickTime:
    """A clock that is moved by hand.

    Args:
        init: Where it begins.

    Example:
        >>> ticks = TickTime()
        >>> ticks.step(), ticks.step(2), ticks.time()
        (1, 3, 3)
    """

    def __init__(self, init: int = 0) -> None:
        self._now = init

    def step(self, delta: int = 1) -> int:
        """Move it, and return where it is."""
        if delta < 1:
            raise ValueError(f"a step is 1 or more, got {delta!r}")
        self._now += delta
        return self._now

    def time(self) -> int:
        """Return where it is."""
        return self._now


class SampledDataAttrMonitor:
    """The uses, priorities and staleness of the last sampled batches.

    For each batch set the attributes `use_max`, `use_avg`, `priority_max`, `priority_avg`,
    `priority_min`, `staleness_max` and `staleness_avg`, then move the clock. `avg['use']()` and
    similar calls return a figure over the newest expire + 1 batches. Batches of the current moment
    do not count yet. Without batches a figure is 0.

    Args:
        time_: Object with `time()`, such as a `TickTime`.
        expire: Length of the window.

    Raises:
        AttributeError: `time_` has no `time()`.
        TypeError: `expire` is not a number; or an attribute is set to a value of another type.
        ValueError: `expire` is not above 0.

    Example:
        >>> ticks = TickTime()
        >>> monitor = SampledDataAttrMonitor(ticks, expire=5)
        >>> for use in (1, 2, 6):
        ...     monitor.use_max, monitor.use_avg = use, float(use)
        ...     _ = ticks.step()
        >>> monitor.avg["use"](), monitor.max["use"](), monitor.min["priority"]()
        (3.0, 6, 0)
    """

    _TYPES: ClassVar[dict[str, type]] = {
        "use_max": int,
        "use_avg": float,
        "priority_max": float,
        "priority_avg": float,
        "priority_min": float,
        "staleness_max": int,
        "staleness_avg": float,
    }

    use_max: Any
    use_avg: Any
    priority_max: Any
    priority_avg: Any
    priority_min: Any
    staleness_max: Any
    staleness_avg: Any

    def __init__(self, time_: Time, expire: float) -> None:
        if not callable(getattr(time_, "time", None)):
            raise AttributeError(f"time_ has time(), such as a TickTime, got {time_!r}")
        if real_of(expire) is None:
            raise TypeError(f"expire is a number, got {expire!r}")
        if not expire > 0:
            raise ValueError(f"expire is a number above 0, got {expire!r}")
        self._time, self._expire = time_, expire
        self._frozen_at: float | None = None
        self._mutex = ForkLock()
        self._values: dict[str, list[tuple[float, Any]]] = {name: [] for name in self._TYPES}
        self._read: dict[str, dict[str, Callable[[], Any]]] = {}
        for name in self._TYPES:
            what, how = name.split("_")
            self.register_attribute_value(how, what, self._reading(name, how))

    def _reading(self, name: str, how: str) -> Callable[[], Any]:
        return lambda: self._over_window(name, how)

    @property
    def time(self) -> Time:
        """The clock of the monitor."""
        return self._time

    @property
    def expire(self) -> float:
        """Length of the window."""
        return self._expire

    def current_time(self) -> float:
        """Return the time now."""
        return self._time.time()

    def fixed_time(self) -> float:
        """Return the time that it reads and sets at: when it was frozen, or now."""
        return self.current_time() if self._frozen_at is None else self._frozen_at

    def freeze(self) -> None:
        """Stay at this time from now on; one that is frozen stays where it is."""
        with self._mutex:
            self._frozen_at = self.fixed_time()

    def unfreeze(self) -> None:
        """Go with the time again."""
        self._frozen_at = None

    def register_attribute_value(
        self, attribute_name: str, property_name: str, value: Callable[[], Any]
    ) -> None:
        """Set `monitor.<attribute_name>[<property_name>]`.

        Example:
            >>> monitor = SampledDataAttrMonitor(TickTime(), 5)
            >>> monitor.register_attribute_value("twice", "use", lambda: 2 * monitor.max["use"]())
            >>> monitor.twice["use"]()
            0
        """
        self._read.setdefault(attribute_name, {})[property_name] = value

    def get_property_attribute(self, property_name: str) -> list[str]:
        """Return the attributes that a property has, such as `avg` and `max` of `use`."""
        return [name for name, of in self._read.items() if property_name in of]

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {}).get(name)
        if values is not None:
            if not values:
                raise ValueError(f"{name} was not set yet")
            return values[-1][1]
        read = self.__dict__.get("_read", {})
        if name in read:
            return _Named(name, read[name])
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._TYPES:
            object.__setattr__(self, name, value)
            return
        wanted = self._TYPES[name]
        if type(value) is not wanted:
            raise TypeError(f"{name} is of type {wanted.__name__}, got {value!r}")
        with self._mutex:
            self._values[name].append((self.fixed_time(), value))

    def _over_window(self, name: str, how: str) -> Any:
        with self._mutex:
            values, now = self._values[name], self.fixed_time()
            begin = bisect_left(values, now - self._expire, key=lambda pair: pair[0])
            # The one before still held when the window began.
            begin = max(begin - 1, 0)
            del values[:begin]
            window = [value for at, value in values if at < now]
        if not window:
            return 0
        if how == "avg":
            return sum(window) / len(window)
        return max(window) if how == "max" else min(window)


class _Named:
    """The properties of an attribute."""

    def __init__(self, name: str, properties: dict[str, Callable[[], Any]]) -> None:
        self._name, self._properties = name, properties

    def __getitem__(self, property_name: str) -> Callable[[], Any]:
        if property_name not in self._properties:
            raise KeyError(f"{property_name!r} has no {self._name!r}")
        return self._properties[property_name]


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


_NOTHING_AGAINST = "nothing is against it"


class ThruputController:
    """Keeps the items pushed for each item sampled between two limits, over a window that decays.

    Both counts decay to a hundredth within `window_seconds`, in steps of one second. Above `max`
    pushes are refused, and their items thrown away; never before anything was sampled. Below `min`
    samples are refused. It has no thread: a count decays when it is read.

    Args:
        cfg: `push_sample_rate_limit` with `max` and `min`, and `window_seconds`.
        clock: Returns seconds.

    Raises:
        ReplayConfigError: A limit or the window is invalid.

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
        """The decayed number of pushed items."""
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
        """The decayed number of sampled items."""
        with self._mutex:
            self._decay()
            return self._sampled

    @history_sample_count.setter
    def history_sample_count(self, n: float) -> None:
        with self._mutex:
            self._decay()
            self._sampled = n

    def can_push(self, push_size: int) -> tuple[bool, str]:
        """Return whether this number of items may be pushed now, and the reason."""
        with self._mutex:
            self._decay()
            counts = FlowCounts(self._pushed, self._sampled)
        refused = None if self._limit is None else self._limit.refused_insert(counts, push_size)
        return refused is None, refused or _NOTHING_AGAINST

    def can_sample(self, sample_size: int) -> tuple[bool, str]:
        """Return whether this number of items may be sampled now, and the reason."""
        with self._mutex:
            self._decay()
            counts = FlowCounts(self._pushed, self._sampled)
        refused = None if self._limit is None else self._limit.refused_sample(counts, sample_size)
        return refused is None, refused or _NOTHING_AGAINST

    def close(self) -> None:
        """Do nothing: there is no thread to end."""


def limit_of(cfg: Any) -> RatioWindow | None:
    """Return the limit that a config says; None: nothing is limited.

    Raises:
        ReplayConfigError: A limit or the window is invalid.
    """
    rates = config_value(cfg, "push_sample_rate_limit")
    most, least = (real_of(config_value(rates, name)) for name in ("max", "min"))
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
    window_s = real_of(config_value(cfg, "window_seconds"))
    if window_s is None or not 0 < window_s < math.inf:
        raise ReplayConfigError(
            f"window_seconds is a number above 0, got {config_value(cfg, 'window_seconds')!r}"
        )
    return window_s
