"""The steps that a buffer holds now, for a data set that is read several times."""

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.interchange.buffer_stream import BufferStream, StreamPiece

logger = logging.getLogger("sqlbuffer")


class HeldStream:
    """The steps that a buffer holds when this is made, under one hold.

    The hold ends when this object is deleted, or the program ends. If its process is killed, the
    hold ends two minutes later. Copies of this in other processes, pickled or forked, do not end
    it.

    Args:
        buffer: The buffer.
        condition: Condition that steps must match.
        fields: Typed fields to read.
        at_end: Function that is called when the hold has ended.

    Raises:
        CopyError: See `BufferStream`.

    Example:
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "float32"})
        >>> buffer.extend({"x": [1.0, 2.0]}, task_id="t").inserted
        2
        >>> held = HeldStream(buffer, None, ["x"])
        >>> [batch.fields["x"].tolist() for piece in held.pieces(2) for batch in piece]
        [[1.0, 2.0]]
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        condition: Condition,
        fields: Sequence[str],
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        stream = BufferStream(buffer, condition, fields=fields)
        stream.__enter__()
        self._stream = stream
        weakref.finalize(self, _end, stream, at_end, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copy has no hold of its own, and its pieces are pickled with it

    @property
    def n_numbers(self) -> int:
        """Number of steps, if none was deleted and all match."""
        return self._stream.high - self._stream.low

    def pieces(self, n: int) -> list[StreamPiece]:
        """Return at most n parts, which readers may read at the same time while this lives."""
        return self._stream.pieces(n)


def _end(stream: BufferStream, at_end: Callable[[], object], owner: int) -> None:
    if os.getpid() != owner:  # a fork
        return
    try:
        stream.__exit__()
        at_end()
    except SQLBufferError as error:
        # The hold of a database that does not answer ends without this.
        logger.warning("the steps of a deleted data set are held for two minutes more: %s", error)
