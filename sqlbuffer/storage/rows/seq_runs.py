"""A set of numbers in the memory of its runs."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any


class SeqRuns:
    """Numbers, as the first and last of each run: few runs for millions of rows.

    Args:
        found: The runs, in order.
    """

    def __init__(self, found: Sequence[Any] = ()) -> None:
        self._firsts = [first for first, _ in found]
        self._lasts = [last for _, last in found]

    def __contains__(self, seq: int) -> bool:
        place = bisect_right(self._firsts, seq) - 1
        return place >= 0 and seq <= self._lasts[place]
