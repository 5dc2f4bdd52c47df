"""Split batches, and join them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.steps import Batch


def part_of(batch: Batch, index: Sequence[int]) -> Batch:
    """Return the rows of a batch at some places."""
    if len(index) == batch.n_rows and list(index) == list(range(batch.n_rows)):
        return batch
    places = np.asarray(index, np.int64)
    return Batch(_at(batch, places), _at(batch.info, places))


def _at(arrays: Any, places: NDArray[np.int64]) -> dict[str, Any]:
    return {name: None if array is None else array[places] for name, array in arrays.items()}


def one_of(batches: Sequence[Batch]) -> Batch:
    """Return the rows of several batches, one after the other."""
    first = batches[0]
    return Batch(
        {name: stacked([batch[name] for batch in batches]) for name in first},
        {name: stacked([batch.info[name] for batch in batches]) for name in first.info},
    )


def stacked(arrays: Sequence[Any]) -> Any:
    """Return arrays joined along the first axis; None if one is None.

    Arrays that are shorter in other dimensions are padded with zeros.
    """
    if any(array is None for array in arrays):
        return None
    shape = tuple(max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True))
    padded = [
        array
        if array.shape[1:] == shape
        else np.pad(
            array,
            [(0, 0), *((0, n - own) for n, own in zip(shape, array.shape[1:], strict=True))],
        )
        for array in arrays
    ]
    return np.concatenate(padded)
