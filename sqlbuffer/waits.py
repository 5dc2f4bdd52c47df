"""Waits inside a call for what others do, which another thread may end."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sqlbuffer.errors import SQLBufferError

_LOOK_S = 0.1


class WaitCancelled(SQLBufferError):
    """The call was cancelled while it waited."""


class Waiter:
    """A call that runs in a thread for someone who may end its waits.

    Args:
        begins: Called when the call waits; it may be called again.
        cancelled: Ends its waits when it is set.
    """

    def __init__(self, begins: Callable[[], None], cancelled: threading.Event) -> None:
        self.begins, self.cancelled = begins, cancelled

    def check(self) -> None:
        """Raise WaitCancelled where the call was cancelled."""
        if self.cancelled.is_set():
            raise WaitCancelled("the call was cancelled while it waited")


# The call that runs in this context; None: one that nothing else can end.
WAITER: ContextVar[Waiter | None] = ContextVar("sqlbuffer_waiter", default=None)


def begin_wait() -> None:
    """Note that the call of this context waits for others from now on."""
    waiter = WAITER.get()
    if waiter is not None:
        waiter.begins()


def pause(seconds: float) -> None:
    """Sleep while waiting for others.

    Raises:
        WaitCancelled: The call was cancelled.
    """
    waiter = WAITER.get()
    if waiter is None:
        time.sleep(seconds)
        return
    waiter.begins()
    waiter.cancelled.wait(seconds)
    waiter.check()


@contextmanager
def holding_lock(lock: threading.Lock) -> Iterator[None]:
    """Hold a lock whose holder may be waiting for others.

    Raises:
        WaitCancelled: The call was cancelled before it had the lock.
    """
    waiter = WAITER.get()
    if not lock.acquire(blocking=waiter is None):
        assert waiter is not None
        waiter.begins()
        while not lock.acquire(timeout=_LOOK_S):
            waiter.check()
    try:
        yield
    finally:
        lock.release()
