"""Slices of chunks: runs of consecutive steps, with their bytes."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import expanded_rows
from sqlbuffer.storage.schema.column_types import listed

Integers = NDArray[np.int64]

ALL_STEPS, ANY_SIZE = 2**30, 2**40
_NO_REWARD, _NO_END = struct.pack(">d", float("nan")), b"\0"


@dataclass(frozen=True)
class Reach:
    """Which steps to read around a key.

    Attributes:
        first: Offset of the first step from the key; negative for steps before it.
        last: Offset of the last step from the key; `ALL_STEPS` for all to the episode's end.
        stride: Only steps whose place in the episode is a multiple of this are keys; 1 for all.
        final_within: The final observation of an episode is read if it ends at most this many steps
            after the key; negative to read none.
        most_bytes: Typed fields are not read of steps with more bytes.
        has_values: Read advantages and values.
        is_alone: No other steps are read, and no episodes.
    """

    first: int = 0
    last: int = 0
    stride: int = 1
    final_within: int = -ALL_STEPS
    most_bytes: int = ANY_SIZE
    has_values: bool = False
    is_alone: bool = False


class Parts(NamedTuple):
    """What is read of whole steps in addition to their columns.

    Attributes:
        fields: The typed fields.
        payloads: The JSON.
        arrays: The arrays to which the JSON refers.
    """

    fields: bool
    payloads: bool
    arrays: bool


class Slice(NamedTuple):
    """Consecutive steps of a chunk.

    Attributes:
        seq: Number of the first step.
        episode_id: Number of their episode in the database; None for none.
        t: Place of the first one in the episode.
        place: Place of the first one in the chunk.
        n: Number of steps.
        rewards: Their bytes of `chunk_data.rewards`.
        ends: Their bytes of `chunk_data.ends`.
        block_steps: Steps in a block.
        offsets: Offsets of all blocks of the chunk: a list, its JSON, or None.
        records: The blocks that hold these steps; None if the steps are too large to be read now.
    """

    seq: int
    episode_id: int | None
    t: int | None
    place: int
    n: int
    rewards: Any
    ends: Any
    block_steps: int
    offsets: Any
    records: Any


class SliceColumns(NamedTuple):
    """The attributes of many slices; see `Slice`."""

    seq: Sequence[int]
    episode_id: Sequence[int | None]
    t: Sequence[int | None]
    place: Sequence[int]
    n: Sequence[int]
    rewards: Sequence[Any]
    ends: Sequence[Any]
    block_steps: Sequence[int]
    offsets: Sequence[Any]
    records: Sequence[Any]


class Keys(NamedTuple):
    """Steps that an item may be made of, with their slices and episodes, column by column.

    Attributes:
        seq: Their numbers.
        task_id: Their tasks.
        agent_id: Their agents.
        step: Their step numbers.
        t: Their places in the episode.
        first_t: Place of the first step of the chunk.
        last_t: Place of the last step of the chunk.
        slice_seq, episode_id, slice_t, place, n, rewards, ends, block_steps, offsets, records: The
            `Slice` of each key and the steps near to it in its chunk.
        episode_key, length, status, return_, reward, final: The episode; all None for none. The
            final observation is None if it is not within reach, too.
    """

    seq: Sequence[int]
    task_id: Sequence[str]
    agent_id: Sequence[str]
    step: Sequence[int]
    t: Sequence[int]
    first_t: Sequence[int]
    last_t: Sequence[int]
    slice_seq: Sequence[int]
    episode_id: Sequence[int | None]
    slice_t: Sequence[int | None]
    place: Sequence[int]
    n: Sequence[int]
    rewards: Sequence[Any]
    ends: Sequence[Any]
    block_steps: Sequence[int]
    offsets: Sequence[Any]
    records: Sequence[Any]
    episode_key: Sequence[str | None]
    length: Sequence[int | None]
    status: Sequence[str | None]
    return_: Sequence[float | None]
    reward: Sequence[float | None]
    final: Sequence[Any]

    @property
    def slices(self) -> SliceColumns:
        """The slices of the keys."""
        return SliceColumns(*self[7:17])


def with_slices(slices: SliceColumns, more: Sequence[Slice]) -> SliceColumns:
    """Return slices with more of them behind."""
    if not more:
        return slices
    columns = zip(slices, zip(*more, strict=True), strict=True)
    return SliceColumns(*((*own, *further) for own, further in columns))


# A row of a key that is read with the steps around it has the columns of `Keys`. That of a step
# that is read alone: seq, task_id, agent_id, step, place, and from `rewards` to `records`.
_N_OF_STEP = 10


def keys_of(rows: Sequence[Sequence[Any]], reach: Reach) -> Keys:
    """Return the keys that were read as rows."""
    n = len(rows)
    if not reach.is_alone:
        return Keys._make(zip(*rows, strict=True) if n else [()] * len(Keys._fields))
    columns = list(zip(*rows, strict=True)) or [()] * _N_OF_STEP
    seq, task_id, agent_id, step, place, *values = columns
    none, zero = (None,) * n, (0,) * n
    of_slice = seq, none, none, place, (1,) * n, *values
    return Keys(seq, task_id, agent_id, step, zero, zero, zero, *of_slice, *[none] * 6)


def missing_ranges(keys: Keys, reach: Reach) -> list[tuple[int, int, int]]:
    """Return the ranges of episodes, (episode, first t, last t), in reach but in other chunks."""
    ranges = set()
    columns = keys.episode_id, keys.t, keys.first_t, keys.last_t, keys.length
    for of, t, first_t, last_t, length in zip(*columns, strict=True):
        if of is None:
            continue
        first, last = max(t + reach.first, 0), t + reach.last
        if length is not None:
            last = min(last, length - 1)
        if first_t > first:
            ranges.add((of, first, first_t - 1))
        if last_t < last:
            ranges.add((of, last_t + 1, last))
    return sorted(ranges)


def rewards_of(slices: SliceColumns) -> NDArray[np.float64]:
    """Return the reward of each step of slices, NaN where it has none."""
    given = slices.rewards
    if None in given:
        given = [_NO_REWARD * n if r is None else r for r, n in zip(given, slices.n, strict=True)]
    return np.frombuffer(b"".join(given), ">f8").astype(np.float64)


def ends_of(slices: SliceColumns) -> NDArray[np.uint8]:
    """Return for each step of slices 1 if its episode terminated there, 2 if it was truncated."""
    if not any(slices.ends):
        return np.zeros(sum(slices.n), np.uint8)
    ends = [end or _NO_END * n for end, n in zip(slices.ends, slices.n, strict=True)]
    return np.frombuffer(b"".join(ends), np.uint8)


def records_of(layout: Layout, slices: SliceColumns) -> NDArray[Any] | list[Any]:
    """Return the typed fields of each step of slices.

    Returns:
        An array of records, if all have one size; otherwise for each step its bytes, as
        `Layout.unpack_expanded` reads them.
    """
    size = layout.size_bytes
    if size and not layout.has_tails and not any(slices.offsets):
        sizes = list(map(len, slices.records))
        if sizes == [n * size for n in slices.n]:
            return np.frombuffer(b"".join(slices.records), layout.record)
    rows = map(Slice._make, zip(*slices, strict=True))
    return [row for one in rows for row in _rows_of(layout, one)]


def _rows_of(layout: Layout, one: Slice) -> list[Any]:
    if one.offsets is None:
        return records_in(one.n, one.records)
    places = range(one.place, one.place + one.n)
    in_block = [place % one.block_steps for place in places]
    seqs = range(one.seq, one.seq + one.n)
    blocks = blocks_of(one.place, one.n, one.block_steps, one.offsets, one.records)
    return expanded_rows(layout, blocks, in_block, seqs)


def blocks_of(place: int, n: int, block_steps: int, offsets: Any, records: Any) -> list[Any]:
    """Return the block of each step of a slice with offsets; see `Slice`.

    Steps in the same block get the same object.
    """
    ends, size = listed(offsets), block_steps
    before = ends[place // size]
    numbers = range(place // size, (place + n - 1) // size + 1)
    blocks = {i: records[ends[i] - before : ends[i + 1] - before] for i in numbers}
    return [blocks[at // size] for at in range(place, place + n)]


def records_in(n: int, records: Any) -> list[Any]:
    """Return the record of each step of a slice without offsets; None if they have no fields."""
    view = memoryview(records)
    size = len(view) // n
    return [view[i * size : (i + 1) * size] for i in range(n)] if size else [None] * n
