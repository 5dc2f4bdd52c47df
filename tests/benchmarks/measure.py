"""Timing calls in turns, so that what disturbs the machine disturbs all of them."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Timed:
    """A call to time.

    Attributes:
        call: What is timed.
        prepare: Makes the arguments of each call, untimed.
        repeat: Calls in a round: more for what is quick.
    """

    call: Callable[..., Any]
    prepare: Callable[[], tuple[Any, ...]] = tuple
    repeat: int = 1


@dataclass(frozen=True)
class Ratio:
    """How two measurements compare: the median over the rounds, and the quartiles."""

    value: float
    low: float
    high: float


@dataclass
class Timings:
    """Seconds of each call, by name and round."""

    rounds: dict[str, list[list[float]]] = field(default_factory=dict)

    def all(self, name: str) -> list[float]:
        return [seconds for one_round in self.rounds[name] for seconds in one_round]

    def median(self, name: str) -> float:
        return statistics.median(self.all(name))

    def ratio(self, above: str, below: str) -> Ratio:
        """Return how the medians of each round compare."""
        pairs = zip(self.medians(above), self.medians(below), strict=True)
        return ratio_of([a / b for a, b in pairs])

    def medians(self, name: str) -> list[float]:
        """Return the median of each round."""
        return [statistics.median(one_round) for one_round in self.rounds[name]]


def ratio_of(of_rounds: Sequence[float]) -> Ratio:
    """Return the median and the quartiles of the ratios of single rounds.

    Not the ratio of two medians: a machine that slows down half-way would move it.
    """
    if len(of_rounds) < 2:
        return Ratio(of_rounds[0], of_rounds[0], of_rounds[0])
    low, value, high = statistics.quantiles(of_rounds, n=4, method="inclusive")
    return Ratio(value, low, high)


def in_turns(calls: Mapping[str, Timed], rounds: int, warmup: int) -> Timings:
    """Time the calls round by round, each round beginning with another one.

    A run of one round is a trial of the measurement: it does without the warm-up.
    """
    timings = Timings({name: [] for name in calls})
    names = list(calls)
    for number in range(-warmup if rounds > 1 else 0, rounds):
        gc.collect()  # what earlier rounds left is not the cost of this one
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds = _repeated(calls[name])
            if number >= 0:
                timings.rounds[name].append(seconds)
    return timings


def _repeated(timed: Timed) -> list[float]:
    return [seconds_of(timed.call, *timed.prepare()) for _ in range(timed.repeat)]


def seconds_of(call: Callable[..., Any], *arguments: Any) -> float:
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
