"""Checks of the arguments of public calls: one function for each kind of argument.

Each returns the argument as the code behind the door takes it. Its error names the argument, says
what to give, and quotes what was given in short. Numbers are those of Python and numpy; truth
values are not numbers.
"""

import difflib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sqlbuffer.display import shown
from sqlbuffer.errors import ArgumentError, FieldError

MAX_INTEGER = 2**63 - 1  # of the databases
MAX_SECONDS = 1e8  # three years
MAX_NAMES = 2**16
MAX_PATH_BYTES = 4096

# The class of an error, or another function that makes one of a message.
ErrorOf = Callable[[str], Exception]


def integer_of(value: Any) -> int | None:
    """Return an integer as Python's; None for any other value."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int(value) if is_integer else None


def real_of(value: Any) -> float | None:
    """Return a number as Python's float; None for any other value."""
    if isinstance(value, (float, np.floating)):
        return float(value)
    integer = integer_of(value)
    try:
        return None if integer is None else float(integer)
    except OverflowError:
        return None


def refused(value: Any, name: str, expected: str, error: ErrorOf = ArgumentError) -> Exception:
    """Return the error for an argument.

    Args:
        value: The argument.
        name: Its name.
        expected: The values that the call takes, as the end of a sentence.
        error: Class of the error.
    """
    quoted = f"the class {value.__name__}" if isinstance(value, type) else shown(value)
    return error(f"{name} is {expected}, got {quoted}")


def checked_integer(
    value: Any,
    name: str,
    least: int = -MAX_INTEGER - 1,
    most: int = MAX_INTEGER,
    *,
    what: str = "an integer",
    more: str = "",
    error: ErrorOf = ArgumentError,
) -> int:
    """Return an integer.

    Args:
        value: The argument.
        name: Its name.
        least: Smallest value.
        most: Largest value.
        what: Words for such a number.
        more: Words for other values that the call takes.
        error: Class of the error.

    Example:
        >>> checked_integer(3, "page", 1)
        3
    """
    integer = integer_of(value)
    if integer is None or not least <= integer <= most:
        if least < -MAX_INTEGER or (most == MAX_INTEGER < (integer or 0)):
            bounds = " of 64 bits" if most == MAX_INTEGER else f" up to {most}"
        else:
            bounds = f" from {least} on" if most == MAX_INTEGER else f" from {least} to {most}"
        raise refused(value, name, f"{what}{bounds}{more}", error)
    return integer


def checked_count(value: Any, name: str, least: int = 0, *, error: ErrorOf = ArgumentError) -> int:
    """Return a number of things to return; one of more than 64 bits means all of them."""
    integer = integer_of(value)
    if integer is None or integer < least:
        raise refused(value, name, f"an integer from {least} on", error)
    return min(integer, MAX_INTEGER)


def checked_number(
    value: Any,
    name: str,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float | None = None,
    what: str = "a number",
    more: str = "",
    error: ErrorOf = ArgumentError,
) -> float:
    """Return a finite number as a float; the arguments are those of `checked_integer`.

    Args:
        value: The argument.
        name: Its name.
        least: Smallest value.
        most: Largest value.
        above: Number below the smallest value.
        what: Words for such a number.
        more: Words for other values that the call takes.
        error: Class of the error.
    """
    real = real_of(value)
    is_in = real is not None and math.isfinite(real) and least <= real <= most
    if real is None or not is_in or (above is not None and real <= above):
        low = f" above {above:g}" if above is not None else f" from {least:g}"
        if math.isfinite(most):
            bounds = f"{low} to {most:g}"
        elif above is None:
            bounds = f"{low} on" if math.isfinite(least) else " that is finite"
        else:
            bounds = low
        raise refused(value, name, f"{what}{bounds}{more}", error)
    return real


def checked_seconds(
    value: Any, name: str, *, least: float = 0.0, error: ErrorOf = ArgumentError
) -> float:
    """Return a number of seconds that a wait can take."""
    return checked_number(value, name, least, MAX_SECONDS, what="a number of seconds", error=error)


def checked_duration(
    value: Any, name: str, most: float = MAX_SECONDS, *, error: ErrorOf = ArgumentError
) -> float:
    """Return a number of seconds above 0."""
    what = "a number of seconds"
    return checked_number(value, name, most=most, above=0.0, what=what, error=error)


_AMOUNT = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_WORDS = {"second": "s", "minute": "min", "hour": "h", "day": "d", "week": "w"}
_BYTES = {
    "B": 1,
    **{f"{prefix}B": 1_000**n for n, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}iB": 1_024**n for n, prefix in enumerate("KMGTP", 1)},
}
AN_AGE = "a text such as '7d', '12h' or '90 min', a timedelta, or a number of seconds, above 0"
A_SIZE = "a text such as '200 GB' or '500 MiB', or a number of bytes, from 1 on"


def checked_age(
    value: Any, name: str, *, what: str = AN_AGE, error: ErrorOf = ArgumentError
) -> float:
    """Return an age in seconds.

    Example:
        >>> checked_age("90 min", "max_age"), checked_age("7d", "max_age")
        (5400.0, 604800.0)
    """
    units = {unit.lower(): n for unit, n in _SECONDS.items()}
    units |= {f"{word}{s}": _SECONDS[unit] for word, unit in _WORDS.items() for s in ("", "s")}
    if isinstance(value, timedelta):
        seconds: float | None = value.total_seconds()
    elif isinstance(value, str):
        seconds = _amount(value, units, default=None)
    else:
        seconds = real_of(value)
    if seconds is None or not 0 < seconds <= MAX_SECONDS * 100:
        raise refused(value, name, what, error)
    return float(seconds)


