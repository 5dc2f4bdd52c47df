"""Checks of the arguments of datasets, data loaders and collectors."""

import difflib
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.errors import SQLBufferError

OPTIONS = frozenset(
    {
        "current_fields",
        "dataset_kwargs",
        "fieldname_map",
        "fields",
        "filter_fields",
        "filter_meta",
        "include_metadata",
        "min_episode_len",
        "n_steps",
        "next_fields",
        "return_episode_lens",
        "return_indices",
        "sequence_fields",
        "slice_by_episode_len",
        "timestep_level",
        "window_length",
    }
)


class UnknownNameError(SQLBufferError, KeyError):
    """There is no field of that name; the message lists the fields."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


def check_names(parameter: str, names: Any) -> tuple[str, ...] | None:
    """Return a tuple of names, or None."""
    if names is None or (isinstance(names, tuple) and all(isinstance(n, str) for n in names)):
        return names
    raise MemmapTypeError(f"{parameter} is a tuple of names such as ('state',), got {names!r}")


def check_known(parameter: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise unless there is a field for each name."""
    known = list(known)
    for name in names:
        if name not in known:
            raise UnknownNameError(f"{parameter} names {name!r}; choose of {', '.join(known)}")


def check_map(names: Any) -> dict[str, str]:
    """Return other names for fields."""
    if names is None:
        return {}
    if isinstance(names, Mapping) and all(
        isinstance(name, str) for pair in names.items() for name in pair
    ):
        return dict(names)
    raise MemmapTypeError(f"fieldname_map is a dict such as {{'obs': 'state'}}, got {names!r}")


def check_count(parameter: str, value: Any, least: int) -> int:
    """Return a whole number that is not too small."""
    if isinstance(value, bool):
        raise MemmapTypeError(f"{parameter} is a whole number, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise MemmapTypeError(f"{parameter} is a whole number, got {value!r}") from None
    if number < least:
        raise MemmapError(f"{parameter} is at least {least}, got {number}")
    return number


def check_options(given: Mapping[str, Any]) -> None:
    """Raise for a parameter that looks misspelt; ignore others, as memmap-replay-buffer does."""
    for name in given:
        close = difflib.get_close_matches(name, OPTIONS, 1, 0.8)
        if close and close[0] != name:
            raise MemmapTypeError(f"a dataset takes no {name!r}: is it {close[0]!r}?")
