"""The two ways in which steps are stored, each as a row or in chunks, and what differs by them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, select

from sqlbuffer.storage.buffers.buffer_info import BufferInfo
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.chunks.first_step_left import first_step_left
from sqlbuffer.storage.chunks.step_relations import steps_at
from sqlbuffer.storage.chunks.step_statements import over
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.rows import row_slices
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
        selected: Returns a select over `experiences` for the steps with some numbers:
            `selected(statement, buffer_id, seqs)`.
        first_left: Returns the expression for the number of the first step of an episode above a
            number: `first_left(buffer_id, episode_id, low)`.
        has_chunks: Steps are in chunks.
    """

    table: Table
    number: str
    mark: str
    read_keys: Callable[..., list[tuple[Any, ...]]]
    read_ranges: Callable[..., list[tuple[Any, ...]]]
    selected: Callable[[Any, Any, Any], Any]
    first_left: Callable[[Any, Any, Any], Any]
    has_chunks: bool


def layout_of(info: BufferInfo) -> StepLayout:
    """Return how the steps of a buffer are stored."""
    return CHUNKS if info.has_chunks else ROWS


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
    experiences,
    "seq",
    "inserted_at",
    row_slices.read_keys,
    row_slices.read_ranges,
    lambda statement, buffer_id, seqs: statement,
    _first_row_left,
    has_chunks=False,
)
CHUNKS = StepLayout(
    chunks,
    "first_seq",
    "id",
    by_database(sqlite=sqlite.read_keys, postgresql=postgresql.read_keys),
    by_database(sqlite=sqlite.read_ranges, postgresql=postgresql.read_ranges),
    lambda statement, buffer_id, seqs: over(statement, steps_at(buffer_id, seqs)),
    first_step_left,
    has_chunks=True,
)
