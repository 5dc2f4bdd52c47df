"""The errors of the MineStudio adapter."""

from sqlbuffer.errors import SQLBufferError


class FragmentError(SQLBufferError, ValueError):
    """A call has an argument that it cannot take; the message says what it takes.

    It is raised where MineStudio raises ValueError, as for a missing buffer.
    """


class FragmentTypeError(FragmentError, TypeError):
    """An argument has the wrong type."""


class FragmentAssertionError(FragmentError, AssertionError):
    """A number does not fit the buffer, or a fragment is out of order: an AssertionError in
    MineStudio.
    """


class FragmentNotFoundError(SQLBufferError, KeyError):
    """There is no fragment of that id: it was never stored, or has left the buffer."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class FetchTimeoutError(SQLBufferError, TimeoutError):
    """There were not enough chunks in time; the message gives their number, and why others left."""
