"""Values as whole texts: arrays with their numbers."""

from typing import Any

import numpy as np

from sqlbuffer.web.readable_values import readable

# Arrays of more numbers show those at both ends.
MOST_NUMBERS = 20_000


def value_text(value: Any) -> str:
    """Return a value as text: JSON with indents; an array with its dtype, shape and numbers.

    Example:
        >>> print(value_text(np.arange(3)))
        int64, shape (3,)
        [0, 1, 2]
    """
    if not isinstance(value, (np.ndarray, np.generic)):
        return readable(value)
    array = np.asarray(value)
    numbers = np.array2string(
        array, separator=", ", threshold=MOST_NUMBERS, edgeitems=50, max_line_width=120
    )
    return f"{array.dtype}, shape {tuple(array.shape)}\n{numbers}"
