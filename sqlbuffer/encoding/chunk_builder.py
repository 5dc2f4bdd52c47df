"""Collect the steps of an episode, one at a time, and pack them as chunks."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.given_columns import FLAGS, PAYLOADS, check_step_names, flag_of
from sqlbuffer.encoding.packed_chunk import (
    MAX_BYTES,
    MAX_STEPS,
    PackedChunk,
    Values,
    comparable_values,
    stored_values,
)
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.priority_values import check_kept, checked_priority
from sqlbuffer.encoding.record_blocks import pack_blocks
from sqlbuffer.encoding.records import encode_real
from sqlbuffer.encoding.row_packer import RowPacker
from sqlbuffer.encoding.row_size import MAX_JSON_BYTES
from sqlbuffer.encoding.step_payloads import check_step_size, encode_payload, join_payloads
from sqlbuffer.fields.buffer_fields import MAX_ROW_BYTES
from sqlbuffer.steps.ids import uuid7


class ChunkBuilder:
    """Collects the steps of one episode and packs them as chunks; not for several threads.

    Args:
        layout: The typed fields of the buffer.
        beginning: The episode.
        casting: See `FieldSpec.cast_rows`.
        has_priorities: Whether the buffer keeps priorities.
        max_row_bytes: Bytes that the fields and the payload of a step may have.

    Example:
        >>> from sqlbuffer.fields.buffer_fields import parse_specs
        >>> layout = Layout(parse_specs({"x": ("float32", (2,))}))
        >>> builder = ChunkBuilder(layout, EpisodeStart("e", "task", "agent"), "same_kind", False)
        >>> builder.add({"x": np.ones(2, np.float32), "reward": 0.5})
        0.5
        >>> chunk = builder.pack(0)
        >>> chunk.n_steps, len(chunk.records), builder.n_steps
        (1, 8, 0)
    """

    def __init__(
        self,
        layout: Layout,
        beginning: EpisodeStart,
        casting: str,
        has_priorities: bool,
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> None:
        self._layout, self._beginning = layout, beginning
        self._has_priorities, self._max_row_bytes = has_priorities, max_row_bytes
        self._most_bytes = min(max_row_bytes, MAX_JSON_BYTES)  # without a second look
        self._plain = {*layout.specs, "reward", *FLAGS}
        self._comparable = [name for name, spec in layout.specs.items() if spec.column]
        self._packer = RowPacker(layout, casting)
        # Bytes of the row, reward, terminated, truncated, priority and payload.
        self._steps: list[tuple[Any, ...]] = []
        self._n_bytes = self._largest = self._n_packed = 0
        self._first_time = self._last_time = 0.0

    @property
    def n_steps(self) -> int:
        """Steps that wait to be packed."""
        return len(self._steps)

    @property
    def n_bytes(self) -> int:
        """Raw bytes of these steps."""
        return self._n_bytes

    @property
    def is_full(self) -> bool:
        """Whether the steps should be packed before another one is added.

        A chunk has up to 256 steps and 256 KiB. The next step is taken to be as large as the
        largest of these, so only a larger one makes a chunk that is larger.
        """
        return len(self._steps) >= MAX_STEPS or self._n_bytes + self._largest > MAX_BYTES

    def add(self, step: Mapping[str, Any]) -> float | None:
        """Add copies of the values of a step and return its reward as the column holds it.

        Raises:
            FieldError: An unknown or missing field, a value that cannot be stored, or a step that
                is too large; the step is not added.
        """
        is_plain = self._plain.issuperset(step)
        if not is_plain:
            check_step_names(step, self._layout.specs)
        tags: dict[str, Any] = {}
        reward = step.get("reward")
        if isinstance(reward, np.ndarray) and not reward.ndim:
            reward = reward[()]
        reward = encode_real(reward, "reward_t", "reward", tags)
        row, payload, priority = self._packer.pack(step), None, None
        n_bytes = len(row)
        if tags or not is_plain:
            payload = encode_payload([step.get(name) for name in PAYLOADS], tags)
            priority = self._priority(step)
            n_bytes += 0 if payload is None else payload.n_bytes
        if n_bytes > self._most_bytes:
            where = f"step {self._n_packed + len(self._steps)}: "
            check_step_size(payload, len(row), self._max_row_bytes, where)
        self._steps.append((row, reward, *_flags(step), priority, payload))
        self._last_time = time.time()
        if len(self._steps) == 1:
            self._first_time = self._last_time
        self._n_bytes += n_bytes
        if n_bytes > self._largest:
            self._largest = n_bytes
        return reward

    def mark_truncated(self) -> None:
        """Set `truncated` of the step that was added last."""
        row, reward, terminated, _, priority, payload = self._steps[-1]
        self._steps[-1] = (row, reward, terminated, True, priority, payload)

    def pack(self, first_t: int) -> PackedChunk:
        """Return the steps as a chunk; none of them waits any more.

        Args:
            first_t: Place of the first of them within the episode.

        Raises:
            ValueError: There are no steps.
        """
        n, of, layout = len(self._steps), self._beginning, self._layout
        if not n:
            raise ValueError("no step was added since the last chunk")
        rows, rewards, terminated, truncated, priorities, payloads = zip(*self._steps, strict=True)
        tails = None
        if layout.has_tails:
            size = layout.size_bytes
            tails = [row[size:] for row in rows]
            rows = tuple(row[:size] for row in rows)
        records = b"".join(rows)
        (blocks,) = pack_blocks(layout, records, tails, [(0, n)])
        fields: dict[str, Values] | None = None
        if self._comparable:
            columns = np.frombuffer(records, layout.record)
            fields = {name: comparable_values(columns[name]) for name in self._comparable}
        texts, arrays = join_payloads(layout, payloads)
        chunk = PackedChunk(
            uuid7(),
            n,
            of.task_id,
            None,
            of.agent_id,
            None,
            of.key,
            of.session,
            of.model_version,
            first_t,
            first_t,
            None,
            self._first_time,
            self._last_time,
            stored_values(rewards, np.float64),
            None,
            None,
            stored_values(terminated, np.bool_),
            stored_values(truncated, np.bool_),
            stored_values(priorities, np.float64),
            fields,
            *blocks,
            texts,
            arrays,
            None,
        )
        self._n_packed += n
        self._steps, self._n_bytes, self._largest = [], 0, 0
        return chunk

    def _priority(self, step: Mapping[str, Any]) -> float | None:
        priority = step.get("priority")
        if priority is None:
            return None
        check_kept(self._has_priorities)
        return checked_priority(priority)


def _flags(step: Mapping[str, Any]) -> tuple[bool | None, bool | None]:
    terminated, truncated = step.get("terminated"), step.get("truncated")
    if terminated is not None and type(terminated) is not bool:
        terminated = flag_of(terminated, "terminated")
    if truncated is not None and type(truncated) is not bool:
        truncated = flag_of(truncated, "truncated")
    return terminated, truncated
