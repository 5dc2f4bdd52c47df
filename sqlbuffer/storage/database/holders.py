"""Which processes hold something in a database, and whether they still run."""

import os
import socket
import uuid
import weakref
from typing import Any

_own: set[str] = set()


def new_name() -> str:
    """Return a name that nothing else has: host, pid and a random part."""
    return f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex[:12]}"


def new_holder(owner: Any) -> str:
    """Return a name for an object of this process, which lives as long as the object."""
    holder = new_name()
    _own.add(holder)
    weakref.finalize(owner, _own.discard, holder).atexit = False
    return holder


def forget(holder: str) -> None:
    """Note that an object of this process is done."""
    _own.discard(holder)


def is_alive(holder: str, age_s: float, timeout_s: float) -> bool:
    """Tell whether a holder lives: exact on this machine, and elsewhere by when it was last seen.

    Args:
        holder: Its name.
        age_s: When it was last seen.
        timeout_s: After how long one of another machine is taken for dead.
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
    """Tell whether a holder is of this process."""
    return holder.rsplit(" ", 1)[0] == f"{socket.gethostname()} {os.getpid()}"
