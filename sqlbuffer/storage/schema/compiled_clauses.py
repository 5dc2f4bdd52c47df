"""The clauses of an SQL element, compiled."""

from typing import Any

from sqlalchemy.sql.functions import FunctionElement


def processed(element: FunctionElement[Any], compiler: Any, kw: Any) -> list[str]:
    # Otherwise a select inside takes part in the FROM around it.
    kw = {name: value for name, value in kw.items() if name not in ("asfrom", "from_linter")}
    return [compiler.process(clause, **kw) for clause in element.clauses]
