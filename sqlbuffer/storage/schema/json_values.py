"""Values inside JSON columns.

A value itself is never selected. The functions below read parts of it. Each tests the type first,
so that a value of another type gives null and never an error.
"""

from collections.abc import Sequence
from itertools import chain, product
from typing import Any

from sqlalchemy import BigInteger, Boolean, Numeric, Text, bindparam
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from sqlbuffer.codec.plain_values import escape_key
from sqlbuffer.storage.schema.expressions import processed

_TEXT = Text()


class position_of(FunctionElement[int]):
    """Position of the second text in the first, from 1, or 0; case-sensitive, no wildcards."""

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


class step_fields(FunctionElement[Any]):
    """The fields of a step of a chunk: `step_fields(fields, field_lists, place)`.

    The functions of one field below read it in the lists of the chunk. To put together the fields
    of each step would take twenty times as long.
    """

    inherit_cache = True
    type = Text().with_variant(JSONB(), "postgresql")


@compiles(step_fields)
def _step_fields(element: step_fields, compiler: Any, **kw: Any) -> str:
    fields: str = compiler.process(next(iter(element.clauses)), **kw)
    return fields


class _JsonFunction(FunctionElement[Any]):
    """A function of (document, paths).

    On PostgreSQL paths are chains of operators, on SQLite JSON path texts.
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
        self.path, self.stored_path = path, stored_path
        super().__init__(document, *arguments)

    def alternatives(self, *, keys_apart: bool) -> list[tuple[str | int, ...]]:
        """Return the possible paths of the value.

        An index finds an element of a list or a tuple, or the dict key of that name.

        Args:
            keys_apart: A path that finds list elements by index does not find dict keys.
        """
        choices = [_choices(segment, keys_apart) for segment in self.path]
        paths = [tuple(chain.from_iterable(chosen)) for chosen in product(*choices)]
        return [self.stored_path] if self.stored_path else paths


def _choices(segment: str | int, keys_apart: bool) -> list[tuple[str | int, ...]]:
    if isinstance(segment, str):
        return [(escape_key(segment),)]
    key: list[tuple[str | int, ...]] = [(str(segment),)] if keys_apart else []
    return [(segment,), ("$tuple", segment), *key]


def _sqlite_value(element: _JsonFunction, compiler: Any, kw: Any) -> str:
    """Return a table `j` of one row for SQLite: the value and its kind, both null if missing."""
    of, paths = next(iter(element.clauses)), []
    document = compiler.process(of, **kw)
    for alternative in element.alternatives(keys_apart=True):
        text = "$" + "".join(map(_sqlite_segment, alternative))
        paths.append(compiler.process(bindparam(None, text, _TEXT, unique=True), **kw))
    path, source = paths[-1], ""
    if isinstance(of, step_fields) and len(element.path) == 1:
        _, lists, place = processed(of, compiler, kw)
        is_listed = f"json_type({lists}, {path}) IS NOT NULL"
        source = (
            f" FROM (SELECT CASE WHEN {is_listed} THEN {lists} ELSE {document} END AS fields, "
            f"CASE WHEN {is_listed} THEN {path} || '[' || {place} || ']' ELSE {path} END AS path)"
        )
        document, path = "fields", "path"
    elif len(paths) > 1:
        exists = " ".join(
            f"WHEN json_type({document}, {earlier}) IS NOT NULL THEN {earlier}"
            for earlier in paths[:-1]
        )
        path, source = "path", f" FROM (SELECT CASE {exists} ELSE {path} END AS path)"
    value, kind = f"json_extract({document}, {path})", f"json_type({document}, {path})"
    return f"(SELECT {value} AS value, {kind} AS kind{source}) AS j"


def _sqlite_segment(segment: str | int) -> str:
    if isinstance(segment, str):
        return f'."{segment}"'
    return f"[{segment}]" if segment >= 0 else f"[#{segment}]"


def _pg_value(element: _JsonFunction, compiler: Any, kw: Any) -> str:
    """Return the JSONB value for PostgreSQL, null if missing."""
    of, values = next(iter(element.clauses)), []
    document = compiler.process(of, **kw)
    if isinstance(of, step_fields) and len(element.path) == 1:
        _, lists, place = processed(of, compiler, kw)
        ((key,),) = element.alternatives(keys_apart=False)
        name = compiler.process(bindparam(None, key, _TEXT, unique=True), **kw)
        name = f"CAST({name} AS text)"
        return f"coalesce({lists} -> {name} -> {place}, {document} -> {name})"
    for alternative in element.alternatives(keys_apart=False):
        value = document
        for segment in alternative:
            # `-> 0` of a scalar is the scalar itself; `#>` reads an index as a dict key too.
            step = ("->", "text") if isinstance(segment, str) else ("#>", "text[]")
            text = segment if isinstance(segment, str) else f"{{{segment}}}"
            bound = compiler.process(bindparam(None, text, _TEXT, unique=True), **kw)
            value += f" {step[0]} CAST({bound} AS {step[1]})"
        values.append(value)
    return f"({values[0]})" if len(values) == 1 else f"coalesce({', '.join(values)})"


class json_kind(_JsonFunction):
    """The type: `text`, `array`, `object`, `null` or another word; null if missing."""

    inherit_cache = False  # the paths are not clause elements
    type = Text()


@compiles(json_kind, "postgresql")
def _pg_json_kind(element: json_kind, compiler: Any, **kw: Any) -> str:
    return f"replace(jsonb_typeof({_pg_value(element, compiler, kw)}), 'string', 'text')"


@compiles(json_kind, "sqlite")
def _sqlite_json_kind(element: json_kind, compiler: Any, **kw: Any) -> str:
    return f"(SELECT j.kind FROM {_sqlite_value(element, compiler, kw)})"


class json_number(_JsonFunction):
    """The value as a number; null for NaN and all values that are not numbers.

    true is 1, and a tagged float is the float itself.
    """

    inherit_cache = False  # the paths are not clause elements
    type = Numeric()


@compiles(json_number, "postgresql")
def _pg_json_number(element: json_number, compiler: Any, **kw: Any) -> str:
    return f"sqlbuffer_number_v1({_pg_value(element, compiler, kw)})"


@compiles(json_number, "sqlite")
def _sqlite_json_number(element: json_number, compiler: Any, **kw: Any) -> str:
    number = _sqlite_number("j.value", "j.kind")
    return f"(SELECT {number} FROM {_sqlite_value(element, compiler, kw)})"


class json_text(_JsonFunction):
    """The value as text; null for other types."""

    inherit_cache = False  # the paths are not clause elements
    type = Text(collation="C").with_variant(Text(), "sqlite")


@compiles(json_text, "postgresql")
def _pg_json_text(element: json_text, compiler: Any, **kw: Any) -> str:
    value = _pg_value(element, compiler, kw)
    return (
        f"""(CASE WHEN jsonb_typeof({value}) = 'string' THEN {value} #>> '{{}}' END COLLATE "C")"""
    )


