"""Steps that this process has given to a buffer and not stored yet: its own reads see them."""

from collections.abc import Callable
from typing import Protocol

# A draw leaves so much of the buffer out at most: one step of so many.
FEWEST_STORED_FOR_ONE = 64


class WaitingSteps(Protocol):
    """Steps that wait to be stored."""

    @property
    def n_waiting(self) -> int:
        """How many."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""

    def store_now(self) -> None:
        """Store what waits, as far as a rate limiter lets it through without a wait."""


class OwnWrites:
    """Stores the waiting steps of this process before it reads the buffer.

    Whoever reads rows sees all of them. To store them before each random draw would make a chunk of
    each step: a draw goes without the last ones, if these are few beside those that are stored. A
    writer stores them after `flush_s` in any case.
    """

    def __init__(self) -> None:
        self._queues: list[WaitingSteps] = []
        self._n_stored = 0

    def add(self, queue: WaitingSteps) -> None:
        """Look after the steps that wait in a queue."""
        self._queues.append(queue)

    def store(self) -> None:
        """Store all that waits."""
        for queue in self._queues:
            if not queue.is_empty:
                queue.store_now()

    def store_before_draw(self, n: int, count: Callable[[], int]) -> None:
        """Store what waits if a draw is to see it.

        Args:
            n: How many things are drawn.
            count: Returns how many steps are stored.
        """
        n_waiting = 0
        for queue in self._queues:  # a third of the time of a generator
            n_waiting += queue.n_waiting
        if n_waiting and self._is_missed(n_waiting, n):
            self._n_stored = count()
            if self._is_missed(n_waiting, n):
                self.store()
                self._n_stored += n_waiting

    def _is_missed(self, n_waiting: int, n: int) -> bool:
        return self._n_stored < max(n, n_waiting * FEWEST_STORED_FOR_ONE)
