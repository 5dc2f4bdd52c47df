"""Checks of what callers give to loaders and collectors."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.errors import SQLBufferError


class UnknownNameError(SQLBufferError, KeyError):
    """No field of that name: the message lists those that there are."""

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
