"""The priorities of the candidates of one draw."""

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
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

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.chunks.relations import pg_chunk_of
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.priorities.blocks import Upkeep, needs_resummary, priorities, priority_blocks
from sqlbuffer.storage.rows.statements import BUFFER_ID, LOW, SEQS, in_order
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema.expressions import SeqList, processed
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS
from sqlbuffer.weighted_sampling import Weights, weights_of

logger = logging.getLogger("sqlbuffer")

FIRST, LAST, SIZE, HIGH, BLOCKS, LIMIT, OFFSET = (
    "first", "last", "size", "high", "blocks", "n", "skipped",
)  # fmt: skip

_HEADER_BYTES = 20
_NULLS = ",".join(["null"] * MAX_CHUNK_STEPS)


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
    buffer_id, seqs = processed(element, compiler, kw)
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
    buffer_id, seqs = processed(element, compiler, kw)
    # Numbers of the window, or without a row.
    its_row = f"e.key = {buffer_id} << {NUMBER_BITS} | k.value"
    its_step = sqlite_initial_priority(buffer_id, "k.value")
    priority = _OF_NUMBER.format(buffer_id, "k.value", its_row, its_step)
    return f"(SELECT k.value AS seq, {priority} AS priority FROM json_each({seqs}) AS k)"


@compiles(rows_of_blocks, "postgresql")
def _pg_rows_of_blocks(element: rows_of_blocks, compiler: Any, **kw: Any) -> str:
    buffer_id, blocks, size, low, high = processed(element, compiler, kw)
    first, end = f"k.block * {size}", f"(k.block + 1) * {size}"
    inside = f"BETWEEN greatest({first}, {low} + 1) AND least({end} - 1, {high})"
    near = f"c.first_seq > {first} - {MAX_CHUNK_STEPS} AND c.first_seq < {end}"
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
    buffer_id, blocks, size, low, high = processed(element, compiler, kw)
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
    place = f"'$[' || ({seq} - c.first_seq) || ']'"
    priority = f"coalesce(json_extract(c.initial_priority, {place}), 1.0)"
    return f"(SELECT {priority} FROM {_sqlite_chunk_of(buffer_id, seq)})"


def sqlite_is_in_chunk(buffer_id: str, seq: str) -> str:
    """Return SQLite's expression that is true where a chunk has a step."""
    return f"EXISTS (SELECT 1 FROM {_sqlite_chunk_of(buffer_id, seq)})"


def _sqlite_chunk_of(buffer_id: str, seq: str) -> str:
    of_buffer = f"({buffer_id} << {NUMBER_BITS})"
    return (
        "chunks c WHERE c.key = (SELECT max(x.key) FROM chunks x "
        f"WHERE x.key > {of_buffer} AND x.key <= {of_buffer} + {seq}) "
        f"AND {seq} < c.first_seq + c.n_steps AND NOT EXISTS (SELECT 1 FROM deleted_steps d "
        f"WHERE d.buffer_id = {buffer_id} AND d.seq = {seq})"
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
        f"WHERE c.key > {of_buffer} + {first} - {MAX_CHUNK_STEPS} "
        f"AND c.key <= {of_buffer} + {last} AND +c.buffer_id = {buffer_id} "
        f"AND {seq} >= {first} AND {seq} <= {last} AND {is_there}"
    )


def _all_packed(statement: Select[Any]) -> Select[Any]:
    columns = statement.subquery("found")
    return select(*(packed(column_of_it) for column_of_it in columns.c))


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
    return [np.array(values, dtype) for values, dtype in zip(columns, dtypes, strict=True)]


def unpacked(value: bytes, dtype: Any) -> NDArray[Any]:
    """Return the elements of a PostgreSQL array of 8-byte values, each with a length prefix."""
    element = np.dtype([("n_bytes", ">i4"), ("value", np.dtype(dtype).newbyteorder(">"))])
    return np.frombuffer(value, element, offset=_HEADER_BYTES)["value"].astype(dtype)


Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

# Rounding of max ^ alpha may differ from that of the weight of a row.
SLACK = 1 + 1e-12
LEAST_AT_ONCE = 16


