"""Steps of chunks as rows with the columns of a `Record`, read by runs of their numbers."""

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import orjson
from sqlalchemy import Connection

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.chunks.slices import Parts, blocks_of, records_in
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.marks import Wanted, read_marks, runs_of
from sqlbuffer.storage.rows.stored_rows import Row, with_marks
from sqlbuffer.storage.schema.column_types import listed

_Column = Sequence[Any]

_read_runs = by_database(sqlite=sqlite.read_runs, postgresql=postgresql.read_runs)
_PAYLOADS = ("state", "actions", "messages", "extra")
_SEQ_OF = itemgetter(0)
_NO_REWARD = struct.pack(">d", float("nan"))


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
    found = sorted(_read_runs(connection, buffer_id, runs_of(seqs), parts), key=_SEQ_OF)
    runs = _Runs._make(zip(*found, strict=True) if found else [()] * len(_Runs._fields))
    rows = list(zip(*_columns(runs, columns, parts), strict=True))
    if any(wanted):
        of = runs.seq, runs.n, runs.place
        marks = read_marks(connection, buffer_id, *of, wanted, has_chunks=True)
        rows = with_marks(rows, marks, columns)
    return rows


def _columns(runs: _Runs, columns: frozenset[str], parts: Parts) -> list[_Column]:
    """Return `seq` and the columns of the rows of runs."""
    made: dict[str, _Column] = {
        name: _spread(getattr(runs, name), runs.n) for name in columns & _SAME
    }
    made |= {name: _per_step(getattr(runs, name), runs) for name in columns & _PER_STEP}
    made |= {name: _flags_of(getattr(runs, name), runs) for name in columns & _FLAGS}
    places = [
        at for place, n in zip(runs.place, runs.n, strict=True) for at in range(place, place + n)
    ]
    firsts = _spread([seq - place for seq, place in zip(runs.seq, runs.place, strict=True)], runs.n)
    seqs = [first + place for first, place in zip(firsts, places, strict=True)]
    made["id"] = _ids_of(runs, seqs, places)
    made["step"] = _steps_of(runs, places)
    made["t"] = [
        None if first is None else first + place
        for first, place in zip(_spread(runs.t, runs.n), places, strict=True)
    ]
    made["execute_time"] = _times_of(runs, places)
    made["reward_t"] = _rewards_of(runs)
    if parts.payloads:
        made |= _payloads_of(runs, columns)
    none = (None,) * len(seqs)
    every = [
        seqs,
        *(made[name] if name in columns & made.keys() else none for name in Record._fields),
    ]
    return [*every, *_blocks_of(runs)] if parts.fields else every


_SAME = frozenset(
    {"task_id", "task_name", "agent_id", "pre_agent", "episode_key", "session_key", "model_version"}
)
_PER_STEP = frozenset({"adv_t", "v_t", "initial_priority"})
_FLAGS = frozenset({"terminated", "truncated"})


def _spread(column: _Column, counts: Sequence[int]) -> _Column:
    """Return the value of each run for each of its steps."""
    if len(column) == sum(counts):
        return column
    return [value for value, n in zip(column, counts, strict=True) for _ in range(n)]


def _per_step(column: _Column, runs: _Runs) -> _Column:
    """Return a value of each step; SQLite returns those of whole chunks."""
    if not any(values is not None for values in column):
        return (None,) * sum(runs.n)
    values: list[Any] = []
    for own, place, n in zip(column, runs.place, runs.n, strict=True):
        every = listed(own) if own is not None else (None,) * n
        values += every if len(every) == n else every[place : place + n]
    return values


def _flags_of(column: _Column, runs: _Runs) -> _Column:
    # An empty list means False at every step.
    flags = [
        (False,) * n if own in ("[]", []) else own for own, n in zip(column, runs.n, strict=True)
    ]
    return _per_step(flags, runs)


def _rewards_of(runs: _Runs) -> _Column:
    if not any(own is not None for own in runs.rewards):
        return (None,) * sum(runs.n)
    none = _NO_REWARD
    bytes_ = (none * n if r is None else r for r, n in zip(runs.rewards, runs.n, strict=True))
    rewards = np.frombuffer(b"".join(bytes_), ">f8").tolist()
    return [None if reward != reward else reward for reward in rewards]


def _ids_of(runs: _Runs, seqs: Sequence[int], places: Sequence[int]) -> _Column:
    chunks = _spread(runs.id, runs.n)
    ids = [f"{chunk}/{place}" for chunk, place in zip(chunks, places, strict=True)]
    given: dict[int, str] = {}  # by users
    for text in runs.ids:
        if text is not None:
            given |= {int(seq): id_ for seq, id_ in orjson.loads(text).items()}
    if not given:
        return ids
    return [given.get(seq, id_) for seq, id_ in zip(seqs, ids, strict=True)]


def _steps_of(runs: _Runs, places: Sequence[int]) -> _Column:
    firsts = _spread(runs.step, runs.n)
    steps = [first + place for first, place in zip(firsts, places, strict=True)]
    given = _per_step(runs.steps, runs)
    return [step if own is None else own for step, own in zip(steps, given, strict=True)]


def _times_of(runs: _Runs, places: Sequence[int]) -> _Column:
    firsts, lasts, sizes = (
        _spread(column, runs.n) for column in (runs.first_time, runs.last_time, runs.n_steps)
    )
    times = [
        first if not place or first is None else first + (last - first) * place / (n_steps - 1)
        for first, last, place, n_steps in zip(firsts, lasts, places, sizes, strict=True)
    ]
    if not any(own is not None for own in runs.times):
        return times
    has_own = _spread([own is not None for own in runs.times], runs.n)
    own_times = _per_step(runs.times, runs)
    return [own if has else time for own, has, time in zip(own_times, has_own, times, strict=True)]


def _payloads_of(runs: _Runs, columns: frozenset[str]) -> dict[str, _Column]:
    """Return the JSON of steps, and the arrays to which it refers."""
    trees: list[Any] = []
    arrays: list[Any] = []
    columns_of = zip(runs.payloads, runs.payload_arrays, runs.place, runs.n, strict=True)
    for text, own_arrays, place, n in columns_of:
        own = [None] * n if text is None else orjson.loads(text)
        own = own if len(own) == n else own[place : place + n]
        trees += own
        if own_arrays is None or n == 1:
            arrays += [own_arrays] * n
        else:
            ranges = [tree.get("arrays") if tree else None for tree in own]
            arrays += [at and own_arrays[at[0] : at[0] + at[1]] for at in ranges]
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
