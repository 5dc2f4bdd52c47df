"""Slices of chunks: runs of consecutive steps, with their bytes and what became of them since."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import expanded_rows
from sqlbuffer.storage.schema.column_types import listed

Integers = NDArray[np.int64]

ALL_STEPS = 2**30
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
        has_bytes: Read the typed fields.
        has_values: Read advantages and values.
        is_alone: No other steps are read, and no episodes.
    """

    first: int = 0
    last: int = 0
    stride: int = 1
    final_within: int = -ALL_STEPS
    has_bytes: bool = True
    has_values: bool = False
    is_alone: bool = False


class Wanted(NamedTuple):
    """Which marks of steps to read.

    Attributes:
        labels: Values that were given late.
        quarantine: Steps in quarantine.
        versions: Model versions and sessions.
        deleted: Deleted steps.
        replaced: Values that were replaced in place.
        values: Advantages and values that were stored with the steps.
    """

    labels: bool = False
    quarantine: bool = False
    versions: bool = False
    deleted: bool = False
    replaced: bool = False
    values: bool = False


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
        records: The blocks that hold these steps; None if they were not asked for.
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


class Key(NamedTuple):
    """A step that an item may be made of, with its slice and its episode.

    Attributes:
        seq: Its number.
        task_id: Its task.
        agent_id: Its agent.
        step: Its step number.
        t: Its place in the episode.
        first_t: Place of the first step of its chunk.
        last_t: Place of the last step of its chunk.
        slice_seq, episode_id, slice_t, place, n, rewards, ends, block_steps, offsets, records: The
            `Slice` of it and the steps near to it in its chunk.
        episode_key, length, status, return_, reward, final: Its episode; all None for none. The
            final observation is None if it is not within reach, too.
    """

    seq: int
    task_id: str
    agent_id: str
    step: int
    t: int
    first_t: int
    last_t: int
    slice_seq: int
    episode_id: int | None
    slice_t: int | None
    place: int
    n: int
    rewards: Any
    ends: Any
    block_steps: int
    offsets: Any
    records: Any
    episode_key: str | None = None
    length: int | None = None
    status: str | None = None
    return_: float | None = None
    reward: float | None = None
    final: Any = None


# Where the columns of a slice and of an episode are in those of a key.
OF_SLICE, OF_EPISODE = slice(7, 17), slice(17, 23)


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


def slices_of(keys: Sequence[Key], wanted: Wanted) -> list[Slice]:
    """Return the slices of keys, if marks of their steps are wanted."""
    rows = [tuple(key)[OF_SLICE] for key in keys] if any(wanted) else []
    return list(map(Slice._make, rows))


@dataclass
class Marks:
    """What became of steps after they were stored, by their numbers.

    Attributes:
        deleted: Steps that were deleted.
        quarantined: Steps in quarantine.
        labels: (seq, reward, adv_t, v_t) of annotated steps; None for a value that was not given.
        versions: (first seq, n, model version, session) of runs of steps, if limits need them.
        replaced: (seq, block of the typed fields, reward, terminated, truncated) of steps that were
            replaced in place.
        values: (seq, None, adv_t, v_t) of steps that were stored with such values.
    """

    deleted: list[int] = field(default_factory=list)
    quarantined: list[int] = field(default_factory=list)
    labels: list[tuple[Any, ...]] = field(default_factory=list)
    versions: list[tuple[Any, ...]] = field(default_factory=list)
    replaced: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, more: "Marks") -> None:
        """Add the marks of other steps."""
        self.deleted += more.deleted
        self.quarantined += more.quarantined
        self.labels += more.labels
        self.versions += more.versions
        self.replaced += more.replaced
        self.values += more.values


def missing_ranges(keys: Iterable[Key], reach: Reach) -> list[tuple[int, int, int]]:
    """Return the ranges of episodes, (episode, first t, last t), in reach but in other chunks."""
    ranges = set()
    for key in keys:
        of, length = key.episode_id, key.length
        if of is None:
            continue
        first, last = max(key.t + reach.first, 0), key.t + reach.last
        if length is not None:
            last = min(last, length - 1)
        if key.first_t > first:
            ranges.add((of, first, key.first_t - 1))
        if key.last_t < last:
            ranges.add((of, key.last_t + 1, last))
    return sorted(ranges)


def values_of(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return `Marks.values` of (first seq, n, advantages, values) of chunks; None for none."""
    marks: list[tuple[Any, ...]] = []
    for first_seq, n, *columns in rows:
        advantages, values = (listed(one) or [None] * n for one in columns)
        seqs = range(first_seq, first_seq + n)
        marks += zip(seqs, [None] * n, advantages, values, strict=True)
    return marks


def rewards_of(slices: SliceColumns) -> NDArray[np.float64]:
    """Return the reward of each step of slices, NaN where it has none."""
    given = slices.rewards
    if None in given:
        given = [_NO_REWARD * n if r is None else r for r, n in zip(given, slices.n, strict=True)]
    return np.frombuffer(b"".join(given), ">f8").astype(np.float64)


def ends_of(slices: SliceColumns) -> NDArray[np.uint8]:
    """Return for each step of slices 1 if its episode terminated there, 2 if it was truncated."""
    ends = [end or _NO_END * n for end, n in zip(slices.ends, slices.n, strict=True)]
    return np.frombuffer(b"".join(ends), np.uint8)


def records_of(layout: Layout, slices: SliceColumns) -> NDArray[Any] | list[Any]:
    """Return the typed fields of each step of slices.

    Returns:
        An array of records, if all have one size; otherwise for each step its bytes, as
        `Layout.unpack_expanded` reads them.
    """
    size = layout.size_bytes
    if size and not any(slices.offsets):
        sizes = list(map(len, slices.records))
        if sizes == [n * size for n in slices.n]:
            return np.frombuffer(b"".join(slices.records), layout.record)
    rows = map(Slice._make, zip(*slices, strict=True))
    return [row for one in rows for row in _rows_of(layout, one)]


def _rows_of(layout: Layout, one: Slice) -> list[Any]:
    if one.offsets is None:
        view = memoryview(one.records)
        size = len(view) // one.n
        return [view[start : start + size] for start in range(0, one.n * size, size)] or [
            None
        ] * one.n
    places = range(one.place, one.place + one.n)
    in_block = [place % one.block_steps for place in places]
    seqs = range(one.seq, one.seq + one.n)
    return expanded_rows(layout, _blocks(one, places), in_block, seqs)


def _blocks(one: Slice, places: Sequence[int]) -> list[Any]:
    """Return the block of each place; places in the same block get the same object."""
    ends, size = listed(one.offsets), one.block_steps
    before = ends[one.place // size]
    numbers = range(places[0] // size, places[-1] // size + 1)
    blocks = {i: one.records[ends[i] - before : ends[i + 1] - before] for i in numbers}
    return [blocks[place // size] for place in places]


def first_chunk(buffer_id: str, episode_id: str, t: str) -> str:
    """Return SQL for the t of the chunk of an episode that holds a step.

    If no chunk holds it, the SQL gives the last chunk before the step, otherwise the step itself. A
    chunk may have one step only, so a search over all t that its chunk may have would read
    hundreds.
    """
    return f"""coalesce((SELECT b.t FROM chunks b WHERE b.buffer_id = {buffer_id}
        AND b.episode_id = {episode_id} AND b.t <= {t} ORDER BY b.t DESC LIMIT 1), {t})"""