@compiles(json_text, "sqlite")
def _sqlite_json_text(element: json_text, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    return f"(SELECT CASE j.kind WHEN 'text' THEN j.value END FROM {value})"


class json_hex_text(_JsonFunction):
    """The hex groups of text that JSONB cannot hold; null for other values."""

    inherit_cache = False  # the paths are not clause elements
    type = json_text.type


@compiles(json_hex_text, "postgresql")
def _pg_json_hex_text(element: json_hex_text, compiler: Any, **kw: Any) -> str:
    return f"""(({_pg_value(element, compiler, kw)} ->> '$str') COLLATE "C")"""


@compiles(json_hex_text, "sqlite")
def _sqlite_json_hex_text(element: json_hex_text, compiler: Any, **kw: Any) -> str:
    tagged = """CASE j.kind WHEN 'object' THEN json_extract(j.value, '$."$str"') END"""
    return f"(SELECT {tagged} FROM {_sqlite_value(element, compiler, kw)})"


def _sqlite_number(value: str, kind: str) -> str:
    """Return the number of a JSON value of a kind; null for other kinds."""
    tagged = f"""json_extract({value}, '$."$float"')"""
    return (
        f"CASE {kind} WHEN 'integer' THEN {value} WHEN 'real' THEN {value} "
        f"WHEN 'true' THEN 1 WHEN 'false' THEN 0 WHEN 'object' THEN CASE {tagged} "
        "WHEN 'inf' THEN 9e999 WHEN '-inf' THEN -9e999 WHEN '-0.0' THEN 0 ELSE "
        f"CASE WHEN {tagged} NOT LIKE 'nan%' THEN json_extract({tagged}, '$') END END END"
    )


def _sqlite_same(left: str, right: str) -> str:
    """Return SQL that compares two lists or dicts by values and places: 1 equals 1.0."""
    nodes = "SELECT fullkey, CASE type WHEN 'real' THEN 'integer' ELSE type END, atom FROM"
    return (
        f"((SELECT count(*) FROM json_tree({left})) = (SELECT count(*) FROM json_tree({right})) "
        f"AND NOT EXISTS ({nodes} json_tree({left}) EXCEPT {nodes} json_tree({right})))"
    )


class json_is(_JsonFunction):
    """True if a list or dict equals the JSON text of the second argument; 1 equals 1.0."""

    inherit_cache = False  # the paths are not clause elements
    type = Boolean()


@compiles(json_is, "postgresql")
def _pg_json_is(element: json_is, compiler: Any, **kw: Any) -> str:
    other = compiler.process(list(element.clauses)[1], **kw)
    return f"{_pg_value(element, compiler, kw)} = CAST(CAST({other} AS text) AS jsonb)"


@compiles(json_is, "sqlite")
def _sqlite_json_is(element: json_is, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    other = compiler.process(list(element.clauses)[1], **kw)
    same = _sqlite_same("j.value", other)
    return f"(SELECT CASE WHEN j.kind IN ('array', 'object') THEN {same} ELSE 0 END FROM {value})"


class json_has_element(_JsonFunction):
    """True if a list has an element that equals the JSON text of the second argument.

    For numbers there is `json_has_number`.
    """

    inherit_cache = False  # the paths are not clause elements
    type = Boolean()


@compiles(json_has_element, "postgresql")
def _pg_json_has_element(element: json_has_element, compiler: Any, **kw: Any) -> str:
    item = compiler.process(list(element.clauses)[1], **kw)
    items = _pg_items(_pg_value(element, compiler, kw))
    return f"EXISTS (SELECT 1 FROM {items} WHERE item = CAST(CAST({item} AS text) AS jsonb))"


def _pg_items(value: str) -> str:
    """Return a table of the elements of a list; it is empty for other types."""
    only_lists = f"CASE jsonb_typeof({value}) WHEN 'array' THEN {value} END"
    return f"jsonb_array_elements({only_lists}) AS items(item)"


@compiles(json_has_element, "sqlite")
def _sqlite_json_has_element(element: json_has_element, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    other = compiler.process(list(element.clauses)[1], **kw)
    return (
        f"(SELECT EXISTS (SELECT 1 FROM {_SQLITE_ITEMS} WHERE CASE item.type "
        f"WHEN 'text' THEN json_quote(item.value) = {other} WHEN 'null' THEN {other} = 'null' "
        f"WHEN 'array' THEN {_sqlite_same('item.value', other)} "
        f"WHEN 'object' THEN {_sqlite_same('item.value', other)} END) FROM {value})"
    )


_SQLITE_ITEMS = "json_each(CASE j.kind WHEN 'array' THEN j.value END) item"


class json_has_number(_JsonFunction):
    """True if a list has the number of the second argument as an element.

    Numbers are converted as by `json_number`.
    """

    inherit_cache = False  # the paths are not clause elements
    type = Boolean()


@compiles(json_has_number, "postgresql")
def _pg_json_has_number(element: json_has_number, compiler: Any, **kw: Any) -> str:
    number = compiler.process(list(element.clauses)[1], **kw)
    items = _pg_items(_pg_value(element, compiler, kw))
    return f"EXISTS (SELECT 1 FROM {items} WHERE sqlbuffer_number_v1(item) = {number})"


@compiles(json_has_number, "sqlite")
def _sqlite_json_has_number(element: json_has_number, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    number = compiler.process(list(element.clauses)[1], **kw)
    is_number = f"{_sqlite_number('item.value', 'item.type')} = {number}"
    return f"(SELECT EXISTS (SELECT 1 FROM {_SQLITE_ITEMS} WHERE {is_number}) FROM {value})"


class json_has_key(_JsonFunction):
    """True if a dict has a key, the second argument in its stored form; null for other types."""

    inherit_cache = False  # the paths are not clause elements
    type = Boolean()


# A tag is a key that begins with exactly one $; % is written so that drivers do not read it as a
# parameter.
_IS_TAG = "substr({key}, 1, 1) = '$' AND substr({key}, 2, 1) NOT IN ('$', {percent})"


@compiles(json_has_key, "postgresql")
def _pg_json_has_key(element: json_has_key, compiler: Any, **kw: Any) -> str:
    value = _pg_value(element, compiler, kw)
    key = compiler.process(list(element.clauses)[1], **kw)
    is_tag = _IS_TAG.format(key="k", percent="chr(37)")
    tags = f"SELECT 1 FROM jsonb_object_keys({value}) AS keys(k) WHERE {is_tag}"
    return (
        f"(CASE WHEN jsonb_typeof({value}) = 'object' THEN CASE WHEN NOT EXISTS ({tags}) "
        f"THEN jsonb_exists({value}, CAST({key} AS text)) END END)"
    )


@compiles(json_has_key, "sqlite")
def _sqlite_json_has_key(element: json_has_key, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    key = compiler.process(list(element.clauses)[1], **kw)
    keys = "SELECT 1 FROM json_each(CASE j.kind WHEN 'object' THEN j.value END) item WHERE"
    is_tag = _IS_TAG.format(key="item.key", percent="char(37)")
    return (
        f"(SELECT CASE WHEN j.kind = 'object' AND NOT EXISTS ({keys} {is_tag}) "
        f"THEN EXISTS ({keys} item.key = {key}) END FROM {value})"
    )
