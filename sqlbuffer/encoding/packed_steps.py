"""Steps that are given one at a time: encoded, and packed as chunks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sqlbuffer.encoding.column_chunks import PackedColumns, chunk_ranges
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.given_columns import FLAGS, PAYLOADS, check_step_names, flag_of
from sqlbuffer.encoding.packed_chunk import PackedChunk, comparable_values, stored_values
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.priority_values import check_kept, checked_priority
from sqlbuffer.encoding.record_blocks import RecordBlocks, pack_blocks
from sqlbuffer.encoding.records import encode_real
from sqlbuffer.encoding.row_packer import RowPacker
from sqlbuffer.encoding.row_size import MAX_JSON_BYTES
from sqlbuffer.encoding.step_payloads import (
    StepPayload,
    check_step_size,
    encode_payload,
    join_payloads,
)
from sqlbuffer.fields.buffer_fields import MAX_ROW_BYTES
from sqlbuffer.fields.specs import Casting
from sqlbuffer.steps.ids import uuid7s


@dataclass(frozen=True)
class StepStream:
    """Values that steps outside episodes share; attributes as in `EpisodeStart`."""

    task_id: str
    agent_id: str
    model_version: int | None = None
    session: str | None = None
    key: None = None


class PackedStep(NamedTuple):
    """A step, checked and encoded.

    Attributes:
        of: Beginning of its episode, or values shared with other steps outside episodes.
        t: Its place within the episode; else its step number.
        time: When it was made, in seconds since 1970.
        row: The bytes of its typed fields, as `RowPacker` returns them.
        reward_t: Its reward as the column holds it.
        adv_t: Its advantage in the same form.
        v_t: Its value in the same form.
        terminated: The flag, if it was given.
        truncated: Flags in the same form.
        priority: Its initial priority, if it was given.
        payload: Its payload, if it has one.
        n_bytes: Bytes of both.
    """

    of: EpisodeStart | StepStream
    t: int
    time: float
    row: bytes
    reward_t: float | None
    adv_t: float | None
    v_t: float | None
    terminated: bool | None
    truncated: bool | None
    priority: float | None
    payload: StepPayload | None
    n_bytes: int

    @property
    def episode_key(self) -> str | None:
        """The user's id of its episode, if it is of one."""
        return self.of.key

    @property
    def task_id(self) -> str:
        """Its task."""
        return self.of.task_id


