"""The errors of the MineStudio adapter."""

from sqlbuffer.errors import SQLBufferError


class FragmentError(SQLBufferError, ValueError):
    """What a call was given cannot be done; the message says what can.

    Where MineStudio raises ValueError, as for a buffer that there is not, this is raised.
    """


class FragmentTypeError(FragmentError, TypeError):
    """An argument is of another type than the call takes."""


class FragmentAssertionError(FragmentError, AssertionError):
    """A number that does not fit the buffer, or a fragment out of order: an AssertionError in
    MineStudio.
    """


class FragmentNotFoundError(SQLBufferError, KeyError):
    """No fragment of that id is left: it was never there, or has left the buffer."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class FetchTimeoutError(SQLBufferError, TimeoutError):
    """There were not enough chunks in time; the message says how many there were, and what became
    of the others.
    """
