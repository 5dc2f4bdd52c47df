"""SQL expressions that the two databases write differently; call sites stay dialect-free.

`JsonValue` stands for a value inside a JSON column. It is never selected itself: the functions
below take it apart, each with the type tested first, so that a value of another type gives null and
never an error.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from sqlalchemy import BigInteger, Boolean, Executable, Numeric, Select, Text, bindparam
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement, ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from sqlbuffer.codec import escape_key


class utc_now(FunctionElement[Any]):
    """Now, as the TIME columns hold it."""

    inherit_cache = True
    type = Text()


@compiles(utc_now, "postgresql")
def _pg_utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "now()"


@compiles(utc_now, "sqlite")
def _sqlite_utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"


class explain(Executable, ClauseElement):
    """The plan of a statement, a line a row."""

    inherit_cache = False

    def __init__(self, statement: Select[Any]) -> None:
        self.statement = statement


@compiles(explain, "postgresql")
def _pg_explain(element: explain, compiler: Any, **kw: Any) -> str:
    return f"EXPLAIN {compiler.process(element.statement, **kw)}"


@compiles(explain, "sqlite")
def _sqlite_explain(element: explain, compiler: Any, **kw: Any) -> str:
    return f"EXPLAIN QUERY PLAN {compiler.process(element.statement, **kw)}"


class is_one_of(FunctionElement[bool]):
    """Whether a column is among the values of one array parameter, so that the statement's text
    does not vary with their number.

    `is_one_of(column, values)`: the values are a list, bound as an array on PostgreSQL and as JSON
    on SQLite.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True  # or SQLAlchemy writes `= 1` behind it, which no index serves


@compiles(is_one_of, "postgresql")
def _pg_is_one_of(element: is_one_of, compiler: Any, **kw: Any) -> str:
    column, values = element.clauses
    return f"{compiler.process(column, **kw)} = ANY ({compiler.process(values, **kw)})"


@compiles(is_one_of, "sqlite")
def _sqlite_is_one_of(element: is_one_of, compiler: Any, **kw: Any) -> str:
    column, values = element.clauses
    listed = f"SELECT value FROM json_each({compiler.process(values, **kw)})"
    return f"{compiler.process(column, **kw)} IN ({listed})"


