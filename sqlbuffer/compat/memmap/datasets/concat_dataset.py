"""Concatenates the datasets, and the tensors, of several buffers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sqlbuffer.errors import InsufficientDataError, MissingExtraError, install

try:
    import torch
    from torch.utils import data
except ImportError:
    raise MissingExtraError(f"datasets need torch; run {install('torch')}") from None


class BatchedConcatDataset(data.ConcatDataset):  # type: ignore[misc]
    """Torch's `ConcatDataset`, with one read for all items of a batch."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several items, without those that no longer exist.

        Raises:
            IndexError: There are not that many.
            InsufficientDataError: None is there any more.
        """
        n = len(self)
        places = np.array([int(index) for index in indices], np.int64)
        if places.size and not (-n <= places.min() and places.max() < n):
            raise IndexError(f"the dataset has {n} items, and the indices were {places.tolist()}")
        places = np.where(places < 0, places + n, places)
        ends = np.array(self.cumulative_sizes)
        owners = np.searchsorted(ends, places, "right")
        items: dict[int, dict[str, Any]] = {}
        for owner in np.unique(owners):
            mine = np.flatnonzero(owners == owner)
            local = places[mine] - (ends[owner - 1] if owner else 0)
            kept, found = self.datasets[owner].found(local)
            items |= zip(mine[kept].tolist(), found, strict=True)
        if places.size and not items:
            raise InsufficientDataError("none of the items is there any more: make a new dataset")
        return [items[i] for i in sorted(items)]


def concatenated(parts: Sequence[Mapping[str, Any]], steps: set[str]) -> dict[str, Any]:
    """Return the tensors of several buffers one after the other.

    Args:
        parts: Tensors by name, the same names in each.
        steps: The names of those that have steps, which are padded with zeros to the longest.
    """
    if not parts:
        return {}
    found = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        if name in steps:
            longest = max(tensor.shape[1] for tensor in tensors)
            tensors = [_padded(tensor, longest) for tensor in tensors]
        found[name] = torch.cat(tensors)
    return found


def _padded(tensor: Any, length: int) -> Any:
    zeros = tensor.new_zeros((len(tensor), length - tensor.shape[1], *tensor.shape[2:]))
    return torch.cat([tensor, zeros], 1)
