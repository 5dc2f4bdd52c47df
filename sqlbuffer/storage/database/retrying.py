"""Repeat a call after a lost connection, a deadlock or a conflict on a standby."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlbuffer.errors import StorageUnreachableError
from sqlbuffer.storage.database.errors import (
    ConnectionLost,
    Deadlock,
    RecoveryConflict,
)
from sqlbuffer.storage.database.transactions import is_joined

# Not the generator that the user may have seeded.
_RANDOM = random.SystemRandom()

logger = logging.getLogger("sqlbuffer")

FIRST_PAUSE_S = 0.01  # a connection that died in the pool: the next one is good
LONGEST_PAUSE_S = 1.0
ONCE_MORE_S = 0.05
DEADLOCKS = 10
# Seconds after which a waiting call logs it first; then after 3 s, 9 s and so on.
FIRST_LOG_S, SECOND_LOG_S, LOG_GROWTH = 0.1, 3.0, 3

T = TypeVar("T")


class _Thread(threading.local):
    repeats = True


_thread = _Thread()


@contextmanager
def without_repeats() -> Iterator[None]:
    """Let calls of this thread fail at the first lost connection: the caller repeats the block."""
    before, _thread.repeats = _thread.repeats, False
    try:
        yield
    finally:
        _thread.repeats = before


def retried(work: Callable[[], T], retry_s: float, on_loss: Callable[[], None]) -> T:
    """Return the result of `work`, repeated after a deadlock, a lost connection or a conflict.

    After a loss, or when a standby ended the query, it is repeated for a limited time.

    Args:
        work: Function to run; it may be called several times.
        retry_s: Seconds after the first loss or conflict in which it is repeated; 0 for one call.
        on_loss: Function called after each loss.

    Raises:
        StorageUnreachableError: The server could not be reached in that time.
        StorageBusyError: Each of many attempts ended in a deadlock, or a standby ended the query
            each time.
    """
    if is_joined():
        return work()  # the transaction around is repeated as a whole
    began: float | None = None
    deadlocks = 0
    pause_s, log_s = FIRST_PAUSE_S, FIRST_LOG_S
    while True:
        try:
            return work()
        except Deadlock:
            deadlocks += 1
            if deadlocks == DEADLOCKS:
                raise
            continue
        except (ConnectionLost, RecoveryConflict) as error:
            if isinstance(error, ConnectionLost):
                on_loss()
            if not _thread.repeats:
                raise
            now = time.monotonic()
            began = now if began is None else began
            waited_s = now - began
            if waited_s + pause_s > retry_s:
                tried = "" if retry_s <= ONCE_MORE_S else f"; tried again for {retry_s:g} s"
                kind = StorageUnreachableError if isinstance(error, ConnectionLost) else type(error)
                raise kind(f"{error}{tried}") from error
            if waited_s >= log_s:
                logger.warning("%s; trying again for %.0f s", error, retry_s - waited_s)
                log_s = max(SECOND_LOG_S, LOG_GROWTH * waited_s)
        # Writers wait for different times, so that they do not all return together.
        time.sleep(pause_s * _RANDOM.uniform(0.5, 1))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
