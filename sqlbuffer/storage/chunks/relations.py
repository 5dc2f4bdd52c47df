"""The steps of chunks as tables with the columns of `experiences`, and lookups of chunks.

The view of steps shows ids and numbers that no index knows. An id is the user's own (`step_ids`),
or `<chunk>/<place>`.
"""

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    ColumnClause,
    Integer,
    Text,
    and_,
    case,
    column,
    func,
    literal,
    select,
    table,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.encoding.chunks import MAX_CHUNK_STEPS
from sqlbuffer.steps import PAYLOADS
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.tables import chunks, deleted_steps
from sqlbuffer.storage.messages import IDS, sqlite_messages
from sqlbuffer.storage.schema.expressions import processed


class may_have_id(FunctionElement[bool]):
    """True if a chunk may have a step of an id: `may_have_id(first_seq, buffer_id, id)`."""

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


class may_have_ids(may_have_id):
    """True if a chunk may have a step of several ids: `may_have_ids(first_seq, buffer_id, ids)`."""

    inherit_cache = True


class may_have_seqs(FunctionElement[bool]):
    """True if a chunk may have a step of some numbers.

    The arguments are `may_have_seqs(first_seq, buffer_id, seqs)`.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


def pg_chunk_of(chunk: str, buffer_id: str, seq: str) -> str:
    """Return the end of a query that finds the chunk of a step, from WHERE on.

    It names a range of one buffer, in order: only the primary key gives that. For an equal buffer,
    PostgreSQL expects one row, takes any index that begins with the buffer, and may read all of its
    chunks: of 300 chunks, each step of a batch.

    Args:
        chunk: Name of the chunks in the query.
        buffer_id: The buffer.
        seq: Number of the step.
    """
    return f"""WHERE {chunk}.buffer_id >= {buffer_id} AND {chunk}.buffer_id <= {buffer_id}
        AND {chunk}.first_seq <= {seq} AND {chunk}.first_seq > {seq} - {MAX_CHUNK_STEPS}
        ORDER BY {chunk}.buffer_id DESC, {chunk}.first_seq DESC LIMIT 1"""


@compiles(may_have_seqs, "postgresql")
def _pg_may_have_seqs(element: may_have_seqs, compiler: Any, **kw: Any) -> str:
    first_seq, buffer_id, seqs = processed(element, compiler, kw)
    return f"""{first_seq} = ANY (ARRAY(
        SELECT k.first_seq FROM unnest(CAST({seqs} AS bigint[])) AS w(seq) CROSS JOIN LATERAL (
            SELECT x.first_seq FROM chunks x {pg_chunk_of("x", buffer_id, "greatest(w.seq, 0)")}
        ) AS k))"""


@compiles(may_have_seqs, "sqlite")
def _sqlite_may_have_seqs(element: may_have_seqs, compiler: Any, **kw: Any) -> str:
    first_seq, buffer_id, seqs = processed(element, compiler, kw)
    return f"""{first_seq} IN (
        SELECT (SELECT max(k.first_seq) FROM chunks k
            WHERE k.buffer_id = {buffer_id} AND k.first_seq <= w.value)
        FROM json_each({seqs}) w)"""


@compiles(may_have_id, "postgresql")
def _pg_may_have_id(element: may_have_id, compiler: Any, **kw: Any) -> str:
    first_seq, buffer_id, ids = processed(element, compiler, kw)
    listed = ids if isinstance(element, may_have_ids) else f"ARRAY[{ids}]"
    return f"""{first_seq} = ANY (ARRAY(
        WITH g AS MATERIALIZED (
            SELECT id, regexp_replace(id, '/[0-9]+$', '') AS head
            FROM unnest(CAST({listed} AS text[])) AS u(id))
        SELECT f.first_seq FROM g CROSS JOIN LATERAL (
            SELECT i.seq FROM step_ids i WHERE i.buffer_id = {buffer_id} AND i.id = g.id LIMIT 1
        ) AS i CROSS JOIN LATERAL (
            SELECT k.first_seq FROM chunks k {pg_chunk_of("k", buffer_id, "i.seq")}) AS f
        UNION ALL
        SELECT k.first_seq FROM g CROSS JOIN LATERAL (
            SELECT x.first_seq FROM chunks x WHERE x.buffer_id = {buffer_id} AND x.id = CASE
                WHEN g.head ~ '^[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$'
                THEN g.head::uuid END LIMIT 1) AS k))"""


@compiles(may_have_id, "sqlite")
def _sqlite_may_have_id(element: may_have_id, compiler: Any, **kw: Any) -> str:
    first_seq, buffer_id, ids = processed(element, compiler, kw)
    listed = ids if isinstance(element, may_have_ids) else f"json_array({ids})"
    head = "rtrim(g.value, '0123456789')"
    head = f"substr({head}, 1, length({head}) - 1)"
    # CROSS JOIN keeps SQLite from changing the order of the loops.
    return f"""{first_seq} IN (
        SELECT (SELECT max(k.first_seq) FROM chunks k
            WHERE k.buffer_id = {buffer_id} AND k.first_seq <= i.seq)
        FROM json_each({listed}) g
        CROSS JOIN step_ids i ON i.buffer_id = {buffer_id} AND i.id = g.value
        UNION ALL
        SELECT k.first_seq FROM json_each({listed}) g
        CROSS JOIN chunks k ON k.buffer_id = {buffer_id} AND k.id = {head})"""


# The columns of `experiences` that are not bytes, the chunk, and the place in it.
_BYTES = ("arrays", "payload_bytes", "message_ids")
_TYPES: dict[str, Any] = {
    **{c.name: c.type for c in experiences.columns if c.name not in _BYTES},
    "first_seq": BigInteger(),
    "place": Integer(),
    # The lists of `fields` of the chunk; null for a step whose fields were replaced.
    "field_lists": experiences.c.fields.type,
}

# All steps of all chunks, also those that have left the window. A statement bounds `first_seq` as
# well as `seq`: no index knows `seq`.
chunk_steps = table("chunk_steps", *(column(name, type_) for name, type_ in _TYPES.items()))


class _Number(BigInteger):
    """The type of `seq` of the steps of a buffer: comparisons also bound `first_seq`."""

    # SQLAlchemy makes types of results without a buffer.
    def __init__(self, buffer_id: int = 0) -> None:
        super().__init__()
        self.buffer_id = buffer_id

    class Comparator(BigInteger.Comparator[int]):
        """Compares numbers of steps."""

        def operate(self, op: Any, *other: Any, **kwargs: Any) -> Any:
            """Return a comparison, with the bound on the first number of chunks that follows."""
            compared: Any = super().operate(op, *other, **kwargs)
            bound = _BOUNDS.get(op)
            if bound is None or not _is_of_steps(self.expr):
                return compared
            return bound(compared, self.expr.table.c, _without_overflow(compared.right))

    comparator_factory = Comparator

    def among(self, number: Any, is_listed: Any, numbers: Any) -> Any:
        """Return the condition for a number to be in a list, bounding its chunks."""
        if not _is_of_steps(number):
            return is_listed
        of_buffer = literal(self.buffer_id, Integer())
        may_have = may_have_seqs(number.table.c.first_seq, of_buffer, numbers)
        return Grouping(and_(is_listed, may_have))


class _Id(Text):
    """The type of `id` of the steps of a buffer: comparisons look its chunk up."""

    def __init__(self, buffer_id: int = 0) -> None:
        super().__init__()
        self.buffer_id = buffer_id

    class Comparator(Text.Comparator[str]):
        """Compares ids of steps."""

        def operate(self, op: Any, *other: Any, **kwargs: Any) -> Any:
            """Return a comparison, with the condition on the chunk that follows."""
            compared: Any = super().operate(op, *other, **kwargs)
            if op is not operator.eq or not _is_of_steps(self.expr):
                return compared
            type_: Any = self.expr.type
            of_buffer = literal(type_.buffer_id, Integer())
            first = self.expr.table.c.first_seq
            return and_(compared, may_have_id(first, of_buffer, compared.right))

    comparator_factory = Comparator

    def among(self, id_: Any, is_listed: Any, ids: Any) -> Any:
        """Return the condition for an id to be in a list, bounding its chunk."""
        if not _is_of_steps(id_):
            return is_listed
        of_buffer = literal(self.buffer_id, Integer())
        may_have = may_have_ids(id_.table.c.first_seq, of_buffer, ids)
        return Grouping(and_(is_listed, may_have))


def _is_of_steps(expression: Any) -> bool:
    """Return True for a column of the steps themselves, and not of a select of them."""
    table = getattr(expression, "table", None)
    return getattr(getattr(table, "element", table), "name", None) == chunk_steps.name


def _without_overflow(number: Any) -> Any:
    """Return the number of a bound, with 0 in place of negative ones, which no step has.

    PostgreSQL refuses to subtract from the lowest integer.
    """
    value = number.value if isinstance(number, BindParameter) else None
    return literal(0, BigInteger()) if value is not None and value < 0 else number


def _is_one(is_equal: Any, step: Any, number: Any) -> Any:
    """Return the condition for a step to have a number.

    Whichever side of a join is read first, the other one is looked up: steps by their chunk and
    place, rows of another table by their number. Bounds alone leave SQLite only the lower one.
    """
    first = step.first_seq
    is_in_chunk = and_(first <= number, first > number - MAX_CHUNK_STEPS)
    is_there = and_(step.place == number - first, is_in_chunk)
    return and_(is_equal, is_there) if isinstance(number, ColumnClause) else is_there


_BOUNDS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    operator.eq: _is_one,
    operator.gt: lambda is_it, step, bound: and_(
        is_it, step.first_seq > bound - (MAX_CHUNK_STEPS - 1)
    ),
    operator.ge: lambda is_it, step, bound: and_(
        is_it, step.first_seq >= bound - (MAX_CHUNK_STEPS - 1)
    ),
    operator.lt: lambda is_it, step, bound: and_(is_it, step.first_seq < bound),
    operator.le: lambda is_it, step, bound: and_(is_it, step.first_seq <= bound),
}


@lru_cache(maxsize=256)
def steps_of_chunks(buffer_id: int) -> Any:
    """Return `chunk_steps` for statements over one buffer, whose conditions bound the chunks.

    It has the steps of all buffers: a statement names the buffer as well.
    """
    types = {**_TYPES, "seq": _Number(buffer_id), "id": _Id(buffer_id)}
    return table(chunk_steps.name, *(column(name, type_) for name, type_ in types.items()))


def is_numbered_step(step: Any, buffer_id: Any, number: Any) -> Any:
    """Return the condition for a step of a table of steps to have a number of a buffer.

    Args:
        step: The columns of `chunk_steps`, or of an alias of it.
        buffer_id: The buffer.
        number: The number.
    """
    before = chunks.alias("before")
    first = (
        select(before.c.first_seq)
        .where(before.c.buffer_id == buffer_id, before.c.first_seq <= number)
        .order_by(before.c.first_seq.desc())
        .limit(1)
        .correlate_except(before)
        .scalar_subquery()
    )
    return and_(
        step.buffer_id == buffer_id,
        step.first_seq == first,
        step.place == number - step.first_seq,
    )


class chunk_steps_at(FunctionElement[Any]):
    """The steps of a buffer with some numbers: `chunk_steps_at(buffer_id, seqs)`."""

    inherit_cache = True


def steps_at(buffer_id: Any, seqs: Any) -> Any:
    """Return the table of the steps of a buffer with some numbers.

    Args:
        buffer_id: The buffer.
        seqs: A `SeqList`.
    """
    columns = (column(name, type_) for name, type_ in _TYPES.items())
    return chunk_steps_at(buffer_id, seqs).table_valued(*columns, name="steps_at")


@compiles(chunk_steps_at, "postgresql")
def _pg_chunk_steps_at(element: chunk_steps_at, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = processed(element, compiler, kw)
    # Each chunk is looked up alone. Both bounds are needed: with one, the index returns all keys of
    # a page that are below.
    return f"""(SELECT {_columns(_PG)}
    FROM (SELECT w.seq, (w.seq - x.first_seq)::integer AS place, x.*
        FROM unnest(CAST({seqs} AS bigint[])) AS w(seq) CROSS JOIN LATERAL (
            SELECT * FROM chunks
            {pg_chunk_of("chunks", buffer_id, "greatest(w.seq, 0)")}
        ) x
        WHERE w.seq < x.first_seq + x.n_steps AND NOT EXISTS (
            SELECT 1 FROM deleted_steps d
            WHERE d.buffer_id = {buffer_id} AND d.seq = w.seq OFFSET 0)
    ) AS c(seq, place, buffer_id, first_seq, {_CHUNK_COLUMNS})
    LEFT JOIN LATERAL (
        SELECT * FROM chunk_data
        WHERE chunk_data.buffer_id = {buffer_id} AND chunk_data.first_seq = c.first_seq LIMIT 1
    ) d ON true
    {_pg_replaced(buffer_id, "c.seq")})"""


@compiles(chunk_steps_at, "sqlite")
def _sqlite_chunk_steps_at(element: chunk_steps_at, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = processed(element, compiler, kw)
    return f"""(SELECT {_columns(_SQLITE)}
    FROM (SELECT value AS seq FROM json_each({seqs})) w
    CROSS JOIN chunks c ON c.key = (
        SELECT max(k.key) FROM chunks k
        WHERE k.key > {buffer_id} << 40 AND k.key <= ({buffer_id} << 40 | w.seq))
    LEFT JOIN chunk_data d ON d.key = c.key
    {_sqlite_replaced(buffer_id, "w.seq")}
    WHERE w.seq < c.first_seq + c.n_steps AND NOT EXISTS (
        SELECT 1 FROM deleted_steps x WHERE x.buffer_id = {buffer_id} AND x.seq = w.seq))"""


def _pg_replaced(buffer_id: str, seq: str) -> str:
    """Return the join with the replaced values of a step, `y`.

    It costs nothing in a buffer whose steps were never replaced.
    """
    return f"""LEFT JOIN LATERAL (
        SELECT * FROM replaced_steps
        WHERE (SELECT has_changes FROM buffers WHERE id = {buffer_id})
          AND replaced_steps.buffer_id = {buffer_id} AND replaced_steps.seq = {seq} LIMIT 1
    ) y ON true"""


def _sqlite_replaced(buffer_id: str, seq: str) -> str:
    """Return the join of `_pg_replaced` for SQLite.

    It is a search of an index, which is empty if no step was replaced.
    """
    return f"LEFT JOIN replaced_steps y ON y.buffer_id = {buffer_id} AND y.seq = {seq}"


# The columns of chunks behind the two of the key.
_CHUNK_COLUMNS = (
    "n_steps, id, task_id, task_name, agent_id, pre_agent, episode_id, t, step, steps, session_id, "
    "model_version, first_time, last_time, times, reward_t, adv_t, v_t, terminated, truncated, "
    "initial_priority, fields, inserted_at"
)
# The columns of `replaced_steps` behind its key and its bytes.
_REPLACED = ("fields", "reward_t", "terminated", "truncated")
_PER_STEP = ("reward_t", "adv_t", "v_t", "initial_priority")
# An empty list means False at every step.
_FLAGS = ("terminated", "truncated")
_SAME = (
    "buffer_id", "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "session_id",
    "model_version", "inserted_at", "first_seq",
)  # fmt: skip


# Steps that were stored before a field was added have its default.
_DEFAULTS = "(SELECT b.field_defaults FROM buffers b WHERE b.id = c.buffer_id)"


_SHARES = "(SELECT b.has_messages FROM buffers b WHERE b.id = c.buffer_id)"


def _common(place: str, time: str) -> dict[str, str]:
    """Return the expressions that both databases share, for a place and the place in `times`."""
    return {
        **{name: f"c.{name}" for name in _SAME},
        "place": place,
        "t": f"c.t + {place}",
        "id": (
            "coalesce((SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id "
            f"AND i.seq = c.first_seq + {place}), c.id || '/' || {place})"
        ),
        "execute_time": (
            f"CASE WHEN c.times IS NOT NULL THEN {time} WHEN {place} = 0 THEN c.first_time "
            f"ELSE c.first_time + (c.last_time - c.first_time) * {place} / (c.n_steps - 1) END"
        ),
    }


def _pg_expressions(place: str) -> dict[str, str]:
    """Return the expression of each column of steps on PostgreSQL.

    The expressions name the chunks `c`, their bytes `d`, and the replaced values of the step `y`.
    """
    return _replaced(_pg_packed(place))


def _sqlite_expressions(place: str) -> dict[str, str]:
    """Return the expressions of `_pg_expressions` for SQLite."""
    return _replaced(_sqlite_packed(place))


def _replaced(packed: dict[str, str]) -> dict[str, str]:
    new = {
        name: f"CASE WHEN y.seq IS NULL THEN {packed[name]} ELSE y.{name} END" for name in _REPLACED
    }
    return {**packed, **new, "field_lists": "CASE WHEN y.seq IS NULL THEN c.fields END"}


def _pg_packed(place: str) -> dict[str, str]:
    payload = f"d.payloads -> {place}"
    common = _common(place, f"c.times[{place} + 1]")
    return {
        **common,
        "seq": f"c.first_seq + {place}",
        "id": f'{common["id"]} COLLATE "C"',
        "step": f"CASE WHEN c.steps IS NULL THEN c.step + {place} ELSE c.steps[{place} + 1] END",
        **{name: f"c.{name}[{place} + 1]" for name in _PER_STEP},
        **{
            name: f"CASE WHEN c.{name} = '{{}}' THEN false ELSE c.{name}[{place} + 1] END"
            for name in _FLAGS
        },
        **{name: f"{payload} -> '{name}'" for name in PAYLOADS},
        "messages": (
            f"CASE WHEN {_SHARES} THEN sqlbuffer_step_messages_v1(c.buffer_id, {payload}) "
            f"ELSE {payload} -> 'messages' END"
        ),
        "fields": (
            f"CASE WHEN c.fields IS NOT NULL THEN coalesce({_DEFAULTS}, '{{}}') || "
            f"(SELECT jsonb_object_agg(f.key, f.value -> {place}) FROM jsonb_each(c.fields) f) "
            f"ELSE {_DEFAULTS} END"
        ),
    }


def _sqlite_packed(place: str) -> dict[str, str]:
    path = f"'$[' || {place} || ']'"

    def as_stored(json: str, path: str) -> str:
        # For two paths json_extract returns a list, whose text has each value as it is stored. For
        # one path a text comes without its quotes, and a number may get other digits.
        pair = f"json_extract({json}, '$.none', {path})"
        return f"substr({pair}, 7, length({pair}) - 7)"

    def payload(name: str) -> str:
        value = as_stored("d.payloads", f"{path} || '.{name}'")
        return f"CASE WHEN d.payloads IS NOT NULL THEN nullif({value}, 'null') END"

    fields = (
        "(SELECT '{' || group_concat(json_quote(f.key) || ':' || "
        f"{as_stored('f.value', path)}) || '}}' FROM json_each(c.fields) f)"
    )
    return {
        **_common(place, f"json_extract(c.times, {path})"),
        "seq": f"c.first_seq + {place}",
        "step": (
            f"CASE WHEN c.steps IS NULL THEN c.step + {place} "
            f"ELSE json_extract(c.steps, {path}) END"
        ),
        **{name: f"json_extract(c.{name}, {path})" for name in _PER_STEP},
        **{
            name: f"CASE WHEN c.{name} = '[]' THEN 0 ELSE json_extract(c.{name}, {path}) END"
            for name in _FLAGS
        },
        **{name: payload(name) for name in PAYLOADS},
        "messages": (
            f"CASE WHEN {_SHARES} AND json_type(d.payloads, {path} || '.{IDS}') IS NOT NULL THEN "
            + sqlite_messages(
                "c.buffer_id",
                f"json_extract(d.payloads, {path} || '.{IDS}')",
                f"json_extract(d.payloads, {path} || '.messages')",
            )
            + f" ELSE {payload('messages')} END"
        ),
        "fields": (
            f"CASE WHEN {_DEFAULTS} IS NOT NULL THEN json_patch({_DEFAULTS}, coalesce("
            f"CASE WHEN c.fields IS NOT NULL THEN {fields} END, '{{}}')) "
            f"WHEN c.fields IS NOT NULL THEN {fields} END"
        ),
    }


_PG, _SQLITE = _pg_expressions("c.place"), _sqlite_expressions("(w.seq - c.first_seq)")


def _columns(expressions: dict[str, str]) -> str:
    return ", ".join(f"{expressions[name]} AS {name}" for name in _TYPES)


def n_steps(buffer_id: int, start: Any, end: Any) -> Any:
    """Return the expression for the number of steps of a buffer with start <= seq < end.

    It adds up the lengths of chunks, without reading their steps.
    """
    chunk, gone = chunks.c, deleted_steps.c
    stop = chunk.first_seq + chunk.n_steps
    inside = case((stop < end, stop), else_=end) - case(
        (chunk.first_seq > start, chunk.first_seq), else_=start
    )
    those = (
        chunk.buffer_id == buffer_id,
        chunk.first_seq > start - MAX_CHUNK_STEPS,
        chunk.first_seq < end,
        stop > start,
    )
    added = select(func.coalesce(func.sum(inside), 0).cast(BigInteger)).where(*those)
    deleted = select(func.count()).where(
        gone.buffer_id == buffer_id, gone.seq >= start, gone.seq < end
    )
    return added.scalar_subquery() - deleted.scalar_subquery()


def first_step_left(buffer_id: Any, episode_id: Any, low: Any) -> Any:
    """Return the expression for the number of the oldest held step; null if there is none.

    It does not read all steps of a chunk: an index finds the first chunk of the episode, and
    another index skips deleted steps.

    Args:
        buffer_id: The buffer.
        episode_id: The episode: a column of the statement around this one.
        low: Lower end of the window.
    """
    chunk, gone = chunks.alias("of_episode").c, deleted_steps.alias("gone").c
    stop = chunk.first_seq + chunk.n_steps
    start = case((chunk.first_seq > low, chunk.first_seq), else_=low + 1)
    behind_gone = (
        select(gone.seq + 1)
        .where(
            gone.buffer_id == buffer_id,
            gone.seq >= start,
            gone.seq < stop - 1,
            ~_is_gone(buffer_id, gone.seq + 1),
        )
        .order_by(gone.seq)
        .limit(1)
        .scalar_subquery()
    )
    first = case((_is_gone(buffer_id, start), behind_gone), else_=start)
    return (
        select(first)
        .where(
            chunk.buffer_id == buffer_id,
            chunk.episode_id == episode_id,
            stop > low + 1,
            first.is_not(None),
        )
        .order_by(chunk.t)
        .limit(1)
        .scalar_subquery()
    )


def _is_gone(buffer_id: Any, seq: Any) -> Any:
    gone = deleted_steps.alias("next_gone").c
    is_its = select(1).where(gone.buffer_id == buffer_id, gone.seq == seq)
    # The offset keeps PostgreSQL from reading all deleted steps of the buffer.
    return is_its.offset(0).exists()
