"""Split rows that were read with blocks or slices of their chunks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import rows_of_blocks
from sqlbuffer.storage.chunks.chunk_slices import step_of_slice
from sqlbuffer.storage.chunks.sliced_steps import Slice
from sqlbuffer.storage.rows.row_selection import ARRAYS, LENGTH, PLACE, REWARD, RowSelection, T

Row = tuple[Any, ...]
_MOST_T = 2**31 - 1


class SlicedRows(NamedTuple):
    """The parts of rows with slices.

    Attributes:
        rows: The rows in the form of other selections, with the block of their typed fields and, as
            the last column, the place there.
        slices: The slices with the steps near to them.
        missing: Ranges of episodes, (episode, first t, last t), that are in other chunks.
    """

    rows: list[Row]
    slices: list[Slice]
    missing: list[tuple[int, int, int]]


def sliced_rows(reading: RowSelection, found: Sequence[Row]) -> SlicedRows:
    """Split rows of `reading.sliced` into their parts."""
    near, n_columns = reading.near, len(reading.columns) + 1
    made = SlicedRows([], [], [])
    for row in found:
        n_steps, own_place, place, *rest = row[n_columns:]
        episode, t, back = row[PLACE], row[T], own_place - place
        its_slice = Slice(row[0] - back, episode, t - back, place, *rest)
        own = step_of_slice(its_slice, back)
        ends = (None, None) if own.ends is None else (own.ends & 1, own.ends & 2)
        values = (own.reward, *ends, None, own.block)
        made.rows.append((*row[:REWARD], *values, *row[PLACE:n_columns], own.block_place))
        if near is None or episode < 0:
            continue
        made.slices.append(its_slice)
        first = t - own_place
        last = first + n_steps - 1
        if first > max(0, t + near.first):
            made.missing.append((episode, max(0, t + near.first), first - 1))
        end = _MOST_T if row[LENGTH] is None else row[LENGTH] - 1
        if last < min(t + near.last, end):
            made.missing.append((episode, last + 1, t + near.last))
    return made


def with_own_bytes(layout: Layout | None, found: Sequence[Row]) -> list[Row]:
    """Return rows that end with a place with only their own bytes instead of a block."""
    if layout is None or not found:
        return []
    seqs, blocks, places = ([row[i] for row in found] for i in (0, ARRAYS, -1))
    rows = rows_of_blocks(layout, blocks, places, seqs)
    return [
        (*row[:ARRAYS], own, *row[ARRAYS + 1 : -1]) for row, own in zip(found, rows, strict=True)
    ]
