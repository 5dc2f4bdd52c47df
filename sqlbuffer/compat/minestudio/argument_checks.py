"""Checks of the arguments of calls."""

import math
from typing import Any

from sqlbuffer.arguments import checked_clock
from sqlbuffer.checks import integer_of, real_of
from sqlbuffer.compat.minestudio.datatypes import FragmentMetadata
from sqlbuffer.compat.minestudio.errors import (
    FragmentAssertionError,
    FragmentError,
    FragmentTypeError,
)
from sqlbuffer.encoding.records import encode_key
from sqlbuffer.errors import FieldError
from sqlbuffer.storage.extensions.fragments.pool import Rules


def number(value: Any, name: str) -> int:
    """Return an integer of 64 bits."""
    try:
        return checked_clock(value, name)
    except TypeError as error:
        raise FragmentTypeError(str(error)) from None
    except ValueError as error:
        raise FragmentError(str(error)) from None


def version(value: Any) -> int:
    """Return the version of a model: the difference of two has 64 bits."""
    found = number(value, "model_version")
    if abs(found) >= 2**62:
        raise FragmentError(f"model_version is an integer of 62 bits, got {found}")
    return found


def key(value: Any, name: str) -> str:
    """Return a text that can be a key."""
    if not isinstance(value, str):
        raise FragmentTypeError(f"{name} is a text, got {value!r}")
    try:
        return encode_key(value, name)
    except FieldError as error:
        raise FragmentError(str(error)) from None


def session(value: Any) -> str:
    """Return a session; the empty text is none."""
    return key(value, "session_id")


def consumer(value: Any) -> str:
    """Return a consumer; the empty text is all of them."""
    return key(value, "consumer")


def metadata(given: Any, fragment: Any) -> FragmentMetadata:
    """Return the metadata of a fragment: those of this package or of MineStudio."""
    names = ("model_version", "session_id", "worker_uuid", "fid_in_worker")
    missing = [name for name in names if not hasattr(given, name)]
    if missing:
        raise FragmentTypeError(
            f"expected FragmentMetadata, got {type(given).__name__} without {', '.join(missing)}"
        )
    found = FragmentMetadata(
        version(given.model_version),
        session(given.session_id),
        key(given.worker_uuid, "worker_uuid"),
        number(given.fid_in_worker, "fid_in_worker"),
    )
    if not found.worker_uuid:
        raise FragmentError("worker_uuid is a text, got ''")
    if found.fid_in_worker < 0:
        raise FragmentError(
            f"fid_in_worker is counted from 0 by each worker, got {found.fid_in_worker}"
        )
    if not hasattr(fragment, "worker_uuid") or not hasattr(fragment, "fid_in_worker"):
        raise FragmentTypeError(f"expected a SampleFragment, got {type(fragment).__name__}")
    own = (fragment.worker_uuid, fragment.fid_in_worker)
    if own != (found.worker_uuid, found.fid_in_worker):
        raise FragmentError(
            f"the metadata are of fragment {found.fid_in_worker} of worker {found.worker_uuid!r}, "
            f"and the fragment is {own[1]!r} of {own[0]!r}"
        )
    return found


def n_chunks(num_fragments: Any, rules: Rules) -> int:
    """Return the number of chunks of a number of fragments."""
    n = number(num_fragments, "num_fragments")
    per_chunk = rules.fragments_per_chunk
    if n < 0:
        raise FragmentAssertionError(f"num_fragments is 0 or more, got {n}")
    if n % per_chunk:
        raise FragmentAssertionError(
            f"num_fragments is a multiple of fragments_per_chunk ({per_chunk}), got {n}"
        )
    if n // per_chunk > rules.max_chunks:
        raise FragmentAssertionError(
            f"{n} fragments are {n // per_chunk} chunks, and the buffer has {rules.max_chunks} at "
            f"most (max_chunks): there would never be enough"
        )
    return n // per_chunk


def timeout(value: Any) -> float | None:
    """Return how long to wait; None: without end."""
    if value is None:
        return None
    seconds = real_of(value)
    if seconds is None:
        raise FragmentTypeError(f"timeout is a number of seconds or None, got {value!r}")
    if not seconds >= 0:
        raise FragmentError(f"timeout is a number of seconds from 0 on, got {value!r}")
    return None if math.isinf(seconds) else seconds


def seed(value: Any) -> int | None:
    """Return a seed."""
    if value is None:
        return None
    integer = integer_of(value)
    if integer is None:
        raise FragmentTypeError(f"seed is an integer, got {value!r}")
    if integer < 0:
        raise FragmentError(f"seed is an integer from 0 on, got {value!r}")
    return integer


def report(value: Any) -> Any:
    """Return the function that is called with reports."""
    if value is not None and not callable(value):
        raise FragmentTypeError(f"report is called with a dict of numbers, got {value!r}")
    return value