class has_key(FunctionElement[bool]):
    """Whether a row of `experiences` is one of a buffer's numbers: `has_key(buffer_id, seqs)`.

    PostgreSQL without statistics takes a buffer for a few rows and would rather read all of them;
    so each number is looked up alone, by the primary key, and the rows are fetched by their place.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(has_key, "postgresql")
def _pg_has_key(element: has_key, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = (compiler.process(clause, **kw) for clause in element.clauses)
    its_place = (
        f"SELECT ctid FROM experiences WHERE buffer_id = {buffer_id} AND seq = k.seq LIMIT 1"
    )
    places = f"SELECT e.ctid FROM unnest({seqs}) AS k(seq) CROSS JOIN LATERAL ({its_place}) AS e"
    return f"experiences.ctid = ANY (ARRAY({places}))"


@compiles(has_key, "sqlite")
def _sqlite_has_key(element: has_key, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = (compiler.process(clause, **kw) for clause in element.clauses)
    return (
        f"experiences.buffer_id = {buffer_id} "
        f"AND experiences.seq IN (SELECT value FROM json_each({seqs}))"
    )


class unindexed(FunctionElement[int]):
    """The column itself, but no index on it serves: for bounds and orders that would lure the
    planner from a better index.
    """

    inherit_cache = True
    type = BigInteger()


@compiles(unindexed)
def _unindexed(element: unindexed, compiler: Any, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


class position_of(FunctionElement[int]):
    """Where the second text begins in the first, from 1, or 0; case-sensitive, no wildcards."""

    inherit_cache = True
    type = BigInteger()


@compiles(position_of, "postgresql")
def _pg_position_of(element: position_of, compiler: Any, **kw: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **kw)})"


@compiles(position_of, "sqlite")
def _sqlite_position_of(element: position_of, compiler: Any, **kw: Any) -> str:
    return f"instr({compiler.process(element.clauses, **kw)})"


class user_extra(FunctionElement[Any]):
    """The `extra` column without the tags of real columns."""

    inherit_cache = True
    type = Text().with_variant(JSONB(), "postgresql")


@compiles(user_extra, "postgresql")
def _pg_user_extra(element: user_extra, compiler: Any, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    return f"(CASE WHEN {column} -> '$none' IS NULL THEN {column} - '$reals' END)"


@compiles(user_extra, "sqlite")
def _sqlite_user_extra(element: user_extra, compiler: Any, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    untagged = f"""json_remove({column}, '$."$reals"')"""
    return f"""(CASE WHEN json_extract({column}, '$."$none"') IS NULL THEN {untagged} END)"""


class _JsonFunction(FunctionElement[Any]):
    """A function of (document, paths): on PostgreSQL chains of operators, on SQLite JSON path
    texts.
    """

    inherit_cache = False
    type: TypeEngine[Any]
    _is_implicitly_boolean = True

    def __init__(
        self,
        document: ColumnElement[Any],
        path: Sequence[str | int] = (),
        *arguments: Any,
        stored_path: tuple[str, ...] = (),
    ) -> None:
        self.paths = [(stored_path,)] if stored_path else list(product(*map(_alternatives, path)))
        super().__init__(document, *arguments)


def _alternatives(segment: str | int) -> list[tuple[str | int, ...]]:
    """Return what a segment may mean: an index finds an element of a list or a tuple, or the dict
    key of that name.
    """
    if isinstance(segment, str):
        return [(escape_key(segment),)]
    return (
        [(segment,), ("$tuple", segment)]
        if segment < 0
        else [(segment,), ("$tuple", segment), (str(segment),)]
    )


def _document_and_path(element: _JsonFunction, compiler: Any, kw: Any) -> tuple[str, str]:
    """SQLite: the document and an expression for the path of the first alternative that exists."""
    document = compiler.process(next(iter(element.clauses)), **kw)
    paths = []
    for alternative in element.paths:
        segments = [segment for part in alternative for segment in part]
        text = "$" + "".join(_sqlite_segment(segment) for segment in segments)
        paths.append(compiler.process(bindparam(None, text, Text(), unique=True), **kw))
    path = paths[-1]
    for earlier in reversed(paths[:-1]):
        path = (
            f"CASE WHEN json_type({document}, {earlier}) IS NOT NULL THEN {earlier} ELSE {path} END"
        )
    return document, path


def _sqlite_segment(segment: str | int) -> str:
    if isinstance(segment, str):
        return f'."{segment}"'
    return f"[{segment}]" if segment >= 0 else f"[#{segment}]"


def _pg_value(element: _JsonFunction, compiler: Any, kw: Any) -> str:
    """PostgreSQL: the JSONB value, null where missing."""
    document = compiler.process(next(iter(element.clauses)), **kw)
    values = []
    for alternative in element.paths:
        value = document
        for segment in (segment for part in alternative for segment in part):
            bound = bindparam(
                None, segment, Text() if isinstance(segment, str) else BigInteger(), unique=True
            )
            cast = "text" if isinstance(segment, str) else "integer"
            value += f" -> CAST({compiler.process(bound, **kw)} AS {cast})"
        values.append(value)
    return f"({values[0]})" if len(values) == 1 else f"coalesce({', '.join(values)})"


class json_kind(_JsonFunction):
    """`text`, `array`, `object`, `null` or another word for other types; null where missing."""

    inherit_cache = False  # the paths are no clause elements
    type = Text()


@compiles(json_kind, "postgresql")
def _pg_json_kind(element: json_kind, compiler: Any, **kw: Any) -> str:
    return f"replace(jsonb_typeof({_pg_value(element, compiler, kw)}), 'string', 'text')"


@compiles(json_kind, "sqlite")
def _sqlite_json_kind(element: json_kind, compiler: Any, **kw: Any) -> str:
    document, path = _document_and_path(element, compiler, kw)
    return f"json_type({document}, {path})"


class json_number(_JsonFunction):
    """The value as a number: true is 1, tagged floats are themselves, NaN and everything else is
    null.
    """

    inherit_cache = False  # the paths are no clause elements
    type = Numeric()


@compiles(json_number, "postgresql")
def _pg_json_number(element: json_number, compiler: Any, **kw: Any) -> str:
    return f"sqlbuffer_number_v1({_pg_value(element, compiler, kw)})"


@compiles(json_number, "sqlite")
def _sqlite_json_number(element: json_number, compiler: Any, **kw: Any) -> str:
    document, path = _document_and_path(element, compiler, kw)
    value = f"json_extract({document}, {path})"
    tagged = f"""json_extract({value}, '$."$float"')"""
    return (
        f"(CASE json_type({document}, {path}) WHEN 'integer' THEN {value} WHEN 'real' THEN {value} "
        f"WHEN 'true' THEN 1 WHEN 'false' THEN 0 WHEN 'object' THEN CASE {tagged} WHEN 'inf' THEN "
        f"9e999 "
        f"WHEN '-inf' THEN -9e999 WHEN '-0.0' THEN 0 ELSE CASE WHEN {tagged} NOT LIKE 'nan%' "
        f"THEN json_extract({tagged}, '$') END END END)"
    )


class json_text(_JsonFunction):
    """The value as text; null for other types."""

    inherit_cache = False  # the paths are no clause elements
    type = Text(collation="C").with_variant(Text(), "sqlite")


@compiles(json_text, "postgresql")
def _pg_json_text(element: json_text, compiler: Any, **kw: Any) -> str:
    value = _pg_value(element, compiler, kw)
    return (
        f"""(CASE WHEN jsonb_typeof({value}) = 'string' THEN {value} #>> '{{}}' END COLLATE "C")"""
    )


