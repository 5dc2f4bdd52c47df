"""The slots that have changed, for values that are computed from them."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class ChangedSlots:
    """Remembers changes of slots, up to a number of them.

    Args:
        most: When more slots than these have changed, those before are forgotten.

    Attributes:
        n: Number of changes.

    Example:
        >>> changed = ChangedSlots(3)
        >>> changed.add(np.array([5, 7])), changed.add(np.array([5]))
        (None, None)
        >>> changed.since(0).tolist(), changed.since(2).tolist()
        ([5, 7], [])
        >>> changed.add(np.array([9])), changed.since(0)
        (None, None)
    """

    def __init__(self, most: int) -> None:
        self._most, self._size, self.n = most, 0, 0
        self._parts: list[Integers] = []

    def add(self, slots: Integers) -> None:
        """Note that slots have changed."""
        self.n += 1
        self._size += len(slots)
        self._parts.append(slots)
        if self._size > self._most:
            self._parts, self._size = [], 0

    def forget(self) -> None:
        """Note that any slot may have changed."""
        self.n += 1
        self._parts, self._size = [], 0

    def since(self, n: int) -> Integers | None:
        """Return the slots that have changed after the first n changes; None: it is forgotten."""
        wanted = self.n - n
        if wanted > len(self._parts):
            return None
        parts = self._parts[len(self._parts) - wanted :]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
