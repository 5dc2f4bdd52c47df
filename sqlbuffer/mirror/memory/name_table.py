"""Names of tasks and agents as small numbers, which are used again."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class NameTable:
    """Names that steps in memory have.

    Attributes:
        names: The name of each number.
        touched: Collects the numbers that get a name; None: it does not.

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
        self.touched: set[int] | None = None

    def add(self, name: str, n_steps: int) -> int:
        """Return the number of a name that more steps have."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next()
            self.names[number] = name
            if self.touched is not None:
                self.touched.add(number)
        self._n_steps[number] += n_steps
        return number

    def _next(self) -> int:
        if not self._free:
            n = len(self.names)
            more = max(n, 256)
            self._free = list(range(n + more - 1, n - 1, -1))
            self._lengthen(more)
        return self._free.pop()

    def _lengthen(self, more: int) -> None:
        self._n_steps = np.concatenate([self._n_steps, np.zeros(more, np.int64)])
        self.names = np.concatenate([self.names, np.zeros(more, object)])

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

    def numbers(self) -> list[int]:
        """Return the numbers that are in use."""
        return list(self._numbers.values())

    def put(self, names: Mapping[int, str]) -> None:
        """Take names with the numbers that another table gave them."""
        if not names:
            return
        self._lengthen(max(0, max(names) + 1 - len(self.names)))
        self.names = self.names.copy()
        for number, name in names.items():
            self.names[number] = name

    def restore(self, numbers: Integers) -> None:
        """Count the steps again, by the numbers of their names. `put` has stored the names."""
        self._n_steps = np.bincount(numbers, minlength=len(self.names)).astype(np.int64)
        in_use = np.flatnonzero(self._n_steps)
        self._numbers = {self.names[number]: number for number in in_use.tolist()}
        self._free = np.flatnonzero(self._n_steps == 0)[::-1].tolist()
