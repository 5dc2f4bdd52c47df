"""Names of DI-engine that this package does not have."""

from sqlbuffer.compat.alternatives import Alternatives

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
