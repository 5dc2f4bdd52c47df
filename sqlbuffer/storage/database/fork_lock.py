"""Locks that are free in a forked child, also if a thread of the parent held them."""

import os
import threading
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
