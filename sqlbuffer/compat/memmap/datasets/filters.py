"""Filters by the values of episodes and steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.datasets.argument_checks import UnknownNameError
from sqlbuffer.compat.memmap.datasets.readable import FieldType, Ints, Readable
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError

Filter = Mapping[str, Any]


def matches(column: NDArray[Any], wanted: Any) -> NDArray[np.bool_]:
    """Return where a column has a value; for True or False, where it is one.

    >>> matches(np.array([0, 1, 2]), 1), matches(np.array([0, 1, 2]), True)
    (array([False,  True, False]), array([False,  True,  True]))
    """
    if isinstance(wanted, bool):
        column = column.astype(bool)
    return np.asarray(column == wanted, bool)


def check_filter(parameter: str, wanted: Any, tracks: Mapping[str, FieldType]) -> Filter:
    """Return a filter, or raise unless it asks for single numbers of tracks that have them."""
    if wanted is None:
        return {}
    if not isinstance(wanted, Mapping):
        raise MemmapTypeError(f"{parameter} is a dict such as {{'task_id': 1}}, got {wanted!r}")
    checked = {}
    for name, value in wanted.items():
        if name not in tracks:
            raise UnknownNameError(
                f"{parameter} names {name!r}; choose of {', '.join(tracks) or 'none'}"
            )
        if tracks[name].shape:
            raise MemmapError(
                f"{parameter} only supports scalar fields, got shape {tracks[name].shape} for "
                f"`{name}`"
            )
        checked[name] = _number(parameter, name, value)
    return checked


def _number(parameter: str, name: str, value: Any) -> Any:
    """Return a single number as Python's own."""
    if hasattr(value, "item") and np.size(value) == 1:
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise MemmapTypeError(f"{parameter}: {name!r} is to be one number or bool, got {value!r}")
    return value


def of_episodes(buffer: Readable, wanted: Filter, slots: Ints) -> NDArray[np.bool_]:
    """Return which slots have the values wanted of episodes."""
    kept = np.ones(len(slots), bool)
    if wanted and len(slots):
        for name, column in buffer._meta(list(wanted), slots).items():
            kept &= matches(column, wanted[name])
    return kept


def of_steps(buffer: Readable, wanted: Filter, slots: Ints, ts: Ints) -> NDArray[np.bool_]:
    """Return which steps have the values wanted of steps."""
    kept = np.ones(len(slots), bool)
    if wanted and len(slots):
        for name, column in buffer._cells(list(wanted), slots, ts).items():
            kept &= matches(column, wanted[name])
    return kept
