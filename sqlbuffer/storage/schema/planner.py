"""Hints for the planner of the database, and its plans."""

from typing import Any

from sqlalchemy import BigInteger, Executable, Select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.functions import FunctionElement


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
