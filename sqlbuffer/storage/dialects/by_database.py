"""Operations that differ between the databases."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

D = TypeVar("D", Connection, Engine)
P = ParamSpec("P")
T = TypeVar("T")


def by_database(
    *,
    sqlite: Callable[Concatenate[D, P], T],
    postgresql: Callable[Concatenate[D, P], T],
) -> Callable[Concatenate[D, P], T]:
    """Return an operation that runs the version for the database of its first argument.

    Args:
        sqlite: The operation on SQLite. Its first argument is a connection or an engine.
        postgresql: The operation on PostgreSQL, with the same arguments.
    """
    operations = {"sqlite": sqlite, "postgresql": postgresql}

    def operation(database: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return operations[database.dialect.name](database, *args, **kwargs)

    return operation
