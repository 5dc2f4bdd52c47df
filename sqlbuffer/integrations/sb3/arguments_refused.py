"""What SB3 knows and a buffer in a database does not have, and what to do about it."""

from collections.abc import Mapping
from typing import Any

from sqlbuffer.errors import BufferConfigError

_OF_HER = ("n_sampled_goal", "goal_selection_strategy", "copy_info_dict")
_OWN = {
    "fields": "they are those of the spaces",
    "observation_fields": "they are those of the spaces",
    "max_capacity": "it is the algorithm's `buffer_size`",
    "config": "give its settings one by one",
    "connection": "give its settings one by one",
}
HER = (
    "SQLReplayBuffer cannot relabel goals in hindsight (HER); take HerReplayBuffer from "
    "Stable-Baselines3, which keeps its steps in memory, or leave the arguments of HER out"
)
MEMORY = (
    "SQLReplayBuffer does not take optimize_memory_usage=True, because each step is stored with "
    "the observation after it; leave it out, and pass compression='zstd' in replay_buffer_kwargs "
    "to store large observations in less space"
)
# Arrays of SB3's own buffers.
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
NO_ARRAYS = (
    "SQLReplayBuffer has no array {!r}: its steps are in a database; read them with "
    "replay_buffer.buffer.sample_arrays(), or by SQL"
)


def check_arguments(given: Mapping[str, Any], *, optimize_memory_usage: bool) -> None:
    """Raise where an argument cannot be.

    Args:
        given: The arguments beyond those that Stable-Baselines3's own buffers take.
        optimize_memory_usage: Theirs.

    Raises:
        BufferConfigError: One of them; says what to do.
    """
    if any(name in given for name in _OF_HER):
        raise BufferConfigError(HER)
    if optimize_memory_usage:
        raise BufferConfigError(MEMORY)
    for name, why in _OWN.items():
        if name in given:
            raise BufferConfigError(f"SQLReplayBuffer takes no {name}=...: {why}; leave it out")
