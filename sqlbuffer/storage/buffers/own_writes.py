"""Steps that this process has given to a buffer and not stored yet: its own reads see them."""

from collections.abc import Callable
from typing import Protocol

from sqlbuffer.storage.database.transactions import is_joined

# Limit of the waiting steps that a draw may leave out: one for this many stored steps.
FEWEST_STORED_FOR_ONE = 64


class WaitingSteps(Protocol):
    """Steps that wait to be stored."""

    @property
    def n_waiting(self) -> int:
        """Number of waiting steps."""

    @property
    def is_empty(self) -> bool:
        """No step waits."""

    def store_now(self) -> None:
        """Store the waiting steps, as far as a rate limiter allows without a wait."""


class OwnWrites:
    """Stores the waiting steps of this process before it reads the buffer.

    A call that reads rows sees all steps. A random draw may leave out the newest ones if they are
    few compared to the stored ones: storing them before each draw would make a chunk of each step.
    A writer stores them after `flush_s` in any case.
    """

    def __init__(self) -> None:
        self._queues: list[WaitingSteps] = []
        self._n_stored = 0

    def add(self, queue: WaitingSteps) -> None:
        """Add a queue whose waiting steps are stored before reads."""
        self._queues.append(queue)

    def store(self) -> None:
        """Store all waiting steps; not in a transaction, which may be undone."""
        if is_joined():
            return
        for queue in self._queues:
            if not queue.is_empty:
                queue.store_now()

    def store_before_draw(self, n: int, count: Callable[[], int]) -> None:
        """Store the waiting steps if they are too many for the draw to leave out.

        Args:
            n: Number of items to draw.
            count: Function that returns how many steps are stored.
        """
        n_waiting = 0
        for queue in self._queues:  # a third of the time of a generator
            n_waiting += queue.n_waiting
        if n_waiting and self._is_missed(n_waiting, n):
            self._n_stored = count()
            if self._is_missed(n_waiting, n):
                self.store()
                self._n_stored += n_waiting

    def catch_up(self) -> None:
        """Do nothing: a read sees what was committed; see `StandbyReads`."""

    def catch_up_with_all(self) -> None:
        """Do nothing: a read sees what other processes have committed too."""

    def wait_for(self, seq: int) -> None:
        """Do nothing: a read sees what another process has read."""

    def _is_missed(self, n_waiting: int, n: int) -> bool:
        return self._n_stored < max(n, n_waiting * FEWEST_STORED_FOR_ONE)
