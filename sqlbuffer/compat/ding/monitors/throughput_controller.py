"""Limits how many items are pushed for each one sampled: `ThruputController`."""

import math
import time
from collections.abc import Callable
from typing import Any

from sqlbuffer.checks import real_of
from sqlbuffer.compat.ding.config import config_value
from sqlbuffer.compat.ding.errors import ReplayConfigError
from sqlbuffer.processes import ForkLock
from sqlbuffer.rate_limits import FlowCounts, RatioWindow

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
