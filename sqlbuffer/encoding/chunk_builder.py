"""Collect the steps of an episode, one at a time, and pack them as chunks."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.given_columns import FLAGS, PAYLOADS, flag_of
from sqlbuffer.encoding.packed_chunk import MAX_BYTES, MAX_STEPS, PackedChunk, stored_values
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.priority_values import check_kept, checked_priority
from sqlbuffer.encoding.record_blocks import pack_blocks
from sqlbuffer.encoding.records import encode_real
from sqlbuffer.encoding.row_packer import RowPacker
from sqlbuffer.encoding.row_size import check_row_size
from sqlbuffer.encoding.step_payloads import StepPayload, encode_payload, join_payloads
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.buffer_fields import MAX_ROW_BYTES
from sqlbuffer.steps.ids import uuid7

BUILT_IN = ("reward", *FLAGS, *PAYLOADS, "priority")
_PAYLOADS = frozenset(PAYLOADS)
_FIRST_CAPACITY = 8


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
        self._known = {*layout.specs, *BUILT_IN}
        self._plain = self._known - {*PAYLOADS, "priority"}
        self._comparable = [name for name, spec in layout.specs.items() if spec.column]
        self._packer = RowPacker(layout, casting)
        self._size = layout.size_bytes
        self._values: list[tuple[Any, ...]] = []  # reward, terminated, truncated, priority
        self._tails: list[bytes] = []
        self._payloads: dict[int, StepPayload] = {}
        self._n_bytes = self._largest = self._n_packed = 0
        self._first_time = self._last_time = 0.0
        self._records: NDArray[Any] = np.empty(0, layout.record)
        self._reserve(_FIRST_CAPACITY)

    @property
    def n_steps(self) -> int:
        """Steps that wait to be packed."""
        return len(self._values)

    @property
    def n_bytes(self) -> int:
        """Raw bytes of these steps."""
        return self._n_bytes

    @property
    def is_full(self) -> bool:
        """Whether the steps should be packed before another one is added.

        A chunk has up to 256 steps, and another step as large as the largest of these would pass
        256 KiB.
        """
        return len(self._values) >= MAX_STEPS or self._n_bytes + self._largest > MAX_BYTES

    def add(self, step: Mapping[str, Any]) -> float | None:
        """Add copies of the values of a step and return its reward as the column holds it.

        Raises:
            FieldError: An unknown or missing field, a value that cannot be stored, or a step that
                is too large; the step is not added.
        """
        is_plain = self._plain.issuperset(step)
        if not is_plain:
            self._check_names(step)
        tags: dict[str, Any] = {}
        reward = step.get("reward")
        if isinstance(reward, np.ndarray) and not reward.ndim:
            reward = reward[()]
        reward = encode_real(reward, "reward_t", "reward", tags)
        row, payload, priority = self._packer.pack(step), None, None
        n_bytes = len(row)
        if tags or not is_plain or n_bytes > self._max_row_bytes:
            payload, priority = self._payload(step, tags, n_bytes), self._priority(step)
            n_bytes += 0 if payload is None else payload.n_bytes
        flags = _flags(step)
        place = len(self._values)
        if place == len(self._records):
            self._reserve(2 * place)
        if self._layout.has_tails:
            self._tails.append(row[self._size :])
            row = row[: self._size]
        self._raw[place * self._size : (place + 1) * self._size] = row
        self._last_time = time.time()
        self._values.append((reward, *flags, priority))
        if payload is not None:
            self._payloads[place] = payload
        if not place:
            self._first_time = self._last_time
        self._n_bytes += n_bytes
        if n_bytes > self._largest:
            self._largest = n_bytes
        return reward

    def mark_truncated(self) -> None:
        """Set `truncated` of the step that was added last."""
        reward, terminated, _, priority = self._values[-1]
        self._values[-1] = (reward, terminated, True, priority)

    def pack(self, first_t: int) -> PackedChunk:
        """Return the steps as a chunk; none of them waits any more.

        Args:
            first_t: Place of the first of them within the episode.

        Raises:
            ValueError: There are no steps.
        """
        n, of = len(self._values), self._beginning
        if not n:
            raise ValueError("no step was added since the last chunk")
        records = self._records[:n]
        tails = self._tails if self._layout.has_tails else None
        (blocks,) = pack_blocks(self._layout, records, tails, [(0, n)])
        payloads = arrays = None
        if self._payloads:
            own = [self._payloads.get(place) for place in range(n)]
            payloads, arrays = join_payloads(self._layout, own)
        rewards, terminated, truncated, priorities = zip(*self._values, strict=True)
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
            {name: records[name].copy() for name in self._comparable} or None,
            *blocks,
            payloads,
            arrays,
            None,
        )
        self._n_packed += n
        self._empty()
        return chunk

    def _empty(self) -> None:
        self._values, self._tails, self._payloads = [], [], {}
        self._n_bytes = self._largest = 0

    def _reserve(self, capacity: int) -> None:
        """Make room for some steps; those that wait stay."""
        records: NDArray[Any] = np.empty(capacity, self._layout.record)
        records[: len(self._records)] = self._records
        self._records = records
        self._raw = records.view(np.uint8).data

    def _payload(
        self, step: Mapping[str, Any], tags: dict[str, Any], n_fields: int
    ) -> StepPayload | None:
        """Return the payload of a step, if it has one; raise if the step is too large."""
        payload = None
        if tags or not _PAYLOADS.isdisjoint(step):
            payload = encode_payload([step.get(name) for name in PAYLOADS], tags)
        n_arrays = n_fields + (0 if payload is None else len(payload.arrays))
        where = f"step {self._n_packed + self.n_steps}: "
        texts = {} if payload is None else payload.texts
        check_row_size(texts, n_arrays, self._max_row_bytes, where)
        return payload

    def _priority(self, step: Mapping[str, Any]) -> float | None:
        priority = step.get("priority")
        if priority is None:
            return None
        check_kept(self._has_priorities)
        return checked_priority(priority)

    def _check_names(self, step: Mapping[str, Any]) -> None:
        if self._known.issuperset(step):
            return
        fields = [name for name in self._known if name not in BUILT_IN]
        unknown = next(name for name in step if name not in self._known)
        raise FieldError(
            f"unknown field {unknown!r}; the buffer has {', '.join(sorted(fields)) or 'none'}, and "
            f"{', '.join(BUILT_IN)}"
        )


def _flags(step: Mapping[str, Any]) -> tuple[bool | None, bool | None]:
    terminated, truncated = step.get("terminated"), step.get("truncated")
    if terminated is not None and type(terminated) is not bool:
        terminated = flag_of(terminated, "terminated")
    if truncated is not None and type(truncated) is not bool:
        truncated = flag_of(truncated, "truncated")
    return terminated, truncated
