"""Figures of the last sampled batches: `SampledDataAttrMonitor`, and its clock `TickTime`."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from sqlbuffer.checks import real_of
from sqlbuffer.processes import ForkLock


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
            found = [value for at, value in values if at < now]
        if not found:
            return 0
        if how == "avg":
            return sum(found) / len(found)
        return max(found) if how == "max" else min(found)


class _Named:
    """The properties of an attribute."""

    def __init__(self, name: str, properties: dict[str, Callable[[], Any]]) -> None:
        self._name, self._properties = name, properties

    def __getitem__(self, property_name: str) -> Callable[[], Any]:
        if property_name not in self._properties:
            raise KeyError(f"{property_name!r} has no {self._name!r}")
        return self._properties[property_name]
