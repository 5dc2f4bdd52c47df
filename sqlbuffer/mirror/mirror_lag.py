"""The lag of a mirror behind its buffer."""

import logging
from dataclasses import dataclass

from sqlbuffer.errors import StorageError, StorageUnreachableError
from sqlbuffer.storage.buffers.hanging.hanging_writer import HangingWriter
from sqlbuffer.storage.following.backlog import backlog_of
from sqlbuffer.storage.following.buffer_state import BufferState
from sqlbuffer.storage.store import BufferStore

logger = logging.getLogger("sqlbuffer")


@dataclass(frozen=True)
class MirrorLag:
    """Distance of a mirror behind its buffer.

    Attributes:
        seconds: Age in seconds of the last successful look at the database.
        steps: Number of steps of the buffer that the mirror has not read; None if the database is
            unreachable.
        high: Newest step that the mirror has.
        error: Reason why the last look failed, or why `steps` is unknown; None: neither failed.
        held_back_by: A writer of the buffer whose transaction has been open for more than 5
            seconds. Its steps are not visible before it commits. None: there is no such writer, or
            this role may not see it.

    Example:
        >>> MirrorLag(seconds=0.2, steps=0, high=1000, error=None, held_back_by=None).high
        1000
    """

    seconds: float
    steps: int | None
    high: int
    error: str | None
    held_back_by: HangingWriter | None


def lag_of(
    store: BufferStore,
    seconds: float,
    high: int,
    state: BufferState | None,
    error: Exception | None,
) -> MirrorLag:
    """Return how far a mirror is behind, as the database says now.

    Args:
        store: The buffer.
        seconds: Age of the last look that succeeded.
        high: The newest step that the mirror has.
        state: State of the buffer that it shows; None if it is unknown.
        error: Why the last look failed.
    """
    steps, writer = None, None
    # One that does not answer would be waited for.
    if state is not None and not isinstance(error, StorageUnreachableError):
        try:
            steps, writer = backlog_of(store, state)
        except StorageError as own:
            logger.warning("the lag of a mirror of buffer %r is unknown: %s", store.info.name, own)
            error = error or own
    return MirrorLag(seconds, steps, high, None if error is None else str(error), writer)
