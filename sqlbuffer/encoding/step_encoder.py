"""The steps of an episode as records, one at a time."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.given_columns import PAYLOADS, check_step_names, flag_of
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.priority_values import check_kept, checked_priority
from sqlbuffer.encoding.records import Record, encode_extra, encode_real
from sqlbuffer.encoding.row_packer import RowPacker


class StepEncoder:
    """Makes the records of one episode.

    Args:
        layout: The typed fields of the buffer.
        beginning: The episode.
        casting: See `FieldSpec.cast_rows`.
        has_priorities: Whether the buffer keeps priorities.
    """

    def __init__(
        self, layout: Layout, beginning: EpisodeStart, casting: str, has_priorities: bool = False
    ) -> None:
        self._has_priorities = has_priorities
        self._packer, self._record = RowPacker(layout, casting), layout.record
        self._columns = [name for name, spec in layout.specs.items() if spec.column]
        self._fields = layout.specs.keys()
        self._beginning = beginning

    def encode(self, t: int, step: Mapping[str, Any]) -> Record:
        """Return the record of step t; it holds copies.

        Raises:
            FieldError: An unknown or missing field, or a value that cannot be stored.
        """
        check_step_names(step, self._fields)
        tags: dict[str, Any] = {}
        reward = step.get("reward")
        if isinstance(reward, np.ndarray) and reward.shape == ():
            reward = reward[()]
        reward = encode_real(reward, "reward_t", "reward", tags)
        blob: bytes | bytearray = self._packer.pack(step)
        fields = state = actions = messages = extra = None
        if self._columns:
            row = np.frombuffer(blob, self._record, 1)
            fields = Encoder().json({name: row[name][0].item() for name in self._columns}, "fields")
        if tags or any(name in step for name in PAYLOADS):
            encoder = Encoder(blob)
            state = encoder.json(step.get("state"), "state")
            actions = encoder.json(step.get("actions"), "actions")
            messages = encoder.json(step.get("messages"), "messages")
            extra = encode_extra(step.get("extra"), tags, encoder)
            blob = encoder.blob
        of, priority = self._beginning, step.get("priority")
        if priority is not None:
            check_kept(self._has_priorities)
            priority = checked_priority(priority)
        return Record(
            f"{of.key}/{t}", of.task_id, None, of.agent_id, None, t, t, time.time(), of.key,
            of.session, state, actions, messages, extra, fields, reward, None, None,
            flag_of(step.get("terminated"), "terminated"),
            flag_of(step.get("truncated"), "truncated"),
            of.model_version, blob or None, None, priority,
        )  # fmt: skip
