"""Names of tasks and agents as small numbers, which are used again."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class NameTable:
    """Names that steps in memory have.

    Attributes:
        names: The name of each number.

    Example:
        >>> table = NameTable()
        >>> table.add("walk", 2), table.add("run", 1), table.add("walk", 1)
        (0, 1, 0)
        >>> table.drop(np.array([0, 0, 0])), table.add("jump", 1), table.names[:2].tolist()
        (None, 0, ['jump', 'run'])
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._n_steps = np.zeros(0, np.int64)
        self.names: NDArray[Any] = np.zeros(0, object)

    def add(self, name: str, n_steps: int) -> int:
        """Return the number of a name that more steps have."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next()
            self.names[number] = name
        self._n_steps[number] += n_steps
        return number

    def _next(self) -> int:
        if not self._free:
            n = len(self.names)
            more = max(n, 256)
            self._free = list(range(n + more - 1, n - 1, -1))
            self._n_steps = np.concatenate([self._n_steps, np.zeros(more, np.int64)])
            self.names = np.concatenate([self.names, np.zeros(more, object)])
        return self._free.pop()

    def drop(self, numbers: Integers) -> None:
        """Note that steps have left, by the numbers of their names."""
        np.subtract.at(self._n_steps, numbers, 1)
        distinct = np.unique(numbers)
        gone = distinct[self._n_steps[distinct] == 0].tolist()
        for number in gone:
            del self._numbers[self.names[number]]
            self._free.append(number)
        if gone:  # batches may still look names up that were known when they were drawn
            self.names = self.names.copy()
