"""Numbers of steps that are added one at a time."""

from collections import deque
from itertools import count


class StepNumbers:
    """The step numbers of one task and agent in this process: 0, 1, 2 and so on, without a gap.

    Example:
        >>> numbers = StepNumbers()
        >>> numbers.take(), numbers.take()
        (0, 1)
        >>> numbers.give_back(1)
        >>> numbers.take(), numbers.take()
        (1, 2)
    """

    def __init__(self) -> None:
        self._unused = count()
        self._returned: deque[int] = deque()

    def take(self) -> int:
        """Return the next number; threads get different ones."""
        if self._returned:
            try:
                return self._returned.popleft()
            except IndexError:  # another thread has it
                pass
        return next(self._unused)

    def give_back(self, number: int) -> None:
        """Take a number back whose step was refused; the next step has it."""
        self._returned.append(number)
