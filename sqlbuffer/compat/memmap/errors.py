"""The errors of memmap-replay-buffer."""

from sqlbuffer.errors import SQLBufferError


class MemmapError(SQLBufferError, ValueError, AssertionError):
    """What a call was given cannot be done; the message says what can.

    memmap-replay-buffer raises AssertionError up to 0.1.4 and ValueError since.
    """


class MemmapTypeError(MemmapError, TypeError):
    """An argument is of another type than the call takes."""


class MemmapIndexError(MemmapError, IndexError):
    """No such slot."""
