"""The two ways in which steps are stored, each as a row or in chunks, and their differences.

Rows are read with their late and replaced values, or as slices of one step.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, select, true

from sqlbuffer.encoding.records import Record, decode_reals
from sqlbuffer.steps import PAYLOADS
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
from sqlbuffer.storage.chunks.slices import Parts, Reach, Slice, StepColumns, blocks_of, records_in
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.dialects import by_database, number_array, number_list
from sqlbuffer.storage.episodes import EpisodeKey
from sqlbuffer.storage.marks import Marks, Wanted, read_marks, runs_of
from sqlbuffer.storage.messages import whole_payloads
from sqlbuffer.storage.schema.expressions import unindexed
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS, has_number, is_numbered

# Positions in `statements.ROW_COLUMNS`: seq, then the columns of a record.
TASK_ID, EPISODE_KEY, T, STEP, EXECUTE_TIME = (
    1 + Record._fields.index(name)
    for name in ("task_id", "episode_key", "t", "step", "execute_time")
)

# A stored row: seq, then the fields of a record.
Row = tuple[Any, ...]


# Place of each column of a record in a row.
PLACES = {name: 1 + i for i, name in enumerate(Record._fields)}


def episodes_of(rows: Iterable[Row]) -> set[EpisodeKey]:
    """Return the episodes of rows."""
    return {(row[EPISODE_KEY], row[TASK_ID]) for row in rows if row[EPISODE_KEY] is not None}


def with_values(row: Row, values: Mapping[int, Any]) -> Row:
    """Return a row with other values at some places."""
    changed = list(row)
    for place, value in values.items():
        if place < len(changed):  # a row without typed fields ends before its block
            changed[place] = value
    return tuple(changed)


# Columns of `Marks`.
_REPLACED, _LATE = ("reward_t", "terminated", "truncated"), ("reward_t", "adv_t", "v_t", "fields")
# Places behind the columns of a record, in rows with typed fields.
_BLOCK, _BLOCK_PLACE = 1 + len(Record._fields), 2 + len(Record._fields)


def with_marks(rows: list[Row], marks: Marks, columns: Set[str]) -> list[Row]:
    """Return rows without deleted steps, with late and replaced values.

    `fields` gets the late fields only: the others are in the bytes of the step.

    Args:
        rows: The rows.
        marks: What became of their steps.
        columns: Columns of a `Record` that were read; the others stay as they are.
    """
    deleted = set(marks.deleted)
    changed: dict[int, dict[int, Any]] = {}
    for seq, block, *values in marks.replaced:
        changed[seq] = {
            PLACES[name]: value
            for name, value in zip(_REPLACED, values, strict=True)
            if name in columns
        } | {_BLOCK: block, _BLOCK_PLACE: 0}
    for seq, *values in marks.labels:
        changed.setdefault(seq, {}).update(_given_values(_LATE, values, {*columns, "fields"}))
    for seq, extra in marks.extras:
        changed.setdefault(seq, {}).update(_given_values(("extra",), (extra,), columns))
    return [
        with_values(row, changed[row[0]]) if row[0] in changed else row
        for row in rows
        if row[0] not in deleted
    ]


def _given_values(names: Sequence[str], values: Sequence[Any], columns: Set[str]) -> dict[int, Any]:
    return {
        PLACES[name]: value
        for name, value in zip(names, values, strict=True)
        if name in columns and value is not None
    }


def task_order(row: Row) -> tuple[Any, ...]:
    """Order by episode and the place in it; steps without one by step, time and insert.

    Missing values come first.
    """
    seq, episode, t, step, time = row[0], row[EPISODE_KEY], row[T], row[STEP], row[EXECUTE_TIME]
    return (
        episode is not None,
        episode or "",
        -1 if episode is None or t is None else t,
        step,
        float("-inf") if time is None else time,
        seq,
    )


_REWARD = struct.Struct(">d")
# Without both the row has no place in an episode.
_HAS_PLACE = "x.episode_id IS NOT NULL AND x.t IS NOT NULL"
_OWN = f"""x.seq, x.reward_t, x.terminated, x.truncated,
    CASE WHEN x.extra IS NOT NULL THEN CAST(x.extra AS text) END,
    CASE WHEN {_HAS_PLACE} THEN x.episode_id END, CASE WHEN {_HAS_PLACE} THEN x.t END,
    x.model_version, x.session_id"""
_KEY = f"""SELECT {_OWN}, x.task_id, x.agent_id, x.step,
    e.key, e.length, e.status, e."return", e.reward,
    CASE WHEN x.t + {{within}} >= e.length THEN e.final_arrays END"""
_ON = f"LEFT JOIN episodes e ON e.id = x.episode_id AND {_HAS_PLACE}"
_KEYS = {
    "sqlite": f"""{_KEY.format(within=":within")}
