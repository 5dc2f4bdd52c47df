"""Check single settings: an error names the setting, the value and the expected value."""

from collections.abc import Collection
from typing import Any

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.rate_limits import NO_LIMIT, FlowCounts, Policy
from sqlbuffer.scalars import integer_of, real_of

MAX_SECONDS = 1e8  # three years
MAX_USE = 2**31 - 1
MAX_LIMIT = 2**63 - 1  # limit of the databases


def checked_capacity(value: Any, name: str = "max_capacity") -> int | None:
    """Return a positive integer, or None."""
    if value is None:
        return None
    integer = integer_of(value)
    if integer is None or not 1 <= integer <= MAX_LIMIT:
        raise BufferConfigError(f"{name} is a positive integer or None (unlimited), got {value!r}")
    return integer


def checked_uses(value: Any, name: str) -> int | None:
    """Return a positive integer of 32 bits, or None."""
    uses = checked_capacity(value, name)
    if uses is not None and uses > MAX_USE:
        raise BufferConfigError(f"{name} is at most {MAX_USE}, got {uses}")
    return uses


def checked_size(value: Any, name: str) -> int:
    """Return a positive integer."""
    size = checked_capacity(value, name)
    if size is None:
        raise BufferConfigError(f"{name} is a positive integer, got None")
    return size


def checked_count(value: Any, name: str) -> int:
    """Return an integer from 0 on."""
    integer = integer_of(value)
    if integer is None or not 0 <= integer <= MAX_LIMIT:
        raise BufferConfigError(f"{name} is an integer from 0 on, got {value!r}")
    return integer


def checked_flag(value: Any, name: str) -> bool:
    """Return a truth value."""
    if value not in (True, False):
        raise BufferConfigError(f"{name} is True or False, got {value!r}")
    return bool(value)


def checked_exponent(value: Any, name: str) -> float:
    """Return a number from 0 to 1."""
    exponent = real_of(value)
    if exponent is None or not 0 <= exponent <= 1:
        raise BufferConfigError(f"{name} is a number from 0 to 1, got {value!r}")
    return exponent


def checked_seconds(name: str, value: Any) -> float:
    """Return a number of seconds above 0."""
    seconds = real_of(value)
    if seconds is None or not 0 < seconds <= MAX_SECONDS:
        raise BufferConfigError(f"{name} is a number of seconds above 0, got {value!r}")
    return seconds


def checked_wait(name: str, value: Any) -> float:
    """Return a number of seconds from 0 on that ends."""
    seconds = real_of(value)
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        raise BufferConfigError(
            f"{name} is a number of seconds, 0 (raises immediately) to {MAX_SECONDS:g}, "
            f"got {value!r}"
        )
    return seconds


def checked_retry(name: str, value: Any) -> float:
    """Return a number of seconds from 0 on."""
    seconds = real_of(value)
    if seconds is None or not 0 <= seconds < float("inf"):
        raise BufferConfigError(f"{name} is a number of seconds, 0 or more, got {value!r}")
    return seconds


def checked_choice(value: Any, name: str, choices: Collection[str], more: str = "") -> str:
    """Return one of the choices."""
    if value not in choices:
        raise BufferConfigError(f"{name} is one of {', '.join(choices)}{more}, got {value!r}")
    return str(value)


def check_fits(max_capacity: int | None, min_size: int) -> None:
    """Raise if a buffer never holds enough rows to be sampled."""
    if max_capacity is not None and max_capacity < min_size:
        raise BufferConfigError(
            f"a buffer of max_capacity={max_capacity} never holds the {min_size} rows that it is "
            f"sampled from (min_size); let it hold as many"
        )


def check_reached(policy: Policy | None, min_size: int, n_rows: int = 0) -> None:
    """Raise if a limiter stops inserts before there are enough rows to sample any."""
    room = NO_LIMIT if policy is None else policy.room(FlowCounts(0, 0))
    if n_rows + room < min_size:
        raise BufferConfigError(
            f"{policy} lets {room:,} rows in before any is sampled, and the buffer holds "
            f"{n_rows:,} and is sampled from {min_size:,} on (min_size): both sides would wait for "
            f"each other; give the limiter min_size={min_size - n_rows} or more"
        )
