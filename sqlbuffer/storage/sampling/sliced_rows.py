"""Split rows that were read with blocks or slices of their chunks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import rows_of_blocks
from sqlbuffer.storage.chunks.chunk_slices import steps_in_slices
from sqlbuffer.storage.chunks.sliced_steps import Slice
from sqlbuffer.storage.rows.row_selection import (
    ARRAYS,
    LENGTH,
    PLACE,
    SLICED_PLACE,
    Neighbours,
    RowSelection,
    T,
)

Row = tuple[Any, ...]
Integers = NDArray[np.int64]
_MOST_T = 2**31 - 1


class SlicedRows(NamedTuple):
    """The parts of rows with slices.

    Attributes:
        rows: The rows in the form of other selections; those with a slice have no bytes of their
            own.
        slices: The slices with the steps near to them, and the steps themselves.
        missing: Ranges of episodes, (episode, first t, last t), that are in other chunks.
    """

    rows: list[Row]
    slices: list[Slice]
    missing: list[tuple[int, int, int]]


def sliced_rows(layout: Layout | None, reading: RowSelection, found: Sequence[Row]) -> SlicedRows:
    """Split rows of `reading.sliced` into their parts.

    Args:
        layout: The typed fields; None if each step is a row.
        reading: The selection.
        found: The rows.
    """
    if layout is None or not found:
        return SlicedRows([], [], [])
    columns = list(zip(*found, strict=True))
    end = reading.sliced_part + 1
    keys, of_episode, of_slice = columns[:SLICED_PLACE], columns[SLICED_PLACE:end], columns[end:]
    n_steps, own_places, places, *rest = of_slice
    seqs, episodes, ts = (
        np.array(column, np.int64) for column in (keys[0], *of_episode[: T - PLACE + 1])
    )
    back = np.array(own_places, np.int64) - np.array(places, np.int64)
    firsts = ((seqs - back).tolist(), of_episode[0], (ts - back).tolist(), places)
    slices = list(map(Slice._make, zip(*firsts, *rest, strict=True)))
    rewards, terminated, truncated = steps_in_slices(slices, back)
    are_near = (episodes >= 0).tolist() if reading.near is not None else [False] * len(found)
    # A row without a slice for others has one that is its step alone.
    blocks = [
        None if is_near else each.records for each, is_near in zip(slices, are_near, strict=True)
    ]
    in_block = [0 if s.offsets is None else s.place % s.block_steps for s in slices]
    blobs = rows_of_blocks(layout, blocks, in_block, keys[0])
    values = (rewards, terminated, truncated, [None] * len(found), blobs)
    made = SlicedRows(list(zip(*keys, *values, *of_episode, strict=True)), [], [])
    if reading.near is not None:
        made.slices.extend(each for each in slices if each.episode_id >= 0)
        lengths = of_episode[LENGTH - PLACE]
        ends = np.array([_MOST_T if end is None else end - 1 for end in lengths], np.int64)
        first = ts - np.array(own_places, np.int64)
        last = first + np.array(n_steps, np.int64) - 1
        made.missing.extend(_missing(reading.near, episodes, ts, ends, first, last))
    return made


def _missing(
    near: Neighbours, episodes: Integers, ts: Integers, ends: Integers, first: Integers,
    last: Integers,
) -> list[tuple[int, int, int]]:  # fmt: skip
    """Return the ranges of episodes near to rows that are not in their chunks.

    Args:
        near: The steps near to a row.
        episodes: Number of the episode of each row; negative for none.
        ts: Its step there.
        ends: The last step of its episode.
        first: The first step of its chunk.
        last: The last step of its chunk.
    """
    has_episode, low = episodes >= 0, np.maximum(ts + near.first, 0)
    is_before = has_episode & (first > low)
    is_after = has_episode & (last < np.minimum(ts + near.last, ends))
    before = np.stack([episodes, low, first - 1], axis=1)[is_before].tolist()
    after = np.stack([episodes, last + 1, ts + near.last], axis=1)[is_after].tolist()
    return list(map(tuple, before + after))


def with_own_bytes(layout: Layout | None, found: Sequence[Row]) -> list[Row]:
    """Return rows with their own bytes only, instead of a block and, at the end, a place there."""
    if layout is None or not found:
        return list(found)
    seqs, blocks, places = ([row[i] for row in found] for i in (0, ARRAYS, -1))
    rows = rows_of_blocks(layout, blocks, places, seqs)
    return [
        (*row[:ARRAYS], own, *row[ARRAYS + 1 : -1]) for row, own in zip(found, rows, strict=True)
    ]
