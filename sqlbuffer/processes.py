"""Forks and ends of processes: locks that are free in a child, parts of objects that are made
late, work that is done at the end, and names of objects by which other processes see if their
process still runs.
"""

import atexit
import os
import socket
import threading
import uuid
import weakref
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from functools import cached_property

    late_part = cached_property
else:

    class late_part:
        """A property that is made at its first use, and kept.

        If two threads make it, both get the same one. `functools.cached_property` holds a lock
        meanwhile in Python 3.11, which a forked child would find held, and keeps both from 3.12 on.
        """

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self._make, self._name = make, make.__name__
            self.__doc__ = make.__doc__

        def __get__(self, owner: Any, kind: type | None = None) -> Any:
            if owner is None:
                return self
            return vars(owner).setdefault(self._name, self._make(owner))


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


_pid = os.getpid()


def own_pid() -> int:
    """Return the id of this process without a call of the system, which takes up to 1 us."""
    return _pid


def _renew_all() -> None:
    global _pid
    _pid = os.getpid()
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


_own: set[str] = set()


def new_name() -> str:
    """Return a unique name: host, pid and a random part."""
    return f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex[:12]}"


def new_holder(owner: Any) -> str:
    """Return a name for an object of this process, valid as long as the object exists."""
    holder = new_name()
    _own.add(holder)
    weakref.finalize(owner, _own.discard, holder).atexit = False
    return holder


def forget(holder: str) -> None:
    """Remove an object of this process from the live ones."""
    _own.discard(holder)


def is_alive(holder: str, age_s: float, timeout_s: float) -> bool:
    """Return True if a holder is alive: exact on this machine, by its age on another one.

    Args:
        holder: Its name.
        age_s: Seconds since it was last seen.
        timeout_s: Age in seconds after which a holder on another machine counts as dead.
    """
    host, pid, _ = holder.rsplit(" ", 2)
    if host != socket.gethostname():
        return age_s < timeout_s
    if int(pid) == os.getpid():
        return holder in _own
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_here(holder: str) -> bool:
    """Return True if a holder belongs to this process."""
    return holder.rsplit(" ", 1)[0] == f"{socket.gethostname()} {os.getpid()}"
