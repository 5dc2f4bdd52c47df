"""A check of the database, and its result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, text
from sqlalchemy.engine import URL

from sqlbuffer.errors import SQLBufferError

Status = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Subject of the check.
        status: `OK`, `WARN` or `FAIL`.
        detail: Result of the check.
        remedy: Action to take; empty if all is well.
        error: Error that the library would raise for a failure.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""
    error: type[SQLBufferError] | None = None


Check = Callable[[Connection, URL], Sequence[Finding]]


@dataclass(frozen=True)
class Checks:
    """The checks of one kind of database.

    They are those of the server, the thorough ones, those of the schema, and the ones that read
    only little.
    """

    server: tuple[Check, ...]
    full: tuple[Check, ...]
    schema: tuple[Check, ...]
    objects: str
    quick: tuple[Check, ...]


def failure(name: str, error: SQLBufferError) -> Finding:
    what, _, remedy = str(error).rpartition("; ")
    return Finding(name, "FAIL", what or str(error), remedy if what else "", type(error))


def fetch_all(connection: Connection, statement: str, **parameters: Any) -> Sequence[Any]:
    return connection.execute(text(statement), parameters).all()


def fetch_one(connection: Connection, statement: str, **parameters: Any) -> Any:
    return connection.execute(text(statement), parameters).one()
