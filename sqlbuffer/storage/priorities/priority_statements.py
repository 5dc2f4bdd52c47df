"""Selects over the priorities of a buffer, and the decoding of their columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    Integer,
    Select,
    bindparam,
    case,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.chunks.step_lookup import pg_chunk_of
from sqlbuffer.storage.chunks.tables import MOST_STEPS
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.priorities.tables import priorities, priority_blocks
from sqlbuffer.storage.rows.row_selection import BUFFER_ID, LOW, SEQS
from sqlbuffer.storage.rows.statements import in_order
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

FIRST, LAST, SIZE, HIGH, BLOCKS, LIMIT, OFFSET = (
    "first", "last", "size", "high", "blocks", "n", "skipped",
)  # fmt: skip

_HEADER_BYTES = 20
_NULLS = ",".join(["null"] * MOST_STEPS)


class packed(FunctionElement[Any]):
    """A column whose values PostgreSQL sends as one value; `arrays` unpacks it.

    Sending and parsing thousands of rows would take longer than finding them.
    """

    inherit_cache = True


@compiles(packed, "postgresql")
def _pg_packed(element: packed, compiler: Any, **kw: Any) -> str:
    return f"array_send(array_agg({compiler.process(element.clauses, **kw)}))"


@compiles(packed, "sqlite")
def _sqlite_packed(element: packed, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


class rows_of_blocks(FunctionElement[Any]):
    """A table of the rows of some blocks, with the columns `seq` and `priority`.

    The arguments are `rows_of_blocks(buffer_id, blocks, size, low, high)`. Each block is looked up,
    and each priority: PostgreSQL without statistics would rather read both tables.
    """

    inherit_cache = True


class rows_of_numbers(FunctionElement[Any]):
    """A table of some numbers of the window, with the columns `seq` and `priority`.

    The arguments are `rows_of_numbers(buffer_id, seqs)`. The priority is 0 if there is no row. A
    priority is deleted with its row, so if there is one, the row is not looked up: that takes a
    third less on SQLite, and two fifths less on PostgreSQL.
    """

    inherit_cache = True


# A buffer has rows or chunks: a search of the other table finds no row.
_OF_NUMBER = (
    "coalesce((SELECT p.priority FROM priorities p WHERE p.buffer_id = {0} AND p.seq = {1}), "
    "(SELECT coalesce(e.initial_priority, 1.0) FROM experiences e WHERE {2}), {3}, 0.0)"
)
_ITS_PRIORITY = (
    "coalesce((SELECT p.priority FROM priorities p WHERE p.buffer_id = e.buffer_id "
    "AND p.seq = e.seq), e.initial_priority, 1.0)"
)
_ITS_PRIORITY_IN_CHUNK = (
    "coalesce((SELECT p.priority FROM priorities p WHERE p.buffer_id = c.buffer_id "
    "AND p.seq = c.first_seq + i.{0}), i.{1}, 1.0)"
)
_IS_THERE = (
    "NOT EXISTS (SELECT 1 FROM deleted_steps d "
    "WHERE d.buffer_id = c.buffer_id AND d.seq = c.first_seq + i.{0}{1})"
)


@compiles(rows_of_numbers, "postgresql")
def _pg_rows_of_numbers(element: rows_of_numbers, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = _processed(element, compiler, kw)
    its_row = f"e.buffer_id = {buffer_id} AND e.seq = k.seq"
    its_step = (
        "(SELECT coalesce(c.initial_priority[k.seq - c.first_seq + 1], 1.0) FROM (SELECT "
        "x.first_seq, x.n_steps, x.initial_priority FROM chunks x "
        f"{pg_chunk_of('x', buffer_id, 'k.seq')}) AS c WHERE k.seq < c.first_seq + c.n_steps "
        "AND NOT EXISTS (SELECT 1 FROM deleted_steps d "
        f"WHERE d.buffer_id = {buffer_id} AND d.seq = k.seq OFFSET 0))"
    )
    priority = _OF_NUMBER.format(buffer_id, "k.seq", its_row, its_step)
    return (
        f"(SELECT k.seq, {priority} AS priority "
        f"FROM unnest(CAST({seqs} AS bigint[])) AS k(seq) OFFSET 0)"
    )


@compiles(rows_of_numbers, "sqlite")
def _sqlite_rows_of_numbers(element: rows_of_numbers, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = _processed(element, compiler, kw)
    # Numbers of the window, or without a row.
    its_row = f"e.key = {buffer_id} << {NUMBER_BITS} | k.value"
    its_step = sqlite_initial_priority(buffer_id, "k.value")
    priority = _OF_NUMBER.format(buffer_id, "k.value", its_row, its_step)
    return f"(SELECT k.value AS seq, {priority} AS priority FROM json_each({seqs}) AS k)"


@compiles(rows_of_blocks, "postgresql")
def _pg_rows_of_blocks(element: rows_of_blocks, compiler: Any, **kw: Any) -> str:
    buffer_id, blocks, size, low, high = _processed(element, compiler, kw)
    first, end = f"k.block * {size}", f"(k.block + 1) * {size}"
    inside = f"BETWEEN greatest({first}, {low} + 1) AND least({end} - 1, {high})"
    near = f"c.first_seq > {first} - {MOST_STEPS} AND c.first_seq < {end}"
    of_step, is_there = (
        _ITS_PRIORITY_IN_CHUNK.format("place", "p"),
        _IS_THERE.format("place", " OFFSET 0"),
    )
    return (
        f"(SELECT f.seq, f.priority FROM unnest(CAST({blocks} AS bigint[])) AS k(block) "
        f"CROSS JOIN LATERAL (SELECT e.seq, {_ITS_PRIORITY} AS priority FROM experiences e "
        f"WHERE e.buffer_id = {buffer_id} AND e.seq >= {first} "
        f"AND e.seq < {end} AND e.seq > {low} AND e.seq <= {high} "
        f"UNION ALL SELECT c.first_seq + i.place, {of_step} FROM chunks c CROSS JOIN LATERAL "
        "ROWS FROM (generate_series(0, c.n_steps - 1), unnest(c.initial_priority)) AS i(place, p) "
        f"WHERE c.buffer_id = {buffer_id} AND {near} AND c.first_seq + i.place {inside} "
        f"AND {is_there} OFFSET 0) f)"
    )


@compiles(rows_of_blocks, "sqlite")
def _sqlite_rows_of_blocks(element: rows_of_blocks, compiler: Any, **kw: Any) -> str:
    buffer_id, blocks, size, low, high = _processed(element, compiler, kw)
    of_buffer = f"({buffer_id} << {NUMBER_BITS})"
    first, last = f"max(k.value * {size}, {low} + 1)", f"min((k.value + 1) * {size} - 1, {high})"
    return (
        f"(SELECT e.seq, {_ITS_PRIORITY} AS priority FROM json_each({blocks}) AS k "
        "CROSS JOIN experiences AS e "
        f"WHERE e.key >= {of_buffer} + {first} AND e.key <= {of_buffer} + {last} "
        f"UNION ALL {sqlite_steps_between(f'json_each({blocks}) AS k', buffer_id, first, last)})"
    )


def sqlite_initial_priority(buffer_id: str, seq: str) -> str:
    """Return SQLite's expression for the initial priority of a chunk's step; null for no step."""
    of_buffer = f"({buffer_id} << {NUMBER_BITS})"
    return (
        "(SELECT coalesce(json_extract("
        f"c.initial_priority, '$[' || ({seq} - c.first_seq) || ']'), 1.0) "
        "FROM chunks c WHERE c.key = (SELECT max(x.key) FROM chunks x "
        f"WHERE x.key > {of_buffer} AND x.key <= {of_buffer} + {seq}) "
        f"AND {seq} < c.first_seq + c.n_steps AND NOT EXISTS (SELECT 1 FROM deleted_steps d "
        f"WHERE d.buffer_id = {buffer_id} AND d.seq = {seq}))"
    )


def sqlite_steps_between(source: str, buffer_id: str, first: str, last: str) -> str:
    """Return SQLite's select of (seq, priority) of the steps of chunks between two numbers.

    Args:
        source: A table that the numbers may come from.
        buffer_id: The buffer.
        first: The smallest number.
        last: The largest number.
    """
    of_buffer, seq = f"({buffer_id} << {NUMBER_BITS})", "c.first_seq + i.key"
    of_step, is_there = _ITS_PRIORITY_IN_CHUNK.format("key", "value"), _IS_THERE.format("key", "")
    nulls = f"'[' || substr('{_NULLS}', 1, 5 * c.n_steps - 1) || ']'"
    # All values of a list in one pass: each alone would be searched from the beginning. By the key,
    # and by no index of the buffer.
    return (
        f"SELECT {seq} AS seq, {of_step} AS priority FROM {source} CROSS JOIN chunks AS c "
        f"CROSS JOIN json_each(coalesce(c.initial_priority, {nulls})) AS i "
        f"WHERE c.key > {of_buffer} + {first} - {MOST_STEPS} AND c.key <= {of_buffer} + {last} "
        f"AND +c.buffer_id = {buffer_id} AND {seq} >= {first} AND {seq} <= {last} AND {is_there}"
    )


def _processed(element: FunctionElement[Any], compiler: Any, kw: Any) -> list[str]:
    kw = {name: value for name, value in kw.items() if name not in ("asfrom", "from_linter")}
    return [compiler.process(clause, **kw) for clause in element.clauses]


def _all_packed(statement: Select[Any]) -> Select[Any]:
    found = statement.subquery("found")
    return select(*(packed(each) for each in found.c))


def _number(name: str) -> Any:
    return bindparam(name, type_=BigInteger())


_buffer_id = bindparam(BUFFER_ID, type_=Integer())


def _initial(steps: Any) -> Any:
    return func.coalesce(steps.c.initial_priority, literal_column("1.0"), type_=Double())


def _priority(steps: Any) -> Any:
    updated = (
        select(priorities.c.priority)
        .where(priorities.c.buffer_id == steps.c.buffer_id, priorities.c.seq == steps.c.seq)
        .correlate(steps)
        .scalar_subquery()
    )
    return func.coalesce(updated, _initial(steps), type_=Double())


_blocks = priority_blocks.c
_those_between = (
    (_blocks.buffer_id == _buffer_id)
    & (_blocks.block >= _number(FIRST))
    & (_blocks.block <= _number(LAST))
)
# (block, weight_sum, max_priority) of blocks from `first` to `last`, in order. The last one is
# negative if it is only an upper bound: with one column less SQLite takes a quarter less time.
SUMMARIES = _all_packed(
    select(
        _blocks.block,
        _blocks.weight_sum,
        case((_blocks.max_is_upper_bound, -_blocks.max_priority), else_=_blocks.max_priority).label(
            "top"
        ),
    )
    .where(_those_between)
    .order_by(_blocks.block)
)
# (block, min_priority, min_is_lower_bound) of the blocks with the smallest positive priorities, in
# that order.
LEAST = (
    select(_blocks.block, _blocks.min_priority, _blocks.min_is_lower_bound)
    .where(_those_between, _blocks.min_priority.is_not(None))
    .order_by(_blocks.min_priority, _blocks.block)
    .limit(_number(LIMIT))
    .offset(_number(OFFSET))
)
_found: tuple[Any, ...] = (column("seq", BigInteger()), column("priority", Double()))
_in_blocks = rows_of_blocks(
    _buffer_id, bindparam(BLOCKS, type_=SeqList()), _number(SIZE), _number(LOW), _number(HIGH)
).table_valued(*_found)
# (seq, priority) of the rows of the parameter `blocks` between `low` and `high`.
ROWS_OF_BLOCKS = _all_packed(select(_in_blocks.c.seq, _in_blocks.c.priority))
_of_numbers = rows_of_numbers(_buffer_id, bindparam(SEQS, type_=SeqList())).table_valued(*_found)
# (seq, priority) of the parameter `seqs`.
ROWS_OF_NUMBERS = _all_packed(select(_of_numbers.c.seq, _of_numbers.c.priority))
# (seq, priority) of rows above `low` whose priority was set.
UPDATED = _all_packed(
    select(priorities.c.seq, priorities.c.priority)
    .where(priorities.c.buffer_id == _buffer_id, priorities.c.seq > _number(LOW))
    .order_by(priorities.c.seq)
)


def matching_numbers(candidates: Candidates) -> Select[Any]:
    """Select (seq, priority) of the candidates among the parameter `seqs`."""
    steps, is_one = candidates.steps.at(_buffer_id, bindparam(SEQS, type_=SeqList()))
    chosen = select(steps.c.seq, _priority(steps).label("priority"))
    return _all_packed(chosen.where(candidates.matching_in(steps), is_one))


def initial(candidates: Candidates) -> Select[Any]:
    """Select (seq, initial priority) of candidates, in order."""
    steps = candidates.table_of_steps
    chosen = select(steps.c.seq, _initial(steps).label("priority")).where(candidates.in_window)
    return _all_packed(chosen.order_by(*in_order(EVERYTHING, steps)))


def arrays(
    connection: Connection, statement: Any, parameters: Mapping[str, Any], dtypes: Sequence[Any]
) -> list[NDArray[Any]]:
    """Return the columns of a select of `packed` ones.

    Args:
        connection: The transaction.
        statement: The select; none of its values is null.
        parameters: Its parameters.
        dtypes: Dtype of each column, int64 or float64.
    """
    rows = fetch(connection, statement, parameters)
    if not rows or rows[0][0] is None:
        return [np.empty(0, dtype) for dtype in dtypes]
    if isinstance(rows[0][0], bytes):
        return [unpacked(value, dtype) for value, dtype in zip(rows[0], dtypes, strict=True)]
    columns = zip(*rows, strict=True)
    return [np.array(each, dtype) for each, dtype in zip(columns, dtypes, strict=True)]


def unpacked(value: bytes, dtype: Any) -> NDArray[Any]:
    """Return the elements of a PostgreSQL array of 8-byte values, each with a length prefix."""
    element = np.dtype([("n_bytes", ">i4"), ("value", np.dtype(dtype).newbyteorder(">"))])
    return np.frombuffer(value, element, offset=_HEADER_BYTES)["value"].astype(dtype)
