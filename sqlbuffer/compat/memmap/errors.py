"""The errors of memmap-replay-buffer."""

from sqlbuffer.errors import SQLBufferError


class MemmapError(SQLBufferError, ValueError, AssertionError):
    """A call has an argument that it cannot take; the message says what it takes.

    memmap-replay-buffer raises AssertionError up to 0.1.4 and ValueError since.
    """


class MemmapTypeError(MemmapError, TypeError):
    """An argument has the wrong type."""


class MemmapIndexError(MemmapError, IndexError):
    """There is no slot of that number."""
