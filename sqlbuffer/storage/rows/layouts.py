"""The two ways in which steps are stored, each as a row or in chunks, and their differences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, select, true

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.chunks.relations import (
    chunk_steps,
    first_step_left,
    is_numbered_step,
    steps_at,
    steps_of_chunks,
)
from sqlbuffer.storage.chunks.slices import Parts, StepColumns, blocks_of, records_in
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.marks import Wanted, read_marks, runs_of
from sqlbuffer.storage.rows import row_slices
from sqlbuffer.storage.rows.stored_rows import Row, with_marks
from sqlbuffer.storage.schema.number_keys import has_number, is_numbered
from sqlbuffer.storage.schema.planner import unindexed

_Column = Sequence[Any]

_read_runs = by_database(sqlite=sqlite.read_runs, postgresql=postgresql.read_runs)
_PAYLOADS = ("state", "actions", "messages", "extra")
_SEQ_OF = itemgetter(0)
# Each run takes its part of the bytes of a chunk: where every second step was deleted, a chunk is
# read once.
_GAP = 2


class _Runs(NamedTuple):
    """Runs of consecutive steps of a chunk, column by column.

    The columns of the chunk are those of the table `chunks`; PostgreSQL returns of a list the part
    of the run, and so do both of `rewards`.
    """

    seq: _Column
    place: Sequence[int]
    n: Sequence[int]
    n_steps: Sequence[int]
    id: _Column
    task_id: _Column
    task_name: _Column
    agent_id: _Column
    pre_agent: _Column
    step: _Column
    steps: _Column
    t: _Column
    first_time: _Column
    last_time: _Column
    times: _Column
    episode_key: _Column
    session_key: _Column
    model_version: _Column
    rewards: _Column
    adv_t: _Column
    v_t: _Column
    terminated: _Column
    truncated: _Column
    initial_priority: _Column
    ids: _Column
    payloads: _Column
    payload_arrays: _Column
    block_steps: _Column
    offsets: _Column
    records: _Column


def read_rows(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    columns: frozenset[str],
    wanted: Wanted,
    has_fields: bool,
) -> list[Row]:
    """Return the steps with some numbers that are there, in the order of their numbers.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: The numbers.
        columns: Columns of a `Record` to read; the others are None.
        wanted: Marks to read.
        has_fields: Read the typed fields too.

    Returns:
        Rows (seq, *Record), which end with the block of bytes and the step's place in it where
        typed fields are read. `fields` has the fields that were given late.
    """
    if not seqs:
        return []
    parts = Parts(has_fields, not columns.isdisjoint(_PAYLOADS), "arrays" in columns)
    runs_at = runs_of(seqs, _GAP)
    found = sorted(_read_runs(connection, buffer_id, runs_at, parts), key=_SEQ_OF)
    runs = _Runs._make(zip(*found, strict=True) if found else [()] * len(_Runs._fields))
    rows = list(zip(*_columns(runs, columns, parts), strict=True))
    own = frozenset(seqs)
    if sum(n for _, n in runs_at) > len(own):
        rows = [row for row in rows if row[0] in own]
    if any(wanted):
        marks = read_marks(connection, buffer_id, runs_of(seqs), wanted, has_chunks=True)
        rows = with_marks(rows, marks, columns)
    return rows


def _columns(runs: _Runs, columns: frozenset[str], parts: Parts) -> list[_Column]:
    """Return `seq` and the columns of the rows of runs."""
    of = StepColumns(runs._asdict(), runs.place, runs.n)
    firsts = np.array(runs.seq, np.int64) - np.array(runs.place, np.int64)
    seqs = (firsts[of.run_of] + of.place).tolist()
    made: dict[str, _Column] = {name: of.spread(name) for name in columns & _SAME}
    for name in columns & _REALS:
        reals = of.reals(name)
        if reals is not None:
            made[name] = _or_none(reals)
    for name in columns & _FLAGS:
        flags, is_missing = of.flags(name)
        pairs = zip(flags.tolist(), is_missing.tolist(), strict=True)
        made[name] = [None if missing else flag for flag, missing in pairs]
    made["id"] = of.ids(_given_ids(runs, seqs)).tolist()
    made["step"] = of.steps().tolist()
    made["t"] = [None if t < 0 else t for t in of.ts().tolist()]
    made["execute_time"] = _or_none(of.times())
    made["reward_t"] = _or_none(of.rewards())
    if parts.payloads:
        made |= _payloads_of(runs, of.payloads(), columns)
    none = (None,) * len(seqs)
    every = [
        seqs,
        *(made[name] if name in columns & made.keys() else none for name in Record._fields),
    ]
    return [*every, *_blocks_of(runs)] if parts.fields else every


_SAME = frozenset(
    {"task_id", "task_name", "agent_id", "pre_agent", "episode_key", "session_key", "model_version"}
)
_REALS = frozenset({"adv_t", "v_t", "initial_priority"})
_FLAGS = frozenset({"terminated", "truncated"})


def _or_none(reals: NDArray[np.float64]) -> _Column:
    """Return numbers with None in place of NaN, which the JSON of a step holds."""
    values: list[Any] = reals.tolist()
    if np.isnan(reals).any():
        return [None if value != value else value for value in values]
    return values


def _given_ids(runs: _Runs, seqs: Sequence[int]) -> dict[int, str]:
    """Return the ids that users gave, by position among the steps."""
    given: dict[int, str] = {}
    for text in runs.ids:
        if text is not None:
            given |= {int(seq): id_ for seq, id_ in orjson.loads(text).items()}
    return {i: given[seq] for i, seq in enumerate(seqs) if seq in given} if given else {}


def _payloads_of(runs: _Runs, trees: Sequence[Any], columns: frozenset[str]) -> dict[str, _Column]:
    """Return the JSON of steps as texts, and the bytes to which it refers."""
    arrays: list[Any] = []
    for own, n in zip(runs.payload_arrays, runs.n, strict=True):
        if own is None or n == 1:
            arrays += [own] * n
        else:
            ranges = (tree and tree.get("arrays") for tree in trees[len(arrays) : len(arrays) + n])
            arrays += [at and own[at[0] : at[0] + at[1]] for at in ranges]
    made: dict[str, _Column] = {"arrays": arrays}
    for name in columns.intersection(_PAYLOADS):
        values = [tree.get(name) if tree else None for tree in trees]
        made[name] = [None if value is None else orjson.dumps(value).decode() for value in values]
    return made


def _blocks_of(runs: _Runs) -> tuple[_Column, _Column]:
    """Return the block of each step, and its place there."""
    blocks: list[Any] = []
    places: list[int] = []
    columns = zip(*runs[-3:], runs.place, runs.n, strict=True)
    for block_steps, offsets, records, place, n in columns:
        if offsets is None:
            blocks += [records] if n == 1 else records_in(n, records)
            places += [0] * n
        else:
            blocks += blocks_of(place, n, block_steps, offsets, records)
            places += [at % block_steps for at in range(place, place + n)]
    return blocks, places


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
    read_rows=read_rows,
    of=lambda buffer_id: chunk_steps if buffer_id is None else steps_of_chunks(buffer_id),
    at=lambda buffer_id, seqs: (steps_at(buffer_id, seqs), true()),
    is_numbered=is_numbered_step,
    first_left=first_step_left,
    has_chunks=True,
)
