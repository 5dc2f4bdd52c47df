"""Numbers as callers give them, of Python or numpy; truth values are none."""

from typing import Any

import numpy as np


def integer_of(value: Any) -> int | None:
    """Return an integer as Python's; None of anything else."""
    is_one = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int(value) if is_one else None


def real_of(value: Any) -> float | None:
    """Return a number as Python's float; None of anything else."""
    if isinstance(value, (float, np.floating)):
        return float(value)
    integer = integer_of(value)
    try:
        return None if integer is None else float(integer)
    except OverflowError:
        return None
