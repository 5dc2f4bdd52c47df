"""Steps given as columns, as chunks."""

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.given_columns import GivenColumns, check_columns
from sqlbuffer.encoding.packed_chunk import (
    DTYPES,
    END_BYTES,
    MAX_STEPS,
    PackedChunk,
    Values,
    comparable_values,
    new,
    set_attribute,
    stored_times,
    stored_values,
)
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import RecordBlocks, pack_blocks
from sqlbuffer.encoding.row_size import MAX_JSON_BYTES
from sqlbuffer.encoding.step_payloads import (
    StepPayload,
    check_step_size,
    encode_payload,
    join_payloads,
)
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.buffer_fields import MAX_ROW_BYTES
from sqlbuffer.fields.specs import Casting
from sqlbuffer.steps.ids import uuid7s

Keys = tuple[Any, ...]  # the values of `GivenColumns.keys` for one step
_NO_VALUES = dict.fromkeys(field.name for field in fields(PackedChunk))


@dataclass(frozen=True)
class PackedColumns:
    """Columns of steps as chunks.

    Attributes:
        chunks: The chunks, in the order in which they are numbered.
        order: For each step in that order its place in the columns, int64 of shape (n,).
    """

    chunks: list[PackedChunk]
    order: NDArray[np.int64]


def pack_columns(
    layout: Layout,
    columns: Mapping[str, Any],
    *,
    casting: Casting = "same_kind",
    episode: str | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
) -> PackedColumns:
    """Return n steps as chunks.

    Steps of one episode, or else of one task, agent, model version and session, come one after the
    other, the groups in the order of their first steps. Steps of an episode keep their order, and a
    chunk ends where one of these keys changes.

    Args:
        layout: The declared fields.
        columns: For each declared field n values; `reward`, `terminated`, `truncated`, `id`
            likewise; `state`, `actions`, `messages`, `extra` n values as `add` takes them;
            `task_id`, `agent_id`, `step`, `model_version`, `session_id`, `episode_id` and
            `priority` n values or one.
        casting: See `FieldSpec.cast_rows`.
        episode: The episode that the n steps are, from its first to its last.
        max_row_bytes: Bytes that the fields and the payload of a step may have.

    Raises:
        FieldError: An unknown or missing field, another shape or number of rows, a value that the
            field cannot hold, a step that is too large; names the field or the row.
    """
    given = check_columns(layout, columns, casting)
    return pack_given(layout, given, episode=episode, max_row_bytes=max_row_bytes)


def pack_given(
    layout: Layout,
    given: GivenColumns,
    *,
    episode: str | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
) -> PackedColumns:
    """Return n steps that were checked as chunks; see `pack_columns`."""
    if not given.n_steps:
        return PackedColumns([], np.empty(0, np.int64))
    records, tails = layout.records(given.fields, given.n_steps), layout.tails(given.fields)
    sizes = None if tails is None else [layout.size_bytes + len(tail) for tail in tails]
    payloads = given.encoded
    if given.reward_tags or any(column is not None for column in given.payloads):
        payloads = _payloads(given)
    if sizes or payloads or layout.size_bytes > max_row_bytes:
        sizes = _checked_sizes(
            sizes or [layout.size_bytes] * given.n_steps, payloads, max_row_bytes
        )
    keys, order, starts = _groups(given, episode is not None)
    if order is not None:
        records, tails = records[order], _taken(tails, order)
        payloads, sizes = _taken(payloads, order), _taken(sizes, order)
    ranges: list[tuple[int, int]] = []
    own_keys: list[Keys] = []
    for key, group in zip(keys, pairwise(starts), strict=True):
        cuts = [group] if group[1] - group[0] == 1 else chunk_ranges(layout, sizes, *group)
        ranges += cuts
        own_keys += [key] * len(cuts)
    steps = _Slices(layout, given, order, payloads, episode)
    blocks = pack_blocks(layout, records.view(np.uint8).data, tails, ranges)
    chunks = list(map(steps.chunk, uuid7s(len(ranges)), ranges, own_keys, blocks))
    return PackedColumns(chunks, np.arange(given.n_steps) if order is None else order)