class StepPacker:
    """Encodes the steps of one episode, or of none.

    Args:
        layout: The typed fields of the buffer.
        beginning: The episode, or the values that the steps share.
        casting: See `FieldSpec.cast_rows`.
        has_priorities: Whether the buffer keeps priorities.
        max_row_bytes: Bytes that the fields and the payload of a step may have.

    Example:
        >>> from sqlbuffer.fields.buffer_fields import parse_specs
        >>> layout = Layout(parse_specs({"x": ("float32", (2,))}))
        >>> packer = StepPacker(layout, EpisodeStart("e", "task", "agent"), "same_kind", False)
        >>> step = packer.encode(0, {"x": np.ones(2, np.float32), "reward": 0.5})
        >>> step.reward_t, len(step.row)
        (0.5, 8)
        >>> (chunk,) = pack_steps(layout, [step]).chunks
        >>> chunk.n_steps, len(chunk.records)
        (1, 8)
    """

    def __init__(
        self,
        layout: Layout,
        beginning: EpisodeStart | StepStream,
        casting: Casting,
        has_priorities: bool,
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> None:
        self._fields, self._beginning = layout.specs.keys(), beginning
        self._has_priorities, self._max_row_bytes = has_priorities, max_row_bytes
        self._most_bytes = min(max_row_bytes, MAX_JSON_BYTES)  # without a second look
        self._plain = {*layout.specs, "reward", *FLAGS}
        self._packer = RowPacker(layout, casting)

    def encode(self, t: int, step: Mapping[str, Any]) -> PackedStep:
        """Return step t of the episode; it holds copies.

        Raises:
            FieldError: An unknown or missing field, a value that cannot be stored, or a step that
                is too large.
        """
        is_plain = self._plain.issuperset(step)
        if not is_plain:
            check_step_names(step, self._fields)
        tags: dict[str, Any] = {}
        reward = step.get("reward")
        if isinstance(reward, np.ndarray) and not reward.ndim:
            reward = reward[()]
        reward = encode_real(reward, "reward_t", "reward", tags)
        row, payload, priority = self._packer.pack(step), None, None
        n_bytes = len(row)
        adv_t = v_t = None
        if not is_plain:
            adv_t = encode_real(step.get("adv_t"), "adv_t", "adv_t", tags)
            v_t = encode_real(step.get("v_t"), "v_t", "v_t", tags)
        if tags or not is_plain:
            payload = encode_payload([step.get(name) for name in PAYLOADS], tags)
            priority = self._priority(step)
            n_bytes += 0 if payload is None else payload.n_bytes
        if n_bytes > self._most_bytes:
            check_step_size(payload, len(row), self._max_row_bytes, f"step {t}: ")
        terminated, truncated = step.get("terminated"), step.get("truncated")
        if terminated is not None and type(terminated) is not bool:
            terminated = flag_of(terminated, "terminated")
        if truncated is not None and type(truncated) is not bool:
            truncated = flag_of(truncated, "truncated")
        return PackedStep(
            self._beginning, t, time.time(), row, reward, adv_t, v_t, terminated, truncated,
            priority, payload, n_bytes,
        )  # fmt: skip

    def _priority(self, step: Mapping[str, Any]) -> float | None:
        priority = step.get("priority")
        if priority is None:
            return None
        check_kept(self._has_priorities)
        return checked_priority(priority)


def pack_steps(layout: Layout, steps: Sequence[PackedStep]) -> PackedColumns:
    """Return steps as chunks: those of an episode, or of a stream, one after the other, in the
    order in which the episodes come first.

    Args:
        layout: The typed fields of the buffer.
        steps: The steps; those of an episode in their order, without one missing.
    """
    places: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        places.setdefault(id(step.of), []).append(i)
    order = [i for own in places.values() for i in own]
    ordered = steps if len(places) == 1 else [steps[i] for i in order]
    size, sizes = layout.size_bytes, [step.n_bytes for step in ordered]
    ranges: list[tuple[int, int]] = []
    start = 0
    for own in places.values():
        ranges += chunk_ranges(layout, sizes, start, start + len(own))
        start += len(own)
    rows: Sequence[bytes] = [step.row for step in ordered]
    tails = None
    if layout.has_tails:
        tails = [row[size:] for row in rows]
        rows = [row[:size] for row in rows]
    records = b"".join(rows)
    blocks = pack_blocks(layout, records, tails, ranges)
    ids = uuid7s(len(ranges))
    chunks = [
        _chunk(layout, id_, ordered[start:stop], records[start * size : stop * size], own_blocks)
        for id_, (start, stop), own_blocks in zip(ids, ranges, blocks, strict=True)
    ]
    return PackedColumns(chunks, np.array(order, np.int64))


def _chunk(
    layout: Layout, id_: str, steps: Sequence[PackedStep], records: bytes, blocks: RecordBlocks
) -> PackedChunk:
    """Return the chunk of steps whose records are in blocks."""
    columns = dict(zip(PackedStep._fields, zip(*steps, strict=True), strict=True))
    of, first = steps[0].of, steps[0].t
    numbers = np.array(columns["t"], np.int64)
    fields = None
    comparable = [name for name, spec in layout.specs.items() if spec.column]
    if comparable:
        values = np.frombuffer(records, layout.record)
        fields = {name: comparable_values(values[name]) for name in comparable}
    texts, arrays = join_payloads(layout, columns["payload"])
    return PackedChunk(
        id_,
        len(steps),
        of.task_id,
        None,
        of.agent_id,
        None,
        of.key,
        of.session,
        of.model_version,
        None if of.key is None else first,
        first,
        None if (numbers == np.arange(first, first + len(steps))).all() else numbers,
        steps[0].time,
        steps[-1].time,
        stored_values(columns["reward_t"], np.float64),
        stored_values(columns["adv_t"], np.float64),
        stored_values(columns["v_t"], np.float64),
        stored_values(columns["terminated"], np.bool_),
        stored_values(columns["truncated"], np.bool_),
        stored_values(columns["priority"], np.float64),
        fields,
        *blocks,
        texts,
        arrays,
        None,
    )