FROM json_each(:seqs) w CROSS JOIN experiences x ON x.key = (:id << {NUMBER_BITS} | w.value) {_ON}
WHERE :stride = 1 OR x.t % :stride = 0""",
    "postgresql": f"""{_KEY.format(within="%(within)s::integer")}
FROM unnest(%(seqs)s::bigint[]) AS w(seq)
CROSS JOIN LATERAL (SELECT * FROM experiences r
    WHERE r.buffer_id = %(id)s::integer AND r.seq = w.seq OFFSET 0) x {_ON}
WHERE %(stride)s = 1 OR mod(x.t, %(stride)s) = 0""",
}
_RANGES = {
    "sqlite": f"""SELECT {_OWN} FROM json_each(:ranges) w
CROSS JOIN experiences x ON x.buffer_id = :id AND x.episode_id = json_extract(w.value, '$[0]')
    AND x.t BETWEEN json_extract(w.value, '$[1]') AND json_extract(w.value, '$[2]')""",
    "postgresql": f"""SELECT {_OWN}
FROM unnest(%(episodes)s::bigint[], %(firsts)s::integer[], %(lasts)s::integer[])
    AS w(episode_id, first_t, last_t)
CROSS JOIN LATERAL (SELECT * FROM experiences r WHERE r.buffer_id = %(id)s::integer
    AND r.episode_id = w.episode_id AND r.t BETWEEN w.first_t AND w.last_t OFFSET 0) x""",
}


def read_keys(
    connection: Connection, buffer_id: int, seqs: Sequence[int], reach: Reach, has_versions: bool
) -> list[tuple[Any, ...]]:
    """Return rows as keys; see `slice_table.read_keys`."""
    parameters = {
        "id": buffer_id, "within": reach.final_within, "stride": reach.stride,
        "seqs": _list(connection, seqs),
    }  # fmt: skip
    keys = []
    for row in _run(connection, _KEYS, parameters):
        one, (task, agent, step), episode = _slice(row), row[9:12], row[12:]
        versions = row[7:9] if has_versions else ()
        of_row = one.seq, task, agent, step
        if reach.is_alone:
            keys.append((*of_row, one.seq, *one[5:], *versions))
        else:
            place = one.t, one.seq, 1, one.episode_id
            keys.append((*of_row, *place, *one[5:], *episode, *versions))
    return keys


def read_ranges(
    connection: Connection,
    buffer_id: int,
    ranges: Sequence[tuple[int, int, int]],
    reach: Reach,
    has_versions: bool,
) -> list[tuple[Any, ...]]:
    """Return the rows of ranges of episodes as slices; see `slice_table.read_ranges`."""
    parameters: dict[str, Any] = {"id": buffer_id, "ranges": json.dumps(ranges)}
    if connection.dialect.name == "postgresql":
        names = ("episodes", "firsts", "lasts")
        parameters |= dict(zip(names, map(number_array, zip(*ranges, strict=True)), strict=True))
        del parameters["ranges"]
    rows = _run(connection, _RANGES, parameters)
    return [(*_slice(row), *(row[7:9] if has_versions else ())) for row in rows]


def _slice(row: Sequence[Any]) -> Slice:
    seq, reward, terminated, truncated, extra, episode, t, *_ = row
    if reward is None:
        tags = {} if extra is None or '"$reals"' not in extra else decode_reals(extra)
        reward = tags.get("reward_t", float("nan"))
    is_told = terminated is not None or truncated is not None
    ends = bytes([bool(terminated) | bool(truncated) << 1]) if is_told else None
    return Slice(seq, episode, t, 0, 1, _REWARD.pack(reward), ends, 1, None, b"", 0)


def _list(connection: Connection, seqs: Sequence[int]) -> str:
    is_sqlite = connection.dialect.name == "sqlite"
    return number_list(seqs) if is_sqlite else number_array(seqs)


def _run(
    connection: Connection, texts: dict[str, str], parameters: dict[str, Any]
) -> list[tuple[Any, ...]]:
    return fetch(connection, texts[connection.dialect.name], parameters)


_Column = Sequence[Any]

_read_runs = by_database(sqlite=sqlite.read_runs, postgresql=postgresql.read_runs)
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
    group_key: _Column
    parent_key: _Column
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
    layout: _Column


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
        Rows (seq, *Record), which end with the block of bytes, the step's place in it and the
        number of its layout where typed fields are read. `fields` has those that were given late.
    """
    if not seqs:
        return []
    parts = Parts(has_fields, not columns.isdisjoint(PAYLOADS), "arrays" in columns)
    runs_at = runs_of(seqs, _GAP)
    slices = sorted(_read_runs(connection, buffer_id, runs_at, parts), key=_SEQ_OF)
    runs = _Runs._make(zip(*slices, strict=True) if slices else [()] * len(_Runs._fields))
    if "messages" in columns:
        runs = runs._replace(payloads=whole_payloads(connection, buffer_id, runs.payloads))
    rows = list(zip(*_columns(runs, columns, parts), strict=True))
    wanted_seqs = frozenset(seqs)
    if sum(n for _, n in runs_at) > len(wanted_seqs):
        rows = [row for row in rows if row[0] in wanted_seqs]
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
    {
        "task_id",
        "task_name",
        "agent_id",
        "pre_agent",
        "episode_key",
        "group_key",
        "parent_key",
        "session_key",
        "model_version",
    }
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
    ids: dict[int, str] = {}
    for text in runs.ids:
        if text is not None:
            ids |= {int(seq): id_ for seq, id_ in orjson.loads(text).items()}
    return {i: ids[seq] for i, seq in enumerate(seqs) if seq in ids} if ids else {}


