"""Tables whose rows have a number within their buffer, and lookups of rows by it.

The primary key is (buffer_id, number) on PostgreSQL, and in the models. A table whose `info` names
the number as `integer_key` has one integer on SQLite, `key` = buffer_id << 40 | number. It is the
rowid, and finds a row in one search; a key of two columns takes two.
"""

from typing import Any

from sqlalchemy import Boolean
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.functions import FunctionElement

NUMBER_BITS = 40
# Ids of buffers and numbers are below these: the key has 63 bits, and so has the first key of the
# next buffer.
MOST_BUFFERS, MOST_NUMBERS = 2**23 - 1, 2**NUMBER_BITS
# The `info` of an index that PostgreSQL lacks.
SQLITE_ONLY = {"only_on": "sqlite"}


@compiles(CreateTable, "sqlite")
def _create_sqlite_table(element: CreateTable, compiler: Any, **kw: Any) -> str:
    created: str = compiler.visit_create_table(element, **kw)
    number = element.element.info.get("integer_key")
    if number is None:
        return created
    name = element.element.name
    head, opening, rest = created.partition("(")
    primary = f"CONSTRAINT pk_{name} PRIMARY KEY (buffer_id, {number})"
    is_packed = f'"key" = (buffer_id << {NUMBER_BITS} | {number})'
    fits = f"{number} > 0 AND {number} < {MOST_NUMBERS}"
    checks = (
        f"CONSTRAINT ck_{name}_key_of_number CHECK ({is_packed}), "
        f"CONSTRAINT ck_{name}_number_has_{NUMBER_BITS}_bits CHECK ({fits})"
    )
    assert primary in rest
    return f'{head}{opening}\n\t"key" INTEGER NOT NULL PRIMARY KEY, {rest.replace(primary, checks)}'


def is_of_the_model(item: Any, name: str | None, kind: str, reflected: bool, compared: Any) -> bool:
    """Tell Alembic what to compare with the models: not objects that only SQLite has."""
    if kind == "column":
        return not (name == "key" and reflected and compared is None)
    return compared is not None or item.info != SQLITE_ONLY


class has_number(FunctionElement[bool]):
    """True if a row has one of some numbers of a buffer: `has_number(number, buffer_id, numbers)`.

    `number` is the column of a table with an `integer_key`, not of an alias, and `numbers` a
    `SeqList`. PostgreSQL without statistics expects only a few rows in a buffer and would rather
    read all of them. So each number is looked up alone, by the primary key, and the rows are
    fetched by their location.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(has_number, "postgresql")
def _pg_has_number(element: has_number, compiler: Any, **kw: Any) -> str:
    column: Any = next(iter(element.clauses))
    _, buffer_id, numbers = (compiler.process(clause, **kw) for clause in element.clauses)
    table, number = column.table.name, column.name
    its_place = f"SELECT ctid FROM {table} WHERE buffer_id = {buffer_id} AND {number} = k.n LIMIT 1"
    listed = f"CAST({numbers} AS bigint[])"
    places = f"SELECT e.ctid FROM unnest({listed}) AS k(n) CROSS JOIN LATERAL ({its_place}) AS e"
    return f"{table}.ctid = ANY (ARRAY({places}))"


@compiles(has_number, "sqlite")
def _sqlite_has_number(element: has_number, compiler: Any, **kw: Any) -> str:
    number, buffer_id, numbers = (compiler.process(clause, **kw) for clause in element.clauses)
    table, _, _ = number.rpartition(".")
    # A user's number may have more bits; then the key would belong to another buffer.
    return (
        f"{table}.key IN (SELECT ({buffer_id} << {NUMBER_BITS}) + value FROM json_each({numbers})) "
        f"AND +{table}.buffer_id = {buffer_id}"
    )


class is_numbered(FunctionElement[bool]):
    """True if a row has a number of a buffer: `is_numbered(number, buffer_id, n)`.

    `number` is the column of a table with an `integer_key`, or of an alias of it.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(is_numbered, "postgresql")
def _pg_is_numbered(element: is_numbered, compiler: Any, **kw: Any) -> str:
    number, buffer_id, n = (compiler.process(clause, **kw) for clause in element.clauses)
    table, _, _ = number.rpartition(".")
    return f"{table}.buffer_id = {buffer_id} AND {number} = {n}"


@compiles(is_numbered, "sqlite")
def _sqlite_is_numbered(element: is_numbered, compiler: Any, **kw: Any) -> str:
    number, buffer_id, n = (compiler.process(clause, **kw) for clause in element.clauses)
    table, _, _ = number.rpartition(".")
    return f"{table}.key = ({buffer_id} << {NUMBER_BITS}) + {n} AND +{number} = {n}"
