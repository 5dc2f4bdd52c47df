"""A check of the database, and what it found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, text
from sqlalchemy.engine import URL

from sqlbuffer.errors import SQLBufferError

Status = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: What was checked.
        status: `OK`, `WARN` or `FAIL`.
        detail: What was found.
        remedy: What to do about it; empty where all is well.
        error: What the library would raise for a failure.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""
    error: type[SQLBufferError] | None = None


Check = Callable[[Connection, URL], Sequence[Finding]]


@dataclass(frozen=True)
class Checks:
    """The checks of one kind of database: of the server, the thorough ones, those of the schema,
    and of all of them those that only read, and little.
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
