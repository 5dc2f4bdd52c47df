"""Steps of chunks as rows with the columns of a `Record`, read by runs of their numbers."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.chunks.slices import Parts, blocks_of, records_in
from sqlbuffer.storage.chunks.step_columns import StepColumns
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.marks import Wanted, read_marks, runs_of
from sqlbuffer.storage.rows.stored_rows import Row, with_marks

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
