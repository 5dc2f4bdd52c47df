"""Going on after a lost connection or a deadlock."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlbuffer.errors import StorageUnreachableError
from sqlbuffer.storage.errors import ConnectionLost, Deadlock

logger = logging.getLogger("sqlbuffer")

FIRST_PAUSE_S = 0.01  # a connection that died in the pool: the next one is good
LONGEST_PAUSE_S = 1.0
ONCE_MORE_S = 0.05
DEADLOCKS = 10

T = TypeVar("T")


def retried(work: Callable[[], T], retry_s: float, on_loss: Callable[[], None]) -> T:
    """Return what `work` returns, called again after a deadlock and while the server cannot be
    reached.

    Args:
        work: May be called several times.
        retry_s: How long after the first loss; 0 never calls again.
        on_loss: Called after each loss.

    Raises:
        StorageUnreachableError: The server could not be reached in that time.
        StorageBusyError: Every one of many attempts ended in a deadlock.
    """
    deadline: float | None = None
    deadlocks = 0
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return work()
        except Deadlock:
            deadlocks += 1
            if deadlocks == DEADLOCKS:
                raise
            continue
        except ConnectionLost as error:
            on_loss()
            now = time.monotonic()
            if deadline is None:
                deadline = now + retry_s
            elif pause_s > FIRST_PAUSE_S * 4:
                logger.warning("%s; trying again for %.0f s", error, max(0.0, deadline - now))
            if now + pause_s > deadline:
                tried = "" if retry_s <= ONCE_MORE_S else f"; tried again for {retry_s:g} s"
                raise StorageUnreachableError(f"{error}{tried}") from error
        # Not all writers at once, when the server is back.
        time.sleep(pause_s * random.uniform(0.5, 1))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
