"""What is read of each candidate for a batch of arrays: a slice with the steps around it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.slices import Reach, Slice, SliceColumns, keys_of
from sqlbuffer.storage.marks import Marks, Wanted, read_marks
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.rows.row_selection import IsKey


@dataclass(frozen=True, eq=False)
class SliceReading:
    """What is read of each candidate, in place of a `RowSelection`.

    Attributes:
        reach: The steps around it.
        is_key: Further condition for a step to be a key.
    """

    reach: Reach
    is_key: IsKey | None = None


def read_keys(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    reach: Reach,
    wanted: Wanted,
    steps: StepLayout,
) -> tuple[list[tuple[Any, ...]], Marks]:
    """Return the steps that are there and can be keys, as `keys_of` takes them, and their marks.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: Numbers of steps.
        reach: Which steps to read around each.
        wanted: Marks to read.
        steps: How the steps are stored.
    """
    if not seqs:
        return [], Marks()
    rows = steps.read_keys(connection, buffer_id, seqs, reach, wanted.versions)
    if not any(wanted):
        return rows, Marks()
    rows, versions = _without_versions(rows, wanted)
    keys = keys_of(rows, reach)
    runs = keys.slice_seq, keys.n, keys.place
    marks = read_marks(connection, buffer_id, *runs, wanted, steps.has_chunks)
    marks.versions = [(first, n, *own) for first, n, own in zip(*runs[:2], versions, strict=False)]
    return rows, marks


def read_ranges(
    connection: Connection,
    buffer_id: int,
    ranges: Sequence[tuple[int, int, int]],
    reach: Reach,
    wanted: Wanted,
    steps: StepLayout,
) -> tuple[list[Slice], Marks]:
    """Return slices with the steps of ranges of episodes, (episode, first t, last t).

    The other arguments are those of `read_keys`.
    """
    rows = steps.read_ranges(connection, buffer_id, ranges, reach, wanted.versions)
    rows, versions = _without_versions(rows, wanted)
    slices = list(map(Slice._make, rows))
    if not slices or not any(wanted):
        return slices, Marks()
    columns = SliceColumns(*zip(*slices, strict=True))
    runs = columns.seq, columns.n, columns.place
    marks = read_marks(connection, buffer_id, *runs, wanted, steps.has_chunks)
    marks.versions = [(first, n, *own) for first, n, own in zip(*runs[:2], versions, strict=False)]
    return slices, marks


def _without_versions(
    rows: list[tuple[Any, ...]], wanted: Wanted
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return rows without the model version and the session at their ends, and these."""
    if not wanted.versions:
        return rows, []
    return [row[:-2] for row in rows], [row[-2:] for row in rows]
