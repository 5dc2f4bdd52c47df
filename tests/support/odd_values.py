"""Values that a call may be given by mistake, and the types that admit them."""

import collections.abc
import datetime as dt
import functools
import itertools
import os
import pathlib
import types
import typing
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

MANY = 10_000_000
DEEP = 100_000


class Hostile:
    """Raises when it is shown, compared, hashed or taken for a truth value."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any arguments, as a function does that is called with a batch."""

    def __repr__(self, *_: Any) -> str:
        raise RuntimeError("this value has no text")

    __str__ = __bool__ = __eq__ = __hash__ = __repr__  # type: ignore[assignment]


class Long:
    """Has a text of ten million characters."""

    def __repr__(self) -> str:
        return "long" * (MANY // 4)


def circular() -> list[Any]:
    """Return a list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


@functools.cache
def deep(kind: type) -> Any:
    """Return a list, tuple or dict inside of many others."""
    value: Any = kind()
    for _ in range(DEEP):
        value = {"x": value} if kind is dict else kind([value])
    return value


@functools.cache
def long_text() -> str:
    """Return a text of ten million characters."""
    return "a" * MANY


# Functions: some values are used up when they are read, and others are large.
ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "one": lambda: 1,
    "33 bits": lambda: 2**32,
    "63 bits": lambda: 2**62,
    "64 bits": lambda: 2**63,
    "minus 64 bits": lambda: -(2**63) - 1,
    "400 digits": lambda: 10**400,
    "5000 digits": lambda: 10**5000,
    "half": lambda: 0.5,
    "more than one": lambda: 1.5,
    "minus half": lambda: -0.5,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "large float": lambda: 1e308,
    "nan as decimal": lambda: Decimal("NaN"),
    "decimal": lambda: Decimal("1.5"),
    "fraction": lambda: Fraction(1, 2),
    "complex": lambda: 1j,
    "integer of numpy": lambda: np.int64(2),
    "float of numpy": lambda: np.float32(0.5),
    "true of numpy": lambda: np.True_,
    "time of numpy": lambda: np.datetime64("NaT"),
    "array": lambda: np.zeros((2, 2)),
    "array of no dimensions": lambda: np.array(1),
    "array of texts": lambda: np.array(["a", "b"]),
    "array of objects": lambda: np.array([None, object()], object),
    "empty text": lambda: "",
    "text": lambda: "x",
    "number as text": lambda: "1",
    "null character": lambda: "a\0b",
    "surrogate": lambda: "\ud800",
    "long text": long_text,
    "bytes": lambda: b"ab",
    "long bytes": lambda: long_text().encode(),
    "bytearray": lambda: bytearray(b"ab"),
    "empty list": list,
    "numbers": lambda: [1, 2],
    "texts": lambda: ["x", "y"],
    "Nones": lambda: [None],
    "mixed list": lambda: ["x", 1, None, object()],
    "pair": lambda: (0, 1),
    "deep list": lambda: deep(list),
    "deep tuple": lambda: deep(tuple),
    "deep dict": lambda: deep(dict),
    "circular list": circular,
    "empty dict": dict,
    "dict": lambda: {"x": 1},
    "dict of numbers": lambda: {1: 2},
    "dict of None": lambda: {None: None},
    "set": lambda: {1, 2},
    "long range": lambda: range(10**12),
    "endless": itertools.count,
    "object": object,
    "class": lambda: Hostile,
    "function": lambda: lambda *_, **__: None,
    "module": lambda: os,
    "path": lambda: pathlib.Path("no/such/folder"),
    "time": lambda: dt.datetime(2026, 1, 1),
    "exception": lambda: ValueError("x"),
    "hostile": Hostile,
    "long repr": Long,
}

_INTEGERS = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)
_LISTS = (list, tuple, set, frozenset)


def admits(hint: Any, value: Any) -> bool:
    """Return True if an annotation admits a value, or says too little to exclude it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or origin is typing.Annotated:  # a validator decides
        return True
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value.item()  # as a scalar of numpy
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    if origin in (types.UnionType, typing.Union):
        return any(admits(part, value) for part in parts)
    if origin is typing.Literal:
        return isinstance(value, (str, int)) and value in parts
    if hint is None or hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, (bool, np.bool_))
    if hint in (int, float):
        kinds = _INTEGERS if hint is int else _NUMBERS
        return isinstance(value, kinds) and not isinstance(value, bool)
    if isinstance(origin, type):
        return _admits_items(origin, parts, value)
    return not isinstance(hint, type) or isinstance(value, hint)


def _admits_items(origin: type, parts: tuple[Any, ...], value: Any) -> bool:
    if not isinstance(value, origin) or isinstance(value, (str, bytes, bytearray)):
        return False  # a text is not a list of letters
    if isinstance(value, dict) and issubclass(origin, collections.abc.Mapping):
        return all(admits(parts[0], key) and admits(parts[1], value[key]) for key in value)
    if not isinstance(value, _LISTS) or not parts:
        return True
    if origin is tuple and parts[-1] is not Ellipsis:
        return len(value) == len(parts) and all(map(admits, parts, value))
    return all(admits(parts[0], item) for item in value)
