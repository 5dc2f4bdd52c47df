"""The id of the current transaction."""

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


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
