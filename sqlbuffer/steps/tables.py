"""Arrays as a table of pandas."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import MissingExtraError
from sqlbuffer.extras import install


def as_table(arrays: Mapping[str, Any], info: Mapping[str, NDArray[Any]], n_rows: int) -> Any:
    """Return a `pandas.DataFrame` of n rows; see `Batch.to_pandas`.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError(
            f"to_pandas() needs pandas; run {install('pandas')}; numpy arrays need nothing"
        ) from None
    named = {f"info.{name}" if name in arrays else name: array for name, array in info.items()}
    columns = {name: _column(array, n_rows) for name, array in {**named, **arrays}.items()}
    return pandas.DataFrame(columns, index=pandas.RangeIndex(n_rows))


def _column(array: Any, n_rows: int) -> NDArray[Any]:
    """Return an array of shape (n,); of one with more dimensions the parts, as objects."""
    if array is None:
        return np.full(n_rows, None, object)
    own: NDArray[Any] = np.asarray(array.cpu() if hasattr(array, "cpu") else array)
    if own.ndim == 1:
        return own
    parts = np.empty(n_rows, object)
    for i, part in enumerate(own):  # assigned together, numpy would spread them over n x m places
        parts[i] = part
    return parts
