"""Priorities and numbers of rows as callers give them, checked."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.display import shown
from sqlbuffer.errors import FieldError

# The sum of as many as a buffer can have stays far from the largest double.
MOST_PRIORITY = 1e100
EPS = 1e-6
# In one call; more of them take gigabytes as Python's integers.
MAX_NUMBERS = 2**24
_RANGE = f"a number from 0 to {MOST_PRIORITY:g}"
_MAX_SEQ = 2**63 - 1


class CheckedUpdate(NamedTuple):
    """New priorities of rows.

    Attributes:
        seqs: The rows, each once and in ascending order, shape (b,).
        priorities: Their priorities, shape (b,).
    """

    seqs: NDArray[np.int64]
    priorities: NDArray[np.float64]


def check_kept(has_priorities: bool) -> None:
    """Raise unless the buffer keeps priorities."""
    if not has_priorities:
        raise FieldError(
            "priority: the buffer has no priorities; make one with priorities=True, or leave it out"
        )


def checked_priority(value: Any, name: str = "priority") -> float:
    """Return a priority.

    Raises:
        FieldError: Not a number from 0 to 1e100.
    """
    if type(value) is not float:
        value = _scalar(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FieldError(f"{name}: expected {_RANGE}, got {shown(value)}")
    if not 0 <= value <= MOST_PRIORITY:
        raise FieldError(f"{name}: expected {_RANGE}, got {shown(value)}")
    return float(value) + 0.0  # no -0.0


def checked_priorities(values: Any, n: int, name: str = "priority") -> list[float]:
    """Return n priorities; see `priority_array`."""
    priorities: list[float] = priority_array(values, n, name).tolist()
    return priorities


def priority_array(values: Any, n: int, name: str = "priority") -> NDArray[np.float64]:
    """Return n priorities, shape (n,).

    Args:
        values: One number for all, or an array of shape (n,).
        n: Number of priorities.
        name: Name in error messages.

    Raises:
        FieldError: The shape is wrong, or a value is not a number from 0 to 1e100; the message
            names the first.
    """
    array = as_array(values, name)
    if not array.ndim:
        return np.full(n, checked_priority(array[()], name))
    if array.shape != (n,):
        raise FieldError(f"{name}: expected {n} numbers or one, got shape {array.shape}")
    if not n:
        return np.zeros(0)
    if array.dtype.kind not in "iuf":
        raise FieldError(
            f"{name}: expected numbers, got {array.dtype} values such as {shown(array[0])}"
        )
    with np.errstate(over="ignore"):
        reals = array.astype(np.float64)
    is_right = (reals >= 0) & (reals <= MOST_PRIORITY)
    if not is_right.all():
        wrong = int(is_right.argmin())
        raise FieldError(f"{name}[{wrong}]: expected {_RANGE}, got {array[wrong]}")
    return reals + 0.0


def checked_eps(eps: Any) -> float:
    """Return the number that is added to priorities.

    Raises:
        FieldError: Not a number from 0 on.
    """
    return checked_priority(eps, "eps")


def checked_seqs(values: Any) -> NDArray[np.int64]:
    """Return numbers of rows as an array of shape (b,).

    Raises:
        FieldError: Anything but integers of 64 bits in one dimension.
    """
    array = as_array(values, "seqs")
    if array.ndim != 1:
        raise FieldError(
            f"seqs: expected integers of shape (b,), such as [7] or [row.seq for row in rows], got "
            f"{shown(values)}"
        )
    if not len(array):
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise FieldError(
            f"seqs: expected integers, such as [row.seq for row in rows], got {array.dtype} values "
            f"such as {shown(array[0])}"
        )
    if array.dtype.kind == "u" and int(array.max()) > _MAX_SEQ:
        raise FieldError(f"seqs: expected integers of 64 bits with a sign, got {array.max()}")
    return array.astype(np.int64)


def checked_update(seqs: Any, priorities: Any, eps: Any) -> CheckedUpdate:
    """Return the new priorities of rows; of equal rows the last counts.

    Raises:
        FieldError: NaN, a number out of range, or another shape or type.
    """
    numbers = checked_seqs(seqs)
    reals = priority_array(priorities, len(numbers), "priorities") + checked_eps(eps)
    if len(reals) and reals.max() > MOST_PRIORITY:
        raise FieldError(
            f"priorities: with eps {shown(eps)} the largest is above {MOST_PRIORITY:g}"
        )
    distinct, last = last_of_each(numbers)
    return CheckedUpdate(distinct, reals[last])


def last_of_each(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct numbers in ascending order, and the last place of each.

    In this order, two processes that change the same rows do not wait for each other.
    """
    order = numbers.argsort(kind="stable")
    ordered = numbers[order]
    is_last = np.ones(len(numbers), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_last[:-1])
    return ordered[is_last], order[is_last]


def _scalar(value: Any) -> Any:
    """Return Python's number of numpy's and torch's scalars."""
    is_array = hasattr(value, "item") and getattr(value, "ndim", 0) == 0
    return value.item() if is_array else value


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Return a caller's value as an array; lists with booleans are refused."""
    if hasattr(values, "detach"):  # a torch tensor, of any kind and device
        values = np.asarray(values.tolist()) if values.numel() else np.empty(values.shape)
    if isinstance(values, (list, tuple)) and any(isinstance(value, bool) for value in values):
        raise FieldError(f"{name}: expected numbers, got True or False among them")
    if np.ma.is_masked(values):
        raise FieldError(f"{name}: some are masked; fill them in")
    if isinstance(values, range) and values[MAX_NUMBERS:]:
        raise FieldError(f"{name}: expected up to {MAX_NUMBERS:,} numbers, got {values}")
    try:
        return np.asarray(values)
    except Exception:  # each kind of value, and of lists of them, has its own error
        raise FieldError(
            f"{name}: expected numbers in one dimension, got {shown(values)}"
        ) from None
