"""A chunk: consecutive steps of one episode, or of one task and agent, column by column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.scalar_tags import tag_text

MAX_STEPS = 256
MAX_BYTES = 2**18  # of records and payloads, raw; a larger step is a chunk of its own

# One value for each step: an array where every step has one, a list with None in it where some
# have none.
Values = NDArray[Any] | list[Any]


@dataclass(frozen=True, eq=False)
class PackedChunk:
    """A chunk as it is stored. It never changes, so a writer that is in doubt can send it again.

    Per-step values (`reward` to `fields`) are None where no step has one.

    Attributes:
        id: UUIDv7, made when the chunk was packed.
        n_steps: Number of steps, at least one.
        task_id: Their task.
        task_name: Its name.
        agent_id: Who acts.
        pre_agent: Who acted before.
        episode_key: The user's id of the episode.
        session_key: The user's id of the session.
        model_version: Version of the model that acts.
        t: Place of the first step within its episode, the others follow; None outside episodes.
        step: Step number of the first step.
        steps: Step numbers, int64 of shape (n_steps,); None if they are consecutive.
        first_time: When the first step was executed, in seconds since 1970.
        last_time: When the last step was; `execute_times` gives those between.
        reward: Rewards; None in place of NaN and 0.0 of -0.0, which `extra` holds.
        adv_t: Advantages.
        v_t: State values.
        terminated: Flags, of which False and None are two values.
        truncated: Likewise.
        initial_priority: Priorities that were given with the steps.
        fields: Values of the `column=True` fields by name: arrays of shape (n_steps,), lists of
            texts, which are tagged where JSON cannot hold them.
        records: The typed fields of the steps, in blocks; see `record_blocks`.
        block_steps: Number of steps in a block; the last block may be shorter.
        offsets: Where each block begins and where the last one ends, in bytes of `records`, int64
            of shape (n_blocks + 1,); None if all steps are one plain block.
        payloads: JSON of each step, None where it has none; see `step_payloads`.
        payload_arrays: The bytes that the JSON refers to, of one step after the other.
        ids: Ids that the user gave to the steps.
    """

    id: str
    n_steps: int
    task_id: str
    task_name: str | None
    agent_id: str
    pre_agent: str | None
    episode_key: str | None
    session_key: str | None
    model_version: int | None
    t: int | None
    step: int
    steps: NDArray[Any] | None
    first_time: float | None
    last_time: float | None
    reward: Values | None
    adv_t: Values | None
    v_t: Values | None
    terminated: Values | None
    truncated: Values | None
    initial_priority: Values | None
    fields: dict[str, Values] | None
    records: bytes
    block_steps: int
    offsets: NDArray[Any] | None
    payloads: list[str | None] | None
    payload_arrays: bytes | None
    ids: list[str] | None


new: Callable[[Any], Any] = object.__new__


def execute_times(first: Any, last: Any, n_steps: Any, places: Any) -> Any:
    """Return when steps of chunks were executed; numbers or arrays that broadcast.

    Args:
        first: `first_time` of the chunk.
        last: `last_time`.
        n_steps: Steps of the chunk.
        places: Places of the steps in the chunk, from 0.
    """
    # The division by 1 of a single step; `views` compute the same in SQL.
    return first + (last - first) * places / (n_steps - (n_steps > 1))


def stored_values(values: Sequence[Any], dtype: Any) -> Values | None:
    """Return a value for each step as a chunk holds them; None where a step has none."""
    n_missing = values.count(None)
    if not n_missing:
        return np.array(values, dtype)
    return None if n_missing == len(values) else list(values)


def comparable_values(values: NDArray[Any]) -> Values:
    """Return the values of a field that conditions can use: a copy, texts as JSON has them."""
    if values.dtype.kind == "U":
        return [tag_text(text) for text in values.tolist()]
    return values.copy()
