"""Forks and ends of processes: locks that are free in a child, and work that is done at the end."""

import atexit
import os
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from weakref import WeakSet


class ForkLock:
    """A `threading.Lock` that is free in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def renew(self) -> None:
        """Release the lock, regardless of its holder."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks: "WeakSet[ForkLock]" = WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


_pids: dict[Callable[[], None], int] = {}


def at_process_end(work: Callable[[], None], priority: int = 0) -> None:
    """Register a function that this process calls once when it ends.

    It also runs in a child of multiprocessing, which runs no `atexit` of its parent.

    Args:
        work: The function; the same object is registered only once.
        priority: The highest is called first.
    """
    if _pids.get(work) != os.getpid():
        _pids[work] = os.getpid()
        atexit.register(work)
        Finalize(None, work, exitpriority=priority)
