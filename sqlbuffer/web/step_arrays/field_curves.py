"""Curves of the values of a field over the steps of an episode."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 1_000
# Arrays of more numbers are drawn by their least, mean and greatest one.
MOST_COMPONENTS = 8


@dataclass(frozen=True)
class LineSummary:
    """The values of a line of a curve in short; None where it has no finite ones."""

    label: str
    least: float | None
    mean: float | None
    greatest: float | None
    last: float | None


@dataclass(frozen=True)
class FieldCurve:
    """The values of a field over steps.

    Attributes:
        name: The field.
        x: The steps.
        lines: Values at these steps, by the name of the line; NaN if there is none.
        n_values: Number of steps that have a value.
    """

    name: str
    x: NDArray[np.float64]
    lines: dict[str, NDArray[np.float64]]
    n_values: int

    @property
    def summary(self) -> list[LineSummary]:
        """Each line in short."""
        return [_summary(label, values) for label, values in self.lines.items()]

    def json_text(self) -> str:
        """Return `as_json` as text."""
        return json.dumps(self.as_json(), separators=(",", ":"))

    def as_json(self) -> dict[str, Any]:
        """Return the data of a chart: lists of numbers, null for a missing number."""
        return {
            "title": self.name,
            "x": _listed(self.x),
            "series": [
                {"label": label, "values": _listed(values)} for label, values in self.lines.items()
            ],
        }


def curve_of(name: str, x: Sequence[float], values: Sequence[NDArray[Any] | None]) -> FieldCurve:
    """Return the curve of a field.

    Args:
        name: The field.
        x: The step of each value, in ascending order.
        values: The value of each step; None: it has none. Arrays of one size of at most 8 numbers
            are drawn one line a number, others by their least, mean and greatest number.

    Example:
        >>> curve_of("reward", [0, 1], [np.asarray(0.5), None]).as_json()["series"]
        [{'label': 'reward', 'values': [0.5, None]}]
    """
    sizes = {value.size for value in values if value is not None}
    steps = np.asarray(x, np.float64)
    if len(sizes) <= 1 and max(sizes, default=1) <= MOST_COMPONENTS:
        lines = _components(name, values, max(sizes, default=1))
    else:
        lines = _summaries(values)
    thin_x, thin = _thinned(steps, lines)
    return FieldCurve(name, thin_x, thin, sum(value is not None for value in values))


def _components(
    name: str, values: Sequence[NDArray[Any] | None], size: int
) -> dict[str, NDArray[np.float64]]:
    table = np.full((len(values), size), np.nan)
    for i, value in enumerate(values):
        if value is not None:
            table[i] = value.reshape(-1)
    labels = [name] if size == 1 else [f"[{i}]" for i in range(size)]
    return {label: table[:, i] for i, label in enumerate(labels)}


def _summaries(values: Sequence[NDArray[Any] | None]) -> dict[str, NDArray[np.float64]]:
    table = np.full((len(values), 3), np.nan)
    for i, value in enumerate(values):
        if value is None:
            continue
        numbers = value.reshape(-1).astype(np.float64)
        if numbers.size and not np.isnan(numbers).all():
            table[i] = np.nanmin(numbers), np.nanmean(numbers), np.nanmax(numbers)
    return {"min": table[:, 0], "mean": table[:, 1], "max": table[:, 2]}


def _thinned(
    x: NDArray[np.float64], lines: dict[str, NDArray[np.float64]]
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return at most `MOST_POINTS` points: of each stretch the least and the greatest value."""
    if len(x) <= MOST_POINTS:
        return x, lines
    edges = np.linspace(0, len(x), MOST_POINTS // 2 + 1).astype(int)
    starts = edges[:-1]
    thin_x = np.repeat(x[starts], 2)
    found = {}
    for label, values in lines.items():
        thin = np.empty(len(thin_x))
        thin[0::2] = np.fmin.reduceat(values, starts)
        thin[1::2] = np.fmax.reduceat(values, starts)
        found[label] = thin
    return thin_x, found


def _summary(label: str, values: NDArray[np.float64]) -> LineSummary:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return LineSummary(label, None, None, None, None)
    least, mean, greatest = (float(f(finite)) for f in (np.min, np.mean, np.max))
    return LineSummary(label, least, mean, greatest, float(finite[-1]))


def _listed(values: NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
