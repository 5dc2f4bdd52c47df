"""Many numbers, most of them in a row."""

import base64
import zlib
from typing import Self

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

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the numbers of a text that `to_text` made.

        Raises:
            ValueError: It is another text.
        """
        try:
            bounds = np.frombuffer(zlib.decompress(base64.b85decode(text)), "<i8").reshape(2, -1)
        except (ValueError, zlib.error):
            raise ValueError(f"these are no intervals: {text!r:.80}") from None
        found = cls((1, 0))
        found._firsts, found._ends = np.cumsum(bounds, axis=1)
        return found

    def to_text(self) -> str:
        """Return the numbers as a short text."""
        bounds = np.diff([self._firsts, self._ends], axis=1, prepend=0).astype("<i8")
        return base64.b85encode(zlib.compress(bounds.tobytes(), 1)).decode()

    @property
    def last(self) -> int:
        """The largest number; 0 if there is none."""
        if not len(self):
            return 0
        return int(self[np.array([len(self) - 1])][0])

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        stretch = np.searchsorted(self._ends, places, side="right")
        before = np.concatenate([[0], self._ends[:-1]])[stretch]
        found: NDArray[np.int64] = self._firsts[stretch] + places - before
        return found
