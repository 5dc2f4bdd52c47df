"""Page through rows by two columns; the second column is unique.

Rows without a value in the first column come last.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, or_


def is_behind(columns: Sequence[Any], after: Sequence[Any], descends: bool) -> ColumnElement[bool]:
    """Return the expression that is true if two columns come after two values."""
    (one, two), (value, tie) = columns, after
    if value is None:
        found = and_(one.is_(None), two < tie if descends else two > tie)
    elif descends:
        found = and_(one <= value, or_(one < value, two < tie))
    else:
        found = and_(one >= value, or_(one > value, two > tie))
    return found


def ordered(query: Select[Any], columns: Sequence[Any], descends: bool) -> Select[Any]:
    """Return the query ordered by columns, all ascending or all descending."""
    return query.order_by(*(column.desc() if descends else column for column in columns))


def rows_in_order(
    connection: Connection,
    query: Select[Any],
    columns: Sequence[Any],
    after: Sequence[Any] | None,
    descends: bool,
    limit: int,
) -> list[Any]:
    """Return the first rows of a query behind two values; None: from its begin.

    Two statements, of which an index serves each: the databases put nulls at different ends.
    """
    value, found = columns[0], list[Any]()
    parts = [value.is_not(None) if after is None else is_behind(columns, after, descends)]
    if value.nullable and (after is None or after[0] is not None):
        parts.append(value.is_(None))
    for part in parts:
        if n_more := limit - len(found):
            rest = ordered(query.where(part), columns, descends).limit(n_more)
            found += connection.execute(rest).all()
    return found
