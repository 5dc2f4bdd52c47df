"""Check the arguments of exports and imports; each error says what to give."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.display.short_values import short
from sqlbuffer.errors import ArgumentError
from sqlbuffer.scalars import integer_of, real_of

MAX_PATH_BYTES = 4096
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")


def refused(value: Any, name: str, expected: str) -> ArgumentError:
    """Return the error for an argument.

    Args:
        value: The argument.
        name: Its name.
        expected: The values that the call takes, as the end of a sentence.
    """
    return ArgumentError(f"{name} is {expected}, got {short(value):.100}")


def checked_buffer(value: Any, name: str = "buffer") -> ReplayBuffer:
    """Return a buffer."""
    if not isinstance(value, ReplayBuffer):
        is_async = isinstance(getattr(value, "sync", None), ReplayBuffer)
        hint = "; give its .sync" if is_async else ""
        raise refused(value, name, f"a ReplayBuffer, such as ReplayBuffer(url, name){hint}")
    return value


def checked_path(value: Any, name: str = "path", what: str = "the path of a file") -> Path:
    """Return the path of a file or folder."""
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        try:
            encoded = os.fsencode(path)
        except UnicodeError:
            encoded = b""
        if isinstance(path, str) and 0 < len(encoded) <= MAX_PATH_BYTES and b"\0" not in encoded:
            return Path(path)
    raise refused(value, name, f"{what}, of up to {MAX_PATH_BYTES:,} bytes without U+0000")


def checked_choice(value: Any, name: str, choices: Collection[str]) -> str:
    """Return one of several words."""
    if not isinstance(value, str) or value not in choices:
        raise refused(value, name, f"one of {', '.join(map(repr, choices))}")
    return value


def checked_integer(value: Any, name: str, least: int) -> int:
    """Return an integer from `least` on."""
    integer = integer_of(value)
    if integer is None or integer < least:
        raise refused(value, name, f"an integer from {least} on")
    return integer


def checked_number(value: Any, name: str, least: float) -> float:
    """Return a number from `least` on."""
    real = real_of(value)
    if real is None or not real >= least:
        raise refused(value, name, f"a number from {least:g} on")
    return real


def checked_names(value: Any, name: str) -> list[str]:
    """Return a list of names."""
    is_list = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
    if not is_list or not all(isinstance(item, str) for item in value):
        raise refused(value, name, "a list of names such as ['obs', 'reward']")
    return list(value)


def checked_dict(value: Any, name: str, example: str) -> Mapping[Any, Any]:
    """Return a dict; None is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise refused(value, name, f"a dict such as {example}")
    return value or {}


def check_options(*, overwrite: Any = False, on_progress: Any = None) -> None:
    """Raise unless these are a truth value, and a function or None."""
    if not isinstance(overwrite, bool):
        raise refused(overwrite, "overwrite", "True or False")
    if on_progress is not None and not callable(on_progress):
        raise refused(on_progress, "on_progress", "a function of three numbers, or None")
