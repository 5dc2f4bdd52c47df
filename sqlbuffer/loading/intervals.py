"""Many numbers, most of them in a row."""

import numpy as np
from numpy.typing import NDArray


class Intervals:
    """Ascending numbers as the stretches without a hole that they are: as small as there are few
    holes, however many numbers.

    Args:
        numbers: They, ascending, each once; or `(first, last)` of one stretch.

    Example:
        >>> numbers = Intervals(np.array([3, 4, 5, 9]))
        >>> len(numbers), numbers[np.array([0, 3])].tolist()
        (4, [3, 9])
    """

    def __init__(self, numbers: NDArray[np.int64] | tuple[int, int]) -> None:
        if isinstance(numbers, tuple):
            first, last = numbers
            self._firsts = np.array([first], np.int64)
            self._ends = np.array([max(last - first + 1, 0)], np.int64)
            return
        begins = np.flatnonzero(np.diff(numbers, prepend=np.int64(-2)) != 1)
        self._firsts = numbers[begins]
        # How many numbers there are up to the end of each stretch.
        self._ends = np.append(begins[1:], numbers.size).astype(np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        stretch = np.searchsorted(self._ends, places, side="right")
        before = np.concatenate([[0], self._ends[:-1]])[stretch]
        found: NDArray[np.int64] = self._firsts[stretch] + places - before
        return found
