"""The steps of an episode as records, one at a time."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.given_columns import PAYLOADS, check_step_names, flag_of
from sqlbuffer.encoding.priority_values import check_kept, checked_priority
from sqlbuffer.encoding.records import Record, encode_extra, encode_real


class StepEncoder:
    """Makes the records of one episode without typed fields.

    Args:
        beginning: The episode.
        has_priorities: Whether the buffer keeps priorities.
    """

    def __init__(self, beginning: EpisodeStart, has_priorities: bool = False) -> None:
        self._has_priorities, self._beginning = has_priorities, beginning

    def encode(self, t: int, step: Mapping[str, Any]) -> Record:
        """Return the record of step t; it holds copies.

        Raises:
            FieldError: An unknown field, or a value that cannot be stored.
        """
        check_step_names(step, ())
        tags: dict[str, Any] = {}
        reward = step.get("reward")
        if isinstance(reward, np.ndarray) and reward.shape == ():
            reward = reward[()]
        reward = encode_real(reward, "reward_t", "reward", tags)
        arrays = state = actions = messages = extra = None
        if tags or any(name in step for name in PAYLOADS):
            encoder = Encoder()
            state = encoder.json(step.get("state"), "state")
            actions = encoder.json(step.get("actions"), "actions")
            messages = encoder.json(step.get("messages"), "messages")
            extra = encode_extra(step.get("extra"), tags, encoder)
            arrays = encoder.blob or None
        of, priority = self._beginning, step.get("priority")
        if priority is not None:
            check_kept(self._has_priorities)
            priority = checked_priority(priority)
        return Record(
            f"{of.key}/{t}", of.task_id, None, of.agent_id, None, t, t, time.time(), of.key,
            of.session, state, actions, messages, extra, None, reward, None, None,
            flag_of(step.get("terminated"), "terminated"),
            flag_of(step.get("truncated"), "truncated"),
            of.model_version, arrays, None, priority,
        )  # fmt: skip
