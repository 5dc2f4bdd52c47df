"""What DI-engine has and this package has not, and what to use instead."""

_DEQUE = (
    "create_buffer({'type': 'naive', ...}) draws uniformly and 'advanced' by priority, with limits "
    "of use and staleness; sqlbuffer.ReplayBuffer has both, episodes and windows, in its own calls"
)
_PRIORITY = "AdvancedReplayBuffer, or sqlbuffer.ReplayBuffer(..., priorities=True)"
_EPISODES = (
    "loader('trajectory', ..) and loader('window', ..) of sqlbuffer.ReplayBuffer draw whole "
    "episodes and windows of them; SequenceReplayBuffer draws items that follow one another"
)
ALTERNATIVES = {
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
    "clone_object": "nothing: what is sampled is always a copy",
    "group_sample": _EPISODES,
    "padding": _EPISODES,
}


def absent(name: str) -> ImportError:
    """Return the error for importing one of them."""
    return ImportError(f"sqlbuffer has no {name} of DI-engine; instead, {ALTERNATIVES[name]}")