def pack_ranges(
    layout: Layout, given: GivenColumns, ranges: Sequence[tuple[int, int]]
) -> list[PackedChunk]:
    """Return steps whose chunks are known as these chunks, without another look at the values.

    Args:
        layout: The typed fields.
        given: The steps; of each of its `keys`, a list with the value of each chunk.
        ranges: The first step of each chunk, and the one after its last.
    """
    records, tails = layout.records(given.fields, given.n_steps), layout.tails(given.fields)
    steps = _Slices(layout, given, None, given.encoded, None)
    blocks = pack_blocks(layout, records.view(np.uint8).data, tails, ranges)
    keys = list(zip(*given.keys.values(), strict=True))
    return list(map(steps.chunk, uuid7s(len(ranges)), ranges, keys, blocks))


def _payloads(given: GivenColumns) -> list[StepPayload | None]:
    """Return the payload of each step; None where it has none."""
    found = []
    columns = (
        repeat(None, given.n_steps) if column is None else column for column in given.payloads
    )
    for i, values in enumerate(zip(*columns, strict=True)):
        try:
            found.append(encode_payload(values, given.reward_tags.get(i, {})))
        except FieldError as error:
            raise FieldError(f"row {i}: {error}") from None
    return found


def _checked_sizes(
    sizes: Sequence[int], payloads: Sequence[StepPayload | None] | None, limit: int
) -> list[int]:
    """Return the bytes of each step with its payload; raise if one is too large."""
    found = []
    for i, (size, payload) in enumerate(zip(sizes, payloads or repeat(None), strict=False)):
        n_bytes = size if payload is None else size + payload.n_bytes
        if n_bytes > min(limit, MAX_JSON_BYTES):
            check_step_size(payload, size, limit, f"row {i}: ")
        found.append(n_bytes)
    return found


def _groups(
    given: GivenColumns, keeps_order: bool
) -> tuple[list[Keys], NDArray[np.int64] | None, list[int]]:
    """Return the keys of each group, the order that puts groups together, or None for the given
    order, and where each group begins in it, with the end.

    Steps of an episode keep their order: one of its groups ends where another key changes.
    """
    n, names = given.n_steps, list(given.keys)
    keys = tuple(given.keys.values())
    if not any(isinstance(key, list) for key in keys):
        return [keys], None, [0, n]
    rows = list(
        zip(*(key if isinstance(key, list) else repeat(key, n) for key in keys), strict=True)
    )
    numbers = {key: i for i, key in enumerate(dict.fromkeys(rows))}
    own = list(numbers)
    key_of = np.fromiter(map(numbers.__getitem__, rows), np.int64, n)
    order = None
    if not keeps_order:
        streams: dict[Keys, int] = {}
        stream_of = [streams.setdefault(_stream(names, key), len(streams)) for key in own]
        stream = np.array(stream_of, np.int64)[key_of]
        if (np.diff(stream) < 0).any():
            order = np.argsort(stream, kind="stable")
            key_of = key_of[order]
    starts = [0, *(np.flatnonzero(np.diff(key_of)) + 1).tolist()]
    return [own[i] for i in key_of[starts].tolist()], order, [*starts, n]


def _stream(names: list[str], key: Keys) -> Keys:
    """Return the keys of an episode, or all keys of steps outside episodes."""
    own = dict(zip(names, key, strict=True))
    episode = own.get("episode_key")
    return key if episode is None else (episode, own["task_id"])


def _taken(values: Any, order: NDArray[np.int64] | None) -> Any:
    """Return values, if there are any, in an order, if there is one."""
    if values is None or order is None:
        return values
    if isinstance(values, list):
        return list(map(values.__getitem__, order.tolist()))
    return values[order]


