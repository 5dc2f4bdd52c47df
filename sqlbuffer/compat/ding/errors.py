"""The errors of DI-engine's buffers."""

from sqlbuffer.errors import SQLBufferError


class ReplayError(SQLBufferError, ValueError):
    """What a call was given cannot be done; the message says what can."""


class ReplayConfigError(ReplayError, AssertionError):
    """A config with a misspelt key or a value out of range; or the buffer at its URL was made with
    another one.
    """


class ItemError(SQLBufferError, TypeError):
    """An item that cannot be stored so that it comes back equal; the message names its place."""


class UnknownBufferError(SQLBufferError, KeyError):
    """No buffer of that type."""

    __str__ = Exception.__str__  # a KeyError would show its message quoted


class MissingListError(SQLBufferError, KeyError):
    """An update of priorities lacks a list; the message names those that it takes."""

    __str__ = Exception.__str__


class PriorityError(ReplayError, AssertionError):
    """A priority that is negative, or no number."""