def checked_size(
    value: Any, name: str, *, what: str = A_SIZE, error: ErrorOf = ArgumentError
) -> int:
    """Return a size in bytes: kB, MB, GB, TB and PB are powers of 1,000, KiB, MiB.. of 1,024.

    Example:
        >>> checked_size("200 GB", "max_bytes"), checked_size("500 MiB", "max_bytes")
        (200000000000, 524288000)
    """
    if isinstance(value, str):
        amount = _amount(value, {unit.lower(): n for unit, n in _BYTES.items()}, default="b")
        size = None if amount is None or amount > MAX_INTEGER else int(amount)
    else:
        size = integer_of(value)
    if size is None or not 1 <= size <= MAX_INTEGER:
        raise refused(value, name, what, error)
    return size


def _amount(text: str, units: Mapping[str, int], default: str | None) -> float | None:
    """Return a number with its unit, in the smallest unit; None for other text."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    scale = units.get(match[2].lower() or default or "")
    number = float(match[1].replace(",", "").replace("_", ""))
    return None if scale is None else number * scale


def checked_flag(value: Any, name: str, *, more: str = "", error: ErrorOf = ArgumentError) -> bool:
    """Return a truth value."""
    if not isinstance(value, (bool, np.bool_)):
        raise refused(value, name, f"True or False{more}", error)
    return bool(value)


def checked_choice(
    value: Any,
    name: str,
    choices: Collection[str],
    *,
    more: str = "",
    error: ErrorOf = ArgumentError,
) -> str:
    """Return one of several words."""
    if isinstance(value, str) and value in choices:
        return str(value)
    near = difflib.get_close_matches(shown(value).strip("'"), choices, n=1)
    expected = f"one of {', '.join(choices)}{more}"
    refusal = refused(value, name, expected, error)
    raise error(f"{refusal}; did you mean {near[0]}?") if near else refusal


def checked_text(
    value: Any, name: str, what: str = "text", *, error: ErrorOf = ArgumentError
) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise refused(value, name, what, error)
    return str(value)


def checked_path(
    value: Any,
    name: str,
    what: str = "the path of a file or folder",
    *,
    error: ErrorOf = ArgumentError,
) -> Path:
    """Return the path of a file or folder."""
    if isinstance(value, (str, os.PathLike)):
        try:
            path = os.fspath(value)
            encoded = os.fsencode(path)
        except (TypeError, UnicodeError):  # of a foreign class, or not text
            path, encoded = "", b""
        if isinstance(path, str) and 0 < len(encoded) <= MAX_PATH_BYTES and b"\0" not in encoded:
            return Path(path)
    raise refused(value, name, f"{what}, of up to {MAX_PATH_BYTES:,} bytes", error)


def checked_callable(
    value: Any, name: str, what: str = "a function", *, error: ErrorOf = ArgumentError
) -> Any:
    """Return a function, or another thing that can be called."""
    if not callable(value):
        raise refused(value, name, what, error)
    return value


def checked_instance(
    value: Any,
    name: str,
    kind: type | tuple[type, ...],
    what: str,
    *,
    error: ErrorOf = ArgumentError,
) -> Any:
    """Return an object of a class.

    Args:
        value: The argument.
        name: Its name.
        kind: The class, or several.
        what: Words for such an object, and what makes one.
        error: Class of the error.
    """
    if isinstance(value, kind):
        return value
    refusal = refused(value, name, what, error)
    if isinstance(value, type) and issubclass(value, kind):
        refusal = error(f"{refusal}; make one: {value.__name__}()")
    raise refusal


def checked_dict(
    value: Any, name: str, example: str, *, error: ErrorOf = ArgumentError
) -> Mapping[Any, Any]:
    """Return a dict."""
    if not isinstance(value, Mapping):
        raise refused(value, name, f"a dict such as {example}", error)
    return value


def checked_iterable(
    values: Any, name: str, what: str, *, error: ErrorOf = ArgumentError
) -> Iterable[Any]:
    """Return a list or another iterable. Texts and dicts are not lists.

    Args:
        values: The argument.
        name: Its name.
        what: Words for such a list.
        error: Class of the error.
    """
    is_scalar = isinstance(values, (str, bytes, bytearray, Mapping, type))
    # An array of no dimensions has the method of an iterable.
    if is_scalar or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise refused(values, name, what, error)
    return values


def checked_items(
    values: Any, name: str, what: str, most: int, *, error: ErrorOf = ArgumentError
) -> list[Any]:
    """Return the items of an iterable that ends; see `checked_iterable`.

    Args:
        values: The argument.
        name: Its name.
        what: Words for such a list.
        most: Largest number of items.
        error: Class of the error.
    """
    items = list(islice(checked_iterable(values, name, what, error=error), most + 1))
    if len(items) > most:
        raise refused(values, name, f"{what}, of up to {most:,} items", error)
    return items


def checked_names(
    values: Any, name: str, example: str, *, error: ErrorOf = FieldError
) -> list[str]:
    """Return a list of names.

    Args:
        values: The argument.
        name: Its name.
        example: Such a list.
        error: Class of the error.
    """
    what = f"a list of names such as {example}"
    if not isinstance(values, Collection):  # an iterator would be used up
        raise refused(values, name, what, error)
    names = checked_items(values, name, what, MAX_NAMES, error=error)
    if not all(isinstance(item, str) for item in names):
        raise refused(values, name, what, error)
    return names
