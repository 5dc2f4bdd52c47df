"""Processes that hold objects in a database, and the check that they still run."""

import os
import socket
import uuid
import weakref
from typing import Any

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
