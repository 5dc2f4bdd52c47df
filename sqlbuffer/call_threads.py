"""Threads for calls that an event loop awaits."""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from sqlbuffer.waits import WAITER, Waiter

# Number of calls that run at the same time; calls that wait for others are not counted.
AT_ONCE = 32
# The pool starts a thread only where none is idle.
_MOST_THREADS = 100_000


T = TypeVar("T")


class Call(Generic[T]):
    """A call in a thread.

    Args:
        work: The function to call.
        leave: Called when it waits for others, and when it has ended.
        cancelled: Ends its waits when it is set.

    Attributes:
        future: Receives the result or the exception.
        has_left: True if the call waits for others, or has ended.
    """

    def __init__(
        self,
        work: Callable[[], T],
        leave: Callable[["Call[T]"], None],
        cancelled: threading.Event | None = None,
    ) -> None:
        self.future: Future[T] = Future()
        self.has_left = False
        self._work, self._leave = work, leave
        self._cancelled = cancelled or threading.Event()
        self._context = copy_context()
        self._context.run(WAITER.set, Waiter(lambda: leave(self), self._cancelled))

    def cancel(self) -> None:
        """End the waits of the call; one that has not begun does not begin."""
        self._cancelled.set()
        self.future.cancel()

    def run(self) -> None:
        """Do the work, unless it was cancelled before."""
        try:
            if self.future.set_running_or_notify_cancel():
                self._do()
        finally:
            self._leave(self)

    def _do(self) -> None:
        try:
            result = self._context.run(self._work)
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class CallThreads:
    """Runs a limited number of calls at the same time, and any number that wait for others.

    Calls that wait must not block the call that they wait for.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._n_running = 0
        self._queue: deque[Call[Any]] = deque()
        self._executor = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="sqlbuffer-call")

    def start(self, work: Callable[[], T], cancelled: threading.Event | None = None) -> Call[T]:
        """Run a call as soon as there is room."""
        call = Call(work, self._leave, cancelled)
        with self._mutex:
            if self._n_running >= AT_ONCE:
                self._queue.append(call)
                return call
            self._n_running += 1
        self._executor.submit(call.run)
        return call

    def _leave(self, call: Call[Any]) -> None:
        with self._mutex:
            if call.has_left:
                return
            call.has_left = True
            if not self._queue:
                self._n_running -= 1
                return
            following = self._queue.popleft()
        self._executor.submit(following.run)


_threads = CallThreads()


def start(work: Callable[[], T], cancelled: threading.Event | None = None) -> Call[T]:
    """Run a call in a thread of this process.

    Args:
        work: The function to call.
        cancelled: Ends its waits when it is set.
    """
    return _threads.start(work, cancelled)


def _forget_threads() -> None:
    global _threads
    _threads = CallThreads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
