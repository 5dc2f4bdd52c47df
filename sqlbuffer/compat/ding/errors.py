"""The errors of DI-engine's buffers, and the names that this package does not have."""

from sqlbuffer.compat.alternatives import Alternatives
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


_DEQUE = (
    "create_buffer({'type': 'naive', ...}) draws uniformly and 'advanced' by priority, with limits "
    "of use and staleness; sqlbuffer.ReplayBuffer has both, episodes and windows, in its own calls"
)
_PRIORITY = "AdvancedReplayBuffer, or sqlbuffer.ReplayBuffer(..., priorities=True)"
_EPISODES = (
    "loader('trajectory', ..) and loader('window', ..) of sqlbuffer.ReplayBuffer draw whole "
    "episodes and windows of them; SequenceReplayBuffer draws items that follow one another"
)
_INSTEAD = {
    "deque": _DEQUE,
    "DequeBuffer": _DEQUE,
    "DequeBufferWrapper": _DEQUE,
    "Buffer": _DEQUE,
    "BufferedData": _DEQUE,
    "buffer": _DEQUE,
    "PriorityExperienceReplay": _PRIORITY,
    "use_time_check": "max_use in the config of AdvancedReplayBuffer",
    "staleness_check": "max_staleness in the config of AdvancedReplayBuffer",
    "sample_range_view": "sample(..., sample_range=slice(...)), by age",
    "clone_object": "nothing: sampled items are always copies",
    "group_sample": _EPISODES,
    "padding": _EPISODES,
}
ALTERNATIVES = Alternatives("DI-engine", _INSTEAD)
