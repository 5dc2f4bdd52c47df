"""Refuse features of SB3 that a buffer in a database does not have, and say what to use instead."""

from collections.abc import Mapping
from typing import Any

from sqlbuffer.arguments import check_n_step
from sqlbuffer.config import SETTINGS, unknown_setting
from sqlbuffer.errors import BufferConfigError

_OF_HER = ("n_sampled_goal", "goal_selection_strategy", "copy_info_dict")
_OWN = {
    "fields": "they are those of the spaces",
    "observation_fields": "they are those of the spaces",
    "max_capacity": "it is the algorithm's `buffer_size`",
    "config": "give its settings one by one",
    "connection": "give its settings one by one",
}
# Arguments in `replay_buffer_kwargs`; the algorithm gives the others.
_ARGUMENTS = (
    "url", "name", "create", "n_steps", "gamma", "task_id", "agent_id", "session_id",
    "model_version", "mirror", "handle_timeout_termination",
)  # fmt: skip
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
        TypeError: An argument of an unknown name; says which is meant.
    """
    if any(name in given for name in _OF_HER):
        raise BufferConfigError(HER)
    if optimize_memory_usage:
        raise BufferConfigError(MEMORY)
    for name, why in _OWN.items():
        if name in given:
            raise BufferConfigError(f"SQLReplayBuffer takes no {name}=...: {why}; leave it out")
    known = (*_ARGUMENTS, *SETTINGS)
    for name in given:
        if name not in known:
            raise unknown_setting(name, known)


def checked_gamma(n_steps: int, gamma: float | None) -> float:
    """Return the discount of one step.

    An algorithm does not pass its own discount to the class in `replay_buffer_class`, and a
    different discount makes its targets wrong.

    Args:
        n_steps: Largest number of steps that a sample spans.
        gamma: The given discount, or None. A single step does not use it.

    Raises:
        BufferConfigError: There are several steps, and no discount.
        ValueError, TypeError: A value is invalid.
    """
    check_n_step(n_steps, 1.0 if gamma is None else gamma)
    if gamma is not None:
        return float(gamma)
    if n_steps > 1:
        raise BufferConfigError(
            f"n_steps={n_steps} needs gamma=..., the same as the algorithm's own gamma, which does "
            f"not reach the buffer: give gamma=0.99 in replay_buffer_kwargs where that is 0.99"
        )
    return 0.99  # of the algorithms of Stable-Baselines3; one step has no discount