class Priorities:
    """The priorities of the candidates.

    Attributes:
        alpha: The weight of a row is its priority ^ alpha.
        total: Sum of the weights that rows are drawn by; None if it is unknown.

    Args:
        candidates: The rows.
        info: The buffer.
        alpha: The exponent; None for the buffer's.
        upkeep: Records the blocks that were read row by row.
    """

    def __init__(
        self, candidates: Candidates, info: BufferInfo, alpha: float | None, upkeep: Upkeep
    ) -> None:
        self.alpha = info.config.priorities.alpha if alpha is None else alpha
        self.total: float | None = None
        self._candidates, self._info, self._upkeep = candidates, info, upkeep
        self._seen: list[tuple[Integers, Reals]] = []

    @property
    def has_blocks(self) -> bool:
        """True if sums of weights are stored; otherwise all are read, which is logged once."""
        if self.alpha == self._info.config.priorities.alpha:
            return True
        if not self._upkeep.has_warned:
            self._upkeep.has_warned = True
            logger.warning(
                "buffer %r is stored with alpha=%g and was opened with alpha=%g: each batch reads "
                "the priorities of all rows; open it without alpha, or make another buffer",
                self._info.name,
                self._info.config.priorities.alpha,
                self.alpha,
            )
        return False

    @cached_property
    def weights(self) -> Weights:
        """The weights of all rows, by blocks; those of blocks without a sum are read."""
        size, blocks = self._info.block_size, self._blocks
        sums, bounds, is_summarized = self._summaries
        is_filtered = self._candidates.is_filtered
        made = Weights(size, blocks, sums, bounds, self, is_filtered=is_filtered)
        made.read(np.flatnonzero(~is_summarized))
        if not self._candidates.has_condition:
            self.total = made.total
        return made

    def note_missing_summaries(self) -> None:
        """Record the blocks that are worth adding up, without reading rows."""
        _ = self._summaries

    @cached_property
    def _blocks(self) -> Integers:
        size, low, high = self._info.block_size, self._candidates.low, self._candidates.high
        return np.arange((low + 1) // size, high // size + 1 if high > low else 0)

    @cached_property
    def _summaries(self) -> tuple[Reals, Reals, NDArray[np.bool_]]:
        """The sum of the weights of each block, their bound, and which of the sums are known."""
        blocks, size, low = self._blocks, self._info.block_size, self._candidates.low
        sums, bounds = np.zeros(blocks.size), np.zeros(blocks.size)
        is_summarized = np.zeros(blocks.size, bool)
        if not blocks.size:
            return sums, bounds, is_summarized
        known, known_sums, tops = self._read_summaries(int(blocks[0]), int(blocks[-1]))
        places = known - blocks[0]
        sums[places], bounds[places] = known_sums, weights_of(np.abs(tops), self.alpha) * SLACK
        is_summarized[places] = True
        # Some rows of a block that the window cuts have left; a draw from a part of the window cuts
        # a block at its upper end as well.
        is_cut = np.maximum(blocks * size, 1) <= low
        is_full = (blocks + 1) * size - 1 <= self._candidates.high
        is_summarized &= ~is_cut & is_full
        worst = needs_resummary(size, sums, bounds, places[tops < 0])
        self._upkeep.note(size, blocks, is_full & ~is_cut & ~is_summarized, worst)
        return sums, bounds, is_summarized

    def _read_summaries(self, first: int, last: int) -> list[NDArray[Any]]:
        return arrays(
            self._candidates.connection,
            SUMMARIES,
            {BUFFER_ID: self._info.id, FIRST: first, LAST: last},
            (np.int64, np.float64, np.float64),
        )

    def rows_of(self, blocks: Integers) -> tuple[Integers, Reals]:
        """Return the numbers and weights of all rows of some blocks, matching or not."""
        parameters = {
            BUFFER_ID: self._info.id,
            BLOCKS: blocks.tolist(),
            SIZE: self._info.block_size,
            LOW: self._candidates.low,
            HIGH: self._candidates.high,
        }
        seqs, values = self._arrays(ROWS_OF_BLOCKS, parameters)
        order = np.argsort(seqs, kind="stable")
        seqs, values = seqs[order], values[order]
        self._seen.append((seqs, values))
        return seqs, weights_of(values, self.alpha)

    def weights_of(self, seqs: Integers) -> Reals:
        """Return the weights of numbers, each once and in order; 0 for rows that do not match."""
        low, high = self._candidates.low, self._candidates.high
        asked = seqs[(low < seqs) & (seqs <= high)]
        matching, values = self._look_up(asked)
        weights = np.zeros(seqs.size)
        weights[np.searchsorted(seqs, matching)] = weights_of(values, self.alpha)
        return weights

    def among(self, candidates: Candidates) -> "Priorities":
        """Return the priorities of a part of the candidates."""
        return Priorities(candidates, self._info, self.alpha, self._upkeep)

    def of(self, seqs: Sequence[int] | Integers) -> Reals:
        """Return the priorities of rows of the candidates."""
        wanted = np.asarray(seqs, np.int64)
        values = np.full(wanted.size, np.nan)
        self._fill(wanted, values)
        if np.isnan(values).any():
            self._look_up(np.unique(wanted[np.isnan(values)]))
            self._fill(wanted, values)
        return values

    def _fill(self, wanted: Integers, values: Reals) -> None:
        for seqs, seen in self._seen:
            if not seqs.size:
                continue
            places = np.minimum(np.searchsorted(seqs, wanted), seqs.size - 1)
            is_there = seqs[places] == wanted
            values[is_there] = seen[places[is_there]]

    def _look_up(self, seqs: Integers) -> tuple[Integers, Reals]:
        """Return the given numbers that match, in order, and their priorities."""
        if not seqs.size:
            return seqs, np.empty(0)
        parameters = {BUFFER_ID: self._info.id, SEQS: seqs.tolist()}
        numbers, values = self._arrays(self._of_numbers, parameters)
        order = np.argsort(numbers, kind="stable")
        numbers, values = numbers[order], values[order]
        self._seen.append((numbers, values))
        return numbers, values

    @cached_property
    def _of_numbers(self) -> Any:
        if not self._candidates.is_filtered:
            return ROWS_OF_NUMBERS
        return matching_numbers(self._candidates)

    def all(self, candidates: Candidates) -> tuple[Integers, Reals]:
        """Return every matching number, in order, and the priorities.

        Args:
            candidates: The rows, or episodes of them.
        """
        if candidates.picks_keys:
            keys = candidates.keys()
            return keys, self.of(keys)
        seqs, values = self._arrays(initial(candidates), {})
        updated, updated_values = self._arrays(
            UPDATED, {BUFFER_ID: self._info.id, LOW: candidates.low}
        )
        if updated.size:
            places = np.minimum(np.searchsorted(updated, seqs), updated.size - 1)
            is_updated = updated[places] == seqs
            values[is_updated] = updated_values[places[is_updated]]
        self._seen.append((seqs, values))
        return seqs, values

    def least(self) -> float:
        """Return the smallest positive priority of the whole buffer; infinity if none is positive.

        Rows that cannot be drawn count too. Blocks are read if their smallest priority may have
        changed and could be the smallest of all.
        """
        weights, n_seen = self.weights, 0
        least = self._least_seen()
        while True:
            blocks = self._least_blocks(weights, n_seen)
            unknown = [
                (place, priority, is_lower_bound)
                for place, priority, is_lower_bound in blocks
                if priority < least and not weights.has_read(place)
            ]
            least = min(
                (p for _, p, is_lower_bound in unknown if not is_lower_bound), default=least
            )
            bounded = [place for place, priority, is_lower_bound in unknown if is_lower_bound]
            if bounded:
                weights.read(np.array(bounded))
                least = min(least, self._least_seen())
            n_seen += len(blocks)
            if len(blocks) < LEAST_AT_ONCE or blocks[-1][1] >= least:
                return least

    def _least_seen(self) -> float:
        return min(
            (float(p.min(initial=np.inf, where=p > 0)) for _, p in self._seen), default=np.inf
        )

    def _least_blocks(self, weights: Weights, n_seen: int) -> list[tuple[int, float, bool]]:
        """Return the next blocks by their smallest positive priorities.

        Each has its place, that priority, and True if the priority may have changed.
        """
        if not weights.blocks.size:
            return []
        first, last = int(weights.blocks[0]), int(weights.blocks[-1])
        parameters = {
            BUFFER_ID: self._info.id,
            FIRST: first,
            LAST: last,
            LIMIT: LEAST_AT_ONCE,
            OFFSET: n_seen,
        }
        rows = fetch(self._candidates.connection, LEAST, parameters)
        return [
            (block - first, priority, bool(is_lower_bound))
            for block, priority, is_lower_bound in rows
        ]

    def _arrays(self, statement: Any, parameters: dict[str, Any]) -> list[NDArray[Any]]:
        connection = self._candidates.connection
        return arrays(connection, statement, parameters, (np.int64, np.float64))