def chunk_ranges(
    layout: Layout, sizes: list[int] | None, first: int, after: int
) -> list[tuple[int, int]]:
    """Return the first step of each chunk of a group, and the one after its last.

    Args:
        layout: The typed fields.
        sizes: Raw bytes of each step, where they differ.
        first: The first step of the group.
        after: The step after the last one.
    """
    if sizes is None:
        n = min(MAX_STEPS, layout.chunk_bytes // (layout.size_bytes + END_BYTES)) or 1
        return [(start, min(start + n, after)) for start in range(first, after, n)]
    ends = list(accumulate((size + END_BYTES for size in sizes[first:after]), initial=0))
    cuts, start = [], 0
    while start < after - first:
        fitting = bisect_right(ends, ends[start] + layout.chunk_bytes) - 1
        stop = max(start + 1, min(start + MAX_STEPS, fitting))
        cuts.append((first + start, first + stop))
        start = stop
    return cuts


class _Slices:
    """Cuts chunks out of the values of steps, which are in the order of their numbers."""

    def __init__(
        self,
        layout: Layout,
        given: GivenColumns,
        order: NDArray[np.int64] | None,
        payloads: list[StepPayload | None] | None,
        episode: str | None,
    ) -> None:
        self._layout, self._payloads, self._episode = layout, payloads, episode
        now = time.time()
        self._common = {**_NO_VALUES, "episode_key": episode, "first_time": now, "last_time": now}
        self._reward = _taken(given.reward, order)
        priority = None if given.priority is None else np.array(given.priority, np.float64)
        others = {
            "terminated": given.terminated,
            "truncated": given.truncated,
            "initial_priority": priority,
            "ids": given.ids,
        }
        self._others = [
            (name, _taken(values, order)) for name, values in others.items() if values is not None
        ]
        self._fields = [
            (name, comparable_values(_taken(given.fields[name], order)))
            for name, spec in layout.specs.items()
            if spec.column
        ]
        self._steps: NDArray[np.int64] = _taken(given.steps, order)
        self._may_lack_rewards = bool(given.reward_tags) or given.encoded is not None
        self._makes_steps = given.makes_steps and episode is None
        self._keys = tuple(given.keys)
        more = {name: _taken(values, order) for name, values in given.more_values.items()}
        self._times = more.pop("times", None)
        self._more = list(more.items())
        follows = (self._steps[1:] - 1 == self._steps[:-1]) & (self._steps[1:] > self._steps[:-1])
        self._n_breaks = None if follows.all() else [0, *np.cumsum(~follows).tolist()]

    def chunk(
        self, id_: str, steps: tuple[int, int], keys: Keys, blocks: RecordBlocks
    ) -> PackedChunk:
        """Return the chunk of the steps from one place up to another."""
        start, stop = steps
        # Not by its constructor, which takes 3 us: there may be a chunk for each step.
        chunk: PackedChunk = new(PackedChunk)
        own = self._common.copy()
        set_attribute(chunk, "__dict__", own)
        own["id"], own["n_steps"] = id_, stop - start
        own.update(zip(self._keys, keys, strict=True))
        own["records"], own["block_steps"], own["offsets"] = blocks
        own["step"] = int(self._steps[start])
        if self._episode is not None:
            own["t"] = start
        own["makes_steps"] = self._makes_steps and own["episode_key"] is not None
        breaks = self._n_breaks
        if breaks is not None and breaks[start] != breaks[stop - 1]:
            own["steps"] = self._steps[start:stop]
        if self._reward is not None:
            own["reward"] = self._rewards(start, stop)
        for name, values in self._others:
            own[name] = values[start:stop]
        for name, values in self._more:
            own[name] = stored_values(values[start:stop], DTYPES[name])
        if self._times is not None:
            times = stored_times(self._times[start:stop])
            own["first_time"], own["last_time"], own["times"] = times
        if self._fields:
            own["fields"] = {name: values[start:stop] for name, values in self._fields}
        if self._payloads is not None:
            payloads = join_payloads(self._layout, self._payloads[start:stop])
            own["payloads"], own["payload_arrays"] = payloads
        return chunk

    def _rewards(self, start: int, stop: int) -> Values | None:
        rewards: NDArray[np.float64] = self._reward[start:stop]
        if not self._may_lack_rewards or not np.isnan(rewards).any():
            return rewards
        values = [None if reward != reward else reward for reward in rewards.tolist()]
        return stored_values(values, np.float64)
