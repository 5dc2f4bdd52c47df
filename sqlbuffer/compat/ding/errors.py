"""The errors of DI-engine's buffers."""

from sqlbuffer.errors import SQLBufferError


class ReplayError(SQLBufferError, ValueError):
    """A call has an argument that it cannot take; the message says what it takes."""


class ReplayConfigError(ReplayError, AssertionError):
    """A config has a misspelt key or a value out of range, or differs from the stored one."""


class ItemError(SQLBufferError, TypeError):
    """An item cannot be stored so that it comes back equal; the message names the place in it."""


class UnknownBufferError(SQLBufferError, KeyError):
    """There is no type of buffer of that name."""

    __str__ = Exception.__str__  # a KeyError would show its message quoted


class MissingListError(SQLBufferError, KeyError):
    """An update of priorities lacks a list; the message names those that it takes."""

    __str__ = Exception.__str__


class PriorityError(ReplayError, AssertionError):
    """A priority is negative or not a number."""
