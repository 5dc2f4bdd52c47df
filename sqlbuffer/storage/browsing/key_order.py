"""Page through rows by two columns; the second column is unique."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_


def is_behind(columns: Sequence[Any], after: Sequence[Any], descends: bool) -> ColumnElement[bool]:
    """Return the expression that is true if two columns come after two values."""
    (one, two), (value, tie) = columns, after
    if descends:
        found = and_(one <= value, or_(one < value, two < tie))
    else:
        found = and_(one >= value, or_(one > value, two > tie))
    return found


def ordered(query: Select[Any], columns: Sequence[Any], descends: bool) -> Select[Any]:
    """Return the query ordered by columns, all ascending or all descending."""
    return query.order_by(*(column.desc() if descends else column for column in columns))