@compiles(json_text, "sqlite")
def _sqlite_json_text(element: json_text, compiler: Any, **kw: Any) -> str:
    document, path = _document_and_path(element, compiler, kw)
    value = f"json_extract({document}, {path})"
    return f"(CASE WHEN json_type({document}, {path}) = 'text' THEN {value} END)"


class json_hex_text(_JsonFunction):
    """The hex groups of text that JSONB cannot hold; null for everything else."""

    inherit_cache = False  # the paths are no clause elements
    type = json_text.type


@compiles(json_hex_text, "postgresql")
def _pg_json_hex_text(element: json_hex_text, compiler: Any, **kw: Any) -> str:
    return f"""(({_pg_value(element, compiler, kw)} ->> '$str') COLLATE "C")"""


@compiles(json_hex_text, "sqlite")
def _sqlite_json_hex_text(element: json_hex_text, compiler: Any, **kw: Any) -> str:
    document, path = _document_and_path(element, compiler, kw)
    return (
        f"(CASE WHEN json_type({document}, {path}) = 'object' "
        f"""THEN json_extract(json_extract({document}, {path}), '$."$str"') END)"""
    )


class json_is(_JsonFunction):
    """Whether a list or dict equals the JSON text of the second argument, to the letter of its
    canonical form.
    """

    inherit_cache = False  # the paths are no clause elements
    type = Boolean()


@compiles(json_is, "postgresql")
def _pg_json_is(element: json_is, compiler: Any, **kw: Any) -> str:
    other = compiler.process(list(element.clauses)[1], **kw)
    return f"{_pg_value(element, compiler, kw)}::text = CAST(CAST({other} AS jsonb) AS text)"


@compiles(json_is, "sqlite")
def _sqlite_json_is(element: json_is, compiler: Any, **kw: Any) -> str:
    document, path = _document_and_path(element, compiler, kw)
    other = compiler.process(list(element.clauses)[1], **kw)
    is_container = f"json_type({document}, {path}) IN ('array', 'object')"
    return f"({is_container} AND json_extract({document}, {path}) = {other})"


class json_has_element(_JsonFunction):
    """Whether a list has the text as an element. Arguments: the JSON text of a list with it alone,
    and of it alone.
    """

    inherit_cache = False  # the paths are no clause elements
    type = Boolean()


@compiles(json_has_element, "postgresql")
def _pg_json_has_element(element: json_has_element, compiler: Any, **kw: Any) -> str:
    value = _pg_value(element, compiler, kw)
    listed = compiler.process(list(element.clauses)[1], **kw)
    return f"(jsonb_typeof({value}) = 'array' AND {value} @> CAST({listed} AS jsonb))"


@compiles(json_has_element, "sqlite")
def _sqlite_json_has_element(element: json_has_element, compiler: Any, **kw: Any) -> str:
    document, path = _document_and_path(element, compiler, kw)
    alone = compiler.process(list(element.clauses)[2], **kw)
    return (
        f"(json_type({document}, {path}) = 'array' AND EXISTS (SELECT 1 FROM json_each({document}, "
        f"{path}) AS item "
        f"WHERE CASE item.type WHEN 'text' THEN json_quote(item.value) WHEN 'object' THEN "
        f"item.value END = {alone}))"
    )
