"""Lists of values as one parameter, so that a statement's text does not vary with their number."""

from typing import Any

from sqlalchemy import BigInteger, Boolean
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.schema.compiled_clauses import processed


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
    found: ColumnElement[bool] = is_listed
    return found if among is None else among(column, is_listed, values)


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
