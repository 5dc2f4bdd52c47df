"""The two ways in which steps are stored, each as a row or in chunks, and what differs by them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, select, true

from sqlbuffer.storage.buffers.buffer_info import BufferInfo
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.chunks.first_step_left import first_step_left
from sqlbuffer.storage.chunks.step_relations import (
    chunk_steps,
    is_numbered_step,
    steps_at,
    steps_of_chunks,
)
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.rows import row_slices, step_rows
from sqlbuffer.storage.schema.number_keys import has_number, is_numbered
from sqlbuffer.storage.schema.planner import unindexed


@dataclass(frozen=True, eq=False)
class StepLayout:
    """How the steps of a buffer are stored; `layout_of` returns that of a buffer.

    Attributes:
        table: The table of the rows, or of the chunks.
        number: Name of the column with the number of a row, or of the first step of a chunk.
        mark: Name of a column whose value no other row, or chunk, of that number has.
        read_keys: Reads steps with those around them; see `chunks.sqlite.read_keys`.
        read_ranges: Reads ranges of episodes; see `chunks.sqlite.read_ranges`.
        read_rows: Reads whole steps as rows; see `step_rows.read_rows`. None where each is a row.
        of: Returns the table of the steps of a buffer, for statements without their bytes. It has
            the columns of `experiences` (of chunks without their arrays), and its conditions use
            the indexes of rows or of chunks.
            For None they do not: each step is then found by `is_numbered`.
        at: Returns such a table for steps with some numbers, and the condition for a step of it:
            `at(buffer_id, seqs)`, with a `SeqList`.
        is_numbered: Returns the condition for a step of `of` or an alias of it to have one number:
            `is_numbered(columns, buffer_id, number)`.
        first_left: Returns the expression for the number of the first step of an episode above a
            number: `first_left(buffer_id, episode_id, low)`.
        has_chunks: Steps are in chunks.
    """

    table: Table
    number: str
    mark: str
    read_keys: Callable[..., list[tuple[Any, ...]]]
    read_ranges: Callable[..., list[tuple[Any, ...]]]
    read_rows: Callable[..., list[tuple[Any, ...]]] | None
    of: Callable[[int | None], Any]
    at: Callable[[Any, Any], tuple[Any, Any]]
    is_numbered: Callable[[Any, Any, Any], Any]
    first_left: Callable[[Any, Any, Any], Any]
    has_chunks: bool


def layout_of(info: BufferInfo) -> StepLayout:
    """Return how the steps of a buffer are stored."""
    return CHUNKS if info.has_chunks else ROWS


def steps_of(info: BufferInfo) -> Any:
    """Return the table of the steps of a buffer; see `StepLayout.of`."""
    return layout_of(info).of(info.id)


def _first_row_left(buffer_id: Any, episode_id: Any, low: Any) -> Any:
    step = experiences.alias("step")
    return (
        select(step.c.seq)
        .where(
            step.c.buffer_id == buffer_id,
            step.c.episode_id == episode_id,
            unindexed(step.c.seq) > low,
        )
        .order_by(step.c.t)
        .limit(1)
        .scalar_subquery()
    )


ROWS = StepLayout(
    table=experiences,
    number="seq",
    mark="inserted_at",
    read_keys=row_slices.read_keys,
    read_ranges=row_slices.read_ranges,
    read_rows=None,
    of=lambda buffer_id: experiences,
    at=lambda buffer_id, seqs: (experiences, has_number(experiences.c.seq, buffer_id, seqs)),
    is_numbered=lambda row, buffer_id, number: is_numbered(row.seq, buffer_id, number),
    first_left=_first_row_left,
    has_chunks=False,
)
CHUNKS = StepLayout(
    table=chunks,
    number="first_seq",
    mark="id",
    read_keys=by_database(sqlite=sqlite.read_keys, postgresql=postgresql.read_keys),
    read_ranges=by_database(sqlite=sqlite.read_ranges, postgresql=postgresql.read_ranges),
    read_rows=step_rows.read_rows,
    of=lambda buffer_id: chunk_steps if buffer_id is None else steps_of_chunks(buffer_id),
    at=lambda buffer_id, seqs: (steps_at(buffer_id, seqs), true()),
    is_numbered=is_numbered_step,
    first_left=first_step_left,
    has_chunks=True,
)
