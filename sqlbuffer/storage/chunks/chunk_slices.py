"""Steps of episodes near to others, read as slices of chunks: one row for many steps."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import rows_of_blocks
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.dialects.by_database import by_database

read_slices = by_database(sqlite=sqlite.read_slices, postgresql=postgresql.read_slices)


@dataclass
class SlicedSteps:
    """The steps of slices, column by column.

    Attributes:
        seq: Number of each of n steps.
        episode: Number of its episode.
        t: Its step there.
        reward: NaN where there is none.
        terminated: The episode terminated there.
        truncated: It was cut there.
        blobs: The bytes of each, as `Layout.unpack` reads them; or its record, where steps are of
            one size: an array of `Layout.record`.
    """

    seq: NDArray[np.int64]
    episode: NDArray[np.int64]
    t: NDArray[np.int64]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    blobs: list[Any] | NDArray[Any]


def steps_of_slices(
    layout: Layout, rows: Sequence[Any], low: int, rewards: Mapping[int, float]
) -> SlicedSteps:
    """Return the steps of rows of `read_slices` above a number, without those that were deleted.

    Args:
        layout: The typed fields.
        rows: The rows, of which the same step may be part of several.
        low: Lower end of the window.
        rewards: Rewards that hold instead of those in the chunks, by seq.
    """
    counts = np.array([row[4] for row in rows], np.int64)
    # What each step is behind the first of its slice.
    behind = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    seq, episode, t = (
        np.repeat(np.array([row[i] for row in rows], np.int64), counts) for i in (0, 1, 2)
    )
    seq, t = seq + behind, t + behind
    reward = np.concatenate([np.empty(0), *map(_rewards, rows)])
    ends = np.concatenate([np.empty(0, np.uint8), *map(_ends, rows)])
    if rewards:
        reward = _replaced(reward, seq, rewards)
    blobs = _records(layout, rows)
    gone = [seq for row in rows for seq in _deleted(row)]
    kept = seq > low
    if gone:
        kept &= ~np.isin(seq, np.array(gone, np.int64))
    steps = SlicedSteps(
        seq, episode, t, reward, (ends & 1).astype(bool), (ends & 2).astype(bool), blobs
    )
    return steps if kept.all() else _only(steps, kept)


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


def _rewards(row: Any) -> NDArray[np.float64]:
    if row[5] is None:
        return np.full(row[4], np.nan)
    return np.frombuffer(row[5], ">f8").astype(np.float64)


def _replaced(
    reward: NDArray[np.float64], seq: NDArray[np.int64], rewards: Mapping[int, float]
) -> NDArray[np.float64]:
    numbers = np.fromiter(rewards.keys(), np.int64, len(rewards))
    order = np.argsort(numbers)
    values = np.fromiter(rewards.values(), np.float64, len(rewards))[order]
    numbers = numbers[order]
    at = np.searchsorted(numbers, seq).clip(max=len(numbers) - 1)
    return np.where(numbers[at] == seq, values[at], reward)


def _ends(row: Any) -> NDArray[np.uint8]:
    return np.zeros(row[4], np.uint8) if row[6] is None else np.frombuffer(row[6], np.uint8)


def _records(layout: Layout, rows: Sequence[Any]) -> list[Any] | NDArray[Any]:
    """Return the record of each step, in an array if they are of one size and none is missing."""
    size = layout.size_bytes
    if size and all(row[8] is None and len(row[9]) == row[4] * size for row in rows):
        return np.frombuffer(b"".join([row[9] for row in rows]), layout.record)
    return [blob for row in rows for blob in _blobs(layout, row)]


def _blobs(layout: Layout, row: Any) -> list[Any]:
    """Return the bytes of each step of a slice."""
    seq, _, _, place, n, _, _, block_steps, offsets, records, _ = row
    if offsets is None:
        view = memoryview(records)
        size = len(view) // n
        return [view[start : start + size] for start in range(0, n * size, size)] or [view] * n
    ends = json.loads(offsets) if isinstance(offsets, str) else offsets
    places = range(place, place + n)
    blocks = {
        i: records[ends[i] : ends[i + 1]]
        for i in range(places[0] // block_steps, places[-1] // block_steps + 1)
    }
    own = [blocks[i // block_steps] for i in places]
    return rows_of_blocks(layout, own, [i % block_steps for i in places], range(seq, seq + n))


def _deleted(row: Any) -> Sequence[int]:
    found: Any = row[10]
    if not found or found == "[]":
        return ()
    listed: Sequence[int] = json.loads(found) if isinstance(found, str) else found
    return listed
