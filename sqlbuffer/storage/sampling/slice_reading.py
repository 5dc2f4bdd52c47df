"""What is read of each candidate for a batch of arrays: a slice with the steps around it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.slices import Reach
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.rows.row_selection import IsKey


@dataclass(frozen=True, eq=False)
class SliceReading:
    """What is read of each candidate, in place of a `RowSelection`.

    Attributes:
        reach: The steps around it.
        is_key: Further condition for a step to be a key.
        finds_single: Find out if there are steps without an episode.
        has_numbers: The batch has declared fields that can be given late.
    """

    reach: Reach
    is_key: IsKey | None = None
    finds_single: bool = False
    has_numbers: bool = True


# The model version and the session of the steps of a slice.
Version = tuple[int | None, int | None]


def read_keys(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    reach: Reach,
    has_versions: bool,
    steps: StepLayout,
) -> tuple[list[tuple[Any, ...]], list[Version]]:
    """Return the steps that are there and can be keys, as `keys_of` takes them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: Numbers of steps.
        reach: Which steps to read around each.
        has_versions: Return the model versions and sessions of their slices too.
        steps: How the steps are stored.
    """
    if not seqs:
        return [], []
    rows = steps.read_keys(connection, buffer_id, seqs, reach, has_versions)
    if not has_versions:
        return rows, []
    return [row[:-2] for row in rows], [(row[-2], row[-1]) for row in rows]


def read_ranges(
    connection: Connection,
    buffer_id: int,
    ranges: Sequence[tuple[int, int, int]],
    reach: Reach,
    has_versions: bool,
    steps: StepLayout,
) -> tuple[list[tuple[Any, ...]], list[Version]]:
    """Return slices with the steps of ranges of episodes, (episode, first t, last t).

    Each slice is a tuple in the form of `Slice`.

    The other arguments are those of `read_keys`.
    """
    rows = steps.read_ranges(connection, buffer_id, ranges, reach, has_versions)
    if not has_versions:
        return rows, []
    return [row[:-2] for row in rows], [(row[-2], row[-1]) for row in rows]
