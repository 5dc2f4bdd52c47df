"""Types of the mapped columns: conversion of database values to Python values and back."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, Double, Text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from sqlbuffer.codec.decoder import untag
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.errors import FieldError

# Tags of values whose bytes are kept outside the JSON.
_BYTE_TAGS = frozenset({"$array", "$scalar", "$tensor", "$bytes"})


class Payload(TypeDecorator[Any]):
    """JSON with tags, as Python values. A value with arrays or bytes keeps its tags."""

    impl = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    cache_ok = True

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        # The other side of an operator is a path or a scalar, not a payload.
        return self.impl_instance.coerce_compared_value(op, value)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        tree = Encoder().tree(value, "payload")
        if _needs_bytes(tree):
            raise FieldError("a session stores no arrays or bytes: use ReplayBuffer.store")
        return tree

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return value if _needs_bytes(value) else untag(value, b"")


class ExtraPayload(Payload):
    """A dict as JSON with tags."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is not None and not isinstance(value, Mapping):
            raise FieldError(f"extra: expected a dict, got {type(value).__name__}")
        return super().process_bind_param(value, dialect)


def _needs_bytes(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(map(_needs_bytes, tree))
    return isinstance(tree, dict) and (
        not _BYTE_TAGS.isdisjoint(tree) or any(map(_needs_bytes, tree.values()))
    )


class RealValue(TypeDecorator[float]):
    """A float. NaN is refused: the columns hold null for it, and its tag is not sent along."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        if value is not None and value != value:
            raise FieldError("a session stores no NaN: use ReplayBuffer.store")
        return value


class UtcTime(TypeDecorator[datetime]):
    """A time in UTC; SQLite has it as text."""

    impl = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        return None if value is None else value.astimezone(UTC)


class RowNumber(TypeDecorator[int]):
    """The number that the database gives to a row."""

    impl = BigInteger
    cache_ok = True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return row_number_of(column)


class row_number_of(FunctionElement[int]):
    """The number of a row; in RETURNING, of the row that was inserted."""

    inherit_cache = True
    type = BigInteger()


@compiles(row_number_of)
def _column_itself(element: row_number_of, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(row_number_of, "sqlite")
def _sqlite_row_number(element: row_number_of, compiler: Any, **kw: Any) -> str:
    if compiler.isinsert:
        # RETURNING has the values sent to the view, but sees the effects of the row's trigger.
        return "(SELECT next_seq - 1 FROM buffers WHERE name = v_experiences.buffer)"
    return _column_itself(element, compiler, **kw)