def _payloads_of(runs: _Runs, trees: Sequence[Any], columns: frozenset[str]) -> dict[str, _Column]:
    """Return the JSON of steps as texts, and the bytes to which it refers."""
    arrays: list[Any] = []
    for raw, n in zip(runs.payload_arrays, runs.n, strict=True):
        if raw is None or n == 1:
            arrays += [raw] * n
        else:
            ranges = (tree and tree.get("arrays") for tree in trees[len(arrays) : len(arrays) + n])
            arrays += [at and raw[at[0] : at[0] + at[1]] for at in ranges]
    made: dict[str, _Column] = {"arrays": arrays}
    for name in columns.intersection(PAYLOADS):
        values = [tree.get(name) if tree else None for tree in trees]
        made[name] = [None if value is None else orjson.dumps(value).decode() for value in values]
    return made


def _blocks_of(runs: _Runs) -> tuple[_Column, _Column, _Column]:
    """Return the block of each step, its place there, and the number of its layout."""
    blocks: list[Any] = []
    places: list[int] = []
    numbers: list[int] = []
    columns = zip(*runs[-4:], runs.place, runs.n, strict=True)
    for block_steps, offsets, records, number, place, n in columns:
        numbers += [number] * n
        if offsets is None:
            blocks += [records] if n == 1 else records_in(n, records)
            places += [0] * n
        else:
            blocks += blocks_of(place, n, block_steps, offsets, records)
            places += [at % block_steps for at in range(place, place + n)]
    return blocks, places, numbers


@dataclass(frozen=True, eq=False)
class StepLayout:
    """How the steps of a buffer are stored; `layout_of` returns that of a buffer.

    Attributes:
        table: The table of the rows, or of the chunks.
        number: Name of the column with the number of a row, or of the first step of a chunk.
        mark: Name of a column whose value no other row, or chunk, of that number has.
        read_keys: Reads steps with those around them; see `chunks.sqlite.read_keys`.
        read_ranges: Reads ranges of episodes; see `chunks.sqlite.read_ranges`.
        read_rows: Reads whole steps as rows; see `read_rows`. None where each is a row.
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
    read_keys=read_keys,
    read_ranges=read_ranges,
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
