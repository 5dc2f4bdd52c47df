"""Expressions and types that differ between the databases.

Lists and numbers as parameters, the clock of the server, and hints for the planner.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
from sqlalchemy import (
    ARRAY,
    TIMESTAMP,
    BigInteger,
    Boolean,
    Double,
    Executable,
    Float,
    Integer,
    Numeric,
    Select,
    Text,
    bindparam,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement, ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType


def processed(element: FunctionElement[Any], compiler: Any, kw: Any) -> list[str]:
    # Otherwise a select inside takes part in the FROM around it.
    kw = {name: value for name, value in kw.items() if name not in ("asfrom", "from_linter")}
    return [compiler.process(clause, **kw) for clause in element.clauses]


class current_transaction_id(FunctionElement[int]):
    """The id of the current transaction; null on SQLite."""

    inherit_cache = True
    type = BigInteger()


@compiles(current_transaction_id, "postgresql")
def _pg_current_transaction_id(element: current_transaction_id, compiler: Any, **kw: Any) -> str:
    return "pg_current_xact_id()"


@compiles(current_transaction_id, "sqlite")
def _sqlite_current_transaction_id(
    element: current_transaction_id, compiler: Any, **kw: Any
) -> str:
    return "NULL"


class _List(TypeDecorator[Any]):
    """A list as one parameter: an array on PostgreSQL, JSON text on SQLite."""

    impl = Text
    cache_ok = True
    item: TypeEngine[Any]

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ARRAY(self.item) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        if dialect.name == "postgresql":
            return list(value)
        return orjson.dumps(list(value)).decode()


class SeqList(TypeDecorator[Any]):
    """A list of seq as text: an array's on PostgreSQL, JSON on SQLite.

    psycopg would convert each number separately, which takes a tenth of the time of a sample.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        numbers = ",".join(map(str, value))
        return f"{{{numbers}}}" if dialect.name == "postgresql" else f"[{numbers}]"


def listed(value: Any) -> Sequence[Any]:
    """Return a list from the database (JSON on SQLite); empty for None."""
    if not isinstance(value, str):
        return value or ()
    values: Sequence[Any]
    try:
        values = orjson.loads(value)
    except orjson.JSONDecodeError:  # +-9e999, which stands for infinities
        values = json.loads(value)
    return values


class IntegerList(_List):
    """A list of 64-bit integers."""

    item = BigInteger()
    cache_ok = True


class IdList(_List):
    """A list of 32-bit integers."""

    item = Integer()
    cache_ok = True


class RealList(_List):
    """A list of doubles."""

    item = Double()
    cache_ok = True


class BooleanList(_List):
    """A list of booleans."""

    item = Boolean()
    cache_ok = True


class KeyList(_List):
    """A list of text keys."""

    item = Text(collation="C")
    cache_ok = True


class NumberList(_List):
    """A list of integers that compare exactly with JSON numbers."""

    item = Numeric()
    cache_ok = True


class Real(TypeDecorator[Any]):
    """A double; infinities can be written out in a statement's text."""

    impl = Float
    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        return lambda value: _number_text(value, dialect, "double precision")


class Number(TypeDecorator[Any]):
    """A number that compares exactly with JSON numbers: numeric on PostgreSQL, itself on SQLite."""

    impl = Float
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # On SQLite, SQLAlchemy binds Float and Numeric as floats: that rounds integers above 2**53.
        return dialect.type_descriptor(Numeric() if dialect.name == "postgresql" else BigInteger())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if dialect.name != "postgresql" or isinstance(value, bool):
            return int(value) if isinstance(value, bool) else value
        if isinstance(value, int) or math.isinf(value):
            return Decimal(value)
        # Below 1e16 JSON holds the shortest repr; from there on the codec writes all digits.
        return Decimal(repr(value)) if abs(value) < 1e16 else Decimal(int(value))

    def literal_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        return lambda value: _number_text(
            self.process_bind_param(value, dialect), dialect, "numeric"
        )


class TransactionId(UserDefinedType[int]):
    """The id of a transaction with its epoch, which never restarts: PostgreSQL's xid8."""

    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return "XID8"

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], int | None]:
        return lambda value: None if value is None else int(value)


class Json(TypeDecorator[Any]):
    """JSON: JSONB on PostgreSQL, text on SQLite.

    Whoever opens a file does not import the types of PostgreSQL.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name != "postgresql":
            return dialect.type_descriptor(Text())
        from sqlalchemy.dialects.postgresql import JSONB

        return dialect.type_descriptor(JSONB())


def _number_text(value: Any, dialect: Dialect, type_: str) -> str:
    """Return a number in the form of a statement; infinities have no literal."""
    if not math.isinf(value):
        return str(value)
    sign = "-" if value < 0 else ""
    if dialect.name == "postgresql":
        return f"CAST('{sign}Infinity' AS {type_})"
    return f"{sign}9e999"


class is_one_of(FunctionElement[bool]):
    """True if a column is among the values of one array parameter.

    The text of the statement then does not vary with the number of values. `is_one_of(column,
    values)`: the values are a list, bound as an array on PostgreSQL and as JSON on SQLite.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True  # or SQLAlchemy appends `= 1`, which no index serves


