"""Steps near to others in their episode, read as slices of chunks: one row for many steps."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import rows_of_blocks
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.chunks.sliced_steps import Slice
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.schema.column_types import listed

_NO_REWARD, _NO_END = struct.pack(">d", float("nan")), b"\0"

read_slices = by_database(sqlite=sqlite.read_slices, postgresql=postgresql.read_slices)


@dataclass
class SlicedSteps:
    """The steps of slices, column by column.

    Attributes:
        seq: Number of each of n steps.
        episode: Number of its episode.
        t: Its step there.
        reward: Its reward; NaN if it has none.
        terminated: The episode terminated there.
        truncated: The episode was truncated there.
        blobs: Bytes of each step, as `Layout.unpack` reads them. If steps have a fixed size: an
            array of `Layout.record`.
    """

    seq: NDArray[np.int64]
    episode: NDArray[np.int64]
    t: NDArray[np.int64]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    blobs: list[Any] | NDArray[Any]


def steps_of_slices(
    layout: Layout, slices: Sequence[Slice], low: int, rewards: Mapping[int, float]
) -> SlicedSteps:
    """Return the steps of slices above a number, without those that were deleted; by episode and t.

    Args:
        layout: The typed fields.
        slices: The slices; the same step may be part of several.
        low: Lower end of the window.
        rewards: Rewards that replace those in the chunks, by seq.
    """
    slices = sorted(slices, key=attrgetter("episode_id", "t"))
    counts = np.array([each.n for each in slices], np.int64)
    starts, places = np.cumsum(counts) - counts, np.arange(counts.sum())
    firsts = np.array([(each.seq, each.episode_id, each.t) for each in slices], np.int64)
    first_seq, of, first_t = firsts.reshape(-1, 3).T
    seq = np.repeat(first_seq - starts, counts) + places
    t, episode = np.repeat(first_t - starts, counts) + places, np.repeat(of, counts)
    reward, ends = _all_rewards(slices).astype(np.float64), _all_ends(slices)
    if rewards:
        reward = _replaced(reward, seq, rewards)
    blobs = _records(layout, slices)
    gone = [seq for each in slices for seq in listed(each.deleted)]
    kept = seq > low
    if gone:
        kept &= ~np.isin(seq, np.array(gone, np.int64))
    steps = SlicedSteps(
        seq, episode, t, reward, (ends & 1).astype(bool), (ends & 2).astype(bool), blobs
    )
    return steps if kept.all() else _only(steps, kept)


def steps_in_slices(
    slices: Sequence[Slice], places: NDArray[np.int64]
) -> tuple[list[float], list[int | None], list[int | None]]:
    """Return reward, terminated and truncated of one step of each slice, at its place in the slice.

    A reward is NaN if the step has none. The flags are None if the step does not say.
    """
    counts = np.array([each.n for each in slices], np.int64)
    at = np.cumsum(counts) - counts + places
    rewards = _all_rewards(slices)[at].tolist()
    flags = _all_ends(slices)[at].tolist()
    ends = [None if each.ends is None else own for each, own in zip(slices, flags, strict=True)]
    terminated, truncated = ([None if own is None else own & bit for own in ends] for bit in (1, 2))
    return rewards, terminated, truncated


def _only(steps: SlicedSteps, kept: NDArray[np.bool_]) -> SlicedSteps:
    blobs = steps.blobs
    return SlicedSteps(
        steps.seq[kept],
        steps.episode[kept],
        steps.t[kept],
        steps.reward[kept],
        steps.terminated[kept],
        steps.truncated[kept],
        blobs[kept] if isinstance(blobs, np.ndarray) else list(compress(blobs, kept.tolist())),
    )


def _replaced(
    reward: NDArray[np.float64], seq: NDArray[np.int64], rewards: Mapping[int, float]
) -> NDArray[np.float64]:
    numbers = np.fromiter(rewards.keys(), np.int64, len(rewards))
    order = np.argsort(numbers)
    values = np.fromiter(rewards.values(), np.float64, len(rewards))[order]
    numbers = numbers[order]
    at = np.searchsorted(numbers, seq).clip(max=len(numbers) - 1)
    return np.where(numbers[at] == seq, values[at], reward)


def _all_rewards(slices: Sequence[Slice]) -> NDArray[Any]:
    found = [_NO_REWARD * each.n if each.rewards is None else each.rewards for each in slices]
    return np.frombuffer(b"".join(found), ">f8")


def _all_ends(slices: Sequence[Slice]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join([each.ends or _NO_END * each.n for each in slices]), np.uint8)


def _records(layout: Layout, slices: Sequence[Slice]) -> list[Any] | NDArray[Any]:
    """Return the record of each step: an array if all have a fixed size and none is missing."""
    size = layout.size_bytes
    if size and all(s.offsets is None and len(s.records) == s.n * size for s in slices):
        return np.frombuffer(b"".join([each.records for each in slices]), layout.record)
    return [blob for each in slices for blob in _blobs(layout, each)]


def _blobs(layout: Layout, found: Slice) -> list[Any]:
    """Return the bytes of each step of a slice."""
    n = found.n
    if found.offsets is None:
        view = memoryview(found.records)
        size = len(view) // n
        return [view[start : start + size] for start in range(0, n * size, size)] or [view] * n
    places = range(found.place, found.place + n)
    in_block = [place % found.block_steps for place in places]
    return rows_of_blocks(layout, _blocks(found, places), in_block, range(found.seq, found.seq + n))


def _blocks(found: Slice, places: Sequence[int]) -> list[Any]:
    """Return the block of each place; places in the same block get the same object."""
    ends, size = listed(found.offsets), found.block_steps
    before = ends[found.place // size]
    numbers = range(places[0] // size, places[-1] // size + 1)
    blocks = {i: found.records[ends[i] - before : ends[i + 1] - before] for i in numbers}
    return [blocks[place // size] for place in places]
