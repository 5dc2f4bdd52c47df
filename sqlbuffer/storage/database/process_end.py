"""Work that is done when the process ends."""

import atexit
import os
from collections.abc import Callable
from multiprocessing.util import Finalize

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