@compiles(is_one_of, "postgresql")
def _pg_is_one_of(element: is_one_of, compiler: Any, **kw: Any) -> str:
    column, values = element.clauses
    return f"{compiler.process(column, **kw)} = ANY ({compiler.process(values, **kw)})"


@compiles(is_one_of, "sqlite")
def _sqlite_is_one_of(element: is_one_of, compiler: Any, **kw: Any) -> str:
    column, values = element.clauses
    listed = f"SELECT value FROM json_each({compiler.process(values, **kw)})"
    return f"{compiler.process(column, **kw)} IN ({listed})"


def one_of(column: Any, values: Any) -> ColumnElement[bool]:
    """Return the condition for a column to be among values.

    The type of a column may add to it what finds its rows.
    """
    is_listed = is_one_of(column, values)
    among = getattr(column.type, "among", None)
    condition: ColumnElement[bool] = is_listed
    return condition if among is None else among(column, is_listed, values)


def one_of_keys(column: Any, keys: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition for a text column to be one of some keys."""
    return one_of(column, bindparam(None, list(keys), KeyList(), unique=True))


class is_number_of(is_one_of):
    """The same condition for a column of numbers and a `SeqList`."""

    inherit_cache = True


@compiles(is_number_of, "postgresql")
def _pg_is_number_of(element: is_number_of, compiler: Any, **kw: Any) -> str:
    column, values = processed(element, compiler, kw)
    return f"{column} = ANY ({pg_array(values)})"


def pg_array(seqs: str) -> str:
    """Return the array of a `SeqList`, converted from its text once.

    If no index is used, a cast would run for each row, at 0.1 ms for 500 numbers.
    """
    return f"CAST((SELECT CAST({seqs} AS bigint[])) AS bigint[])"


class seqs_of(FunctionElement[Any]):
    """The numbers that a select of `key` returns, in the form of a parameter of numbers."""

    inherit_cache = True


@compiles(seqs_of, "postgresql")
def _pg_seqs_of(element: seqs_of, compiler: Any, **kw: Any) -> str:
    (keys,) = processed(element, compiler, kw)
    return f"ARRAY{keys}"


@compiles(seqs_of, "sqlite")
def _sqlite_seqs_of(element: seqs_of, compiler: Any, **kw: Any) -> str:
    (keys,) = processed(element, compiler, kw)
    return f"(SELECT json_group_array(key) FROM {keys})"


class n_seqs(FunctionElement[int]):
    """The number of numbers in `seqs_of`."""

    inherit_cache = True
    type = BigInteger()


@compiles(n_seqs, "postgresql")
def _pg_n_seqs(element: n_seqs, compiler: Any, **kw: Any) -> str:
    (seqs,) = processed(element, compiler, kw)
    return f"cardinality({seqs})"


@compiles(n_seqs, "sqlite")
def _sqlite_n_seqs(element: n_seqs, compiler: Any, **kw: Any) -> str:
    (seqs,) = processed(element, compiler, kw)
    return f"json_array_length({seqs})"


class seq_at(FunctionElement[int]):
    """The number in `seqs_of` at a place from 0: `seq_at(seqs, place)`."""

    inherit_cache = True
    type = BigInteger()


@compiles(seq_at, "postgresql")
def _pg_seq_at(element: seq_at, compiler: Any, **kw: Any) -> str:
    seqs, place = processed(element, compiler, kw)
    return f"({seqs})[{place} + 1]"


@compiles(seq_at, "sqlite")
def _sqlite_seq_at(element: seq_at, compiler: Any, **kw: Any) -> str:
    seqs, place = processed(element, compiler, kw)
    return f"json_extract({seqs}, '$[' || {place} || ']')"


class numbers_in(FunctionElement[Any]):
    """A table of the numbers of one parameter, with the columns `value` and `place`."""

    inherit_cache = True


@compiles(numbers_in, "postgresql")
def _pg_numbers_in(element: numbers_in, compiler: Any, **kw: Any) -> str:
    (numbers,) = processed(element, compiler, kw)
    return (
        f"(SELECT value, place FROM unnest(CAST({numbers} AS bigint[])) "
        "WITH ORDINALITY AS n(value, place))"
    )


@compiles(numbers_in, "sqlite")
def _sqlite_numbers_in(element: numbers_in, compiler: Any, **kw: Any) -> str:
    (numbers,) = processed(element, compiler, kw)
    return f"(SELECT value, key AS place FROM json_each({numbers}))"


class explain(Executable, ClauseElement):
    """The plan of a statement, one row for each line."""

    inherit_cache = False

    def __init__(self, statement: Select[Any]) -> None:
        self.statement = statement


@compiles(explain, "postgresql")
def _pg_explain(element: explain, compiler: Any, **kw: Any) -> str:
    return f"EXPLAIN {compiler.process(element.statement, **kw)}"


@compiles(explain, "sqlite")
def _sqlite_explain(element: explain, compiler: Any, **kw: Any) -> str:
    return f"EXPLAIN QUERY PLAN {compiler.process(element.statement, **kw)}"


class unindexed(FunctionElement[int]):
    """The column itself, without the use of an index.

    It is for bounds and orders that would keep the planner from a better index.
    """

    inherit_cache = True
    type = BigInteger()


@compiles(unindexed)
def _unindexed(element: unindexed, compiler: Any, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


class utc_now(FunctionElement[Any]):
    """The current time in the form of TIME columns."""

    inherit_cache = True
    type = Text()


@compiles(utc_now, "postgresql")
def _pg_utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "now()"


@compiles(utc_now, "sqlite")
def _sqlite_utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"


def utc_time(value: Any) -> Any:
    """Return the `datetime` of a time of either database, in UTC; None for None."""
    if value is None:
        return None
    time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return time.astimezone(UTC)


class random_uuid(FunctionElement[Any]):
    """A new random UUID."""

    inherit_cache = True
    type = Text()


@compiles(random_uuid, "postgresql")
def _pg_random_uuid(element: random_uuid, compiler: Any, **kw: Any) -> str:
    return "gen_random_uuid()"


@compiles(random_uuid, "sqlite")
def _sqlite_random_uuid(element: random_uuid, compiler: Any, **kw: Any) -> str:
    return "(lower(hex(randomblob(16))))"


class age_s(FunctionElement[float]):
    """Seconds since a TIME column, by the database's clock."""

    inherit_cache = True
    type = Double()


@compiles(age_s, "postgresql")
def _pg_age_s(element: age_s, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"CAST(extract(epoch FROM clock_timestamp() - {column}) AS double precision)"


@compiles(age_s, "sqlite")
def _sqlite_age_s(element: age_s, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"((julianday('now') - julianday({column})) * 86400.0)"


class unix_time(FunctionElement[float]):
    """A TIME column in Unix seconds."""

    inherit_cache = True
    type = Double()


@compiles(unix_time, "postgresql")
def _pg_unix_time(element: unix_time, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"CAST(extract(epoch FROM {column}) AS double precision)"


@compiles(unix_time, "sqlite")
def _sqlite_unix_time(element: unix_time, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"((julianday({column}) - 2440587.5) * 86400.0)"


class unix_now(FunctionElement[float]):
    """The current time in Unix seconds."""

    inherit_cache = True
    type = Double()


@compiles(unix_now, "postgresql")
def _pg_unix_now(element: unix_now, compiler: Any, **kw: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


@compiles(unix_now, "sqlite")
def _sqlite_unix_now(element: unix_now, compiler: Any, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


class seconds_ago(FunctionElement[Any]):
    """The time some seconds ago, in the form of TIME columns."""

    inherit_cache = True
    type = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")


@compiles(seconds_ago, "postgresql")
def _pg_seconds_ago(element: seconds_ago, compiler: Any, **kw: Any) -> str:
    (seconds,) = processed(element, compiler, kw)
    return f"now() - make_interval(secs => {seconds})"


@compiles(seconds_ago, "sqlite")
def _sqlite_seconds_ago(element: seconds_ago, compiler: Any, **kw: Any) -> str:
    (seconds,) = processed(element, compiler, kw)
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (-{seconds}) || ' seconds')"


class is_past(FunctionElement[bool]):
    """True if a TIME column is not in the future, by the database's clock at this statement."""

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(is_past, "postgresql")
def _pg_is_past(element: is_past, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"{column} <= clock_timestamp()"


@compiles(is_past, "sqlite")
def _sqlite_is_past(element: is_past, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"{column} <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"


class in_seconds(FunctionElement[Any]):
    """The time in some seconds, in the form of TIME columns, by the clock at this statement."""

    inherit_cache = True
    type = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")


@compiles(in_seconds, "postgresql")
def _pg_in_seconds(element: in_seconds, compiler: Any, **kw: Any) -> str:
    (seconds,) = processed(element, compiler, kw)
    return f"clock_timestamp() + make_interval(secs => {seconds})"


@compiles(in_seconds, "sqlite")
def _sqlite_in_seconds(element: in_seconds, compiler: Any, **kw: Any) -> str:
    (seconds,) = processed(element, compiler, kw)
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', {seconds} || ' seconds')"
