"""Types of parameters and columns that differ between the two databases."""

import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import orjson
from sqlalchemy import BigInteger, Boolean, Double, Float, Numeric, Text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType


class _List(TypeDecorator[Any]):
    """A list as one parameter: an array on PostgreSQL, JSON text on SQLite."""

    impl = Text
    cache_ok = True
    item: TypeEngine[Any]

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ARRAY(self.item) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        if dialect.name == "postgresql":
            return list(value)
        return orjson.dumps(list(value)).decode()


class SeqList(TypeDecorator[Any]):
    """A list of seq as text: an array's on PostgreSQL, JSON on SQLite.

    psycopg would convert each number separately, which takes a tenth of the time of a sample.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        numbers = ",".join(map(str, value))
        return f"{{{numbers}}}" if dialect.name == "postgresql" else f"[{numbers}]"


def listed(found: Any) -> Sequence[Any]:
    """Return a list from the database (JSON on SQLite); empty for None."""
    if not isinstance(found, str):
        return found or ()
    values: Sequence[Any]
    try:
        values = orjson.loads(found)
    except orjson.JSONDecodeError:  # +-9e999, which stands for infinities
        values = json.loads(found)
    return values


class IntegerList(_List):
    """A list of 64-bit integers."""

    item = BigInteger()
    cache_ok = True


class RealList(_List):
    """A list of doubles."""

    item = Double()
    cache_ok = True


class BooleanList(_List):
    """A list of booleans."""

    item = Boolean()
    cache_ok = True


class KeyList(_List):
    """A list of text keys."""

    item = Text(collation="C")
    cache_ok = True


class NumberList(_List):
    """A list of integers that compare exactly with JSON numbers."""

    item = Numeric()
    cache_ok = True


class Real(TypeDecorator[Any]):
    """A double; infinities can be written out in a statement's text."""

    impl = Float
    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        return lambda value: _number_text(value, dialect, "double precision")


class Number(TypeDecorator[Any]):
    """A number that compares exactly with JSON numbers: numeric on PostgreSQL, itself on SQLite."""

    impl = Float
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # On SQLite, SQLAlchemy binds Float and Numeric as floats: that rounds integers above 2**53.
        return dialect.type_descriptor(Numeric() if dialect.name == "postgresql" else BigInteger())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if dialect.name != "postgresql" or isinstance(value, bool):
            return int(value) if isinstance(value, bool) else value
        if isinstance(value, int) or math.isinf(value):
            return Decimal(value)
        # Below 1e16 JSON holds the shortest repr; from there on the codec writes all digits.
        return Decimal(repr(value)) if abs(value) < 1e16 else Decimal(int(value))

    def literal_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        return lambda value: _number_text(
            self.process_bind_param(value, dialect), dialect, "numeric"
        )


class TransactionId(UserDefinedType[int]):
    """The id of a transaction with its epoch, which never restarts: PostgreSQL's xid8."""

    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return "XID8"

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], int | None]:
        return lambda value: None if value is None else int(value)


# For the comparison of the models with a database.
ischema_names["xid8"] = TransactionId


def _number_text(value: Any, dialect: Dialect, type_: str) -> str:
    """Return a number in the form of a statement; infinities have no literal."""
    if not math.isinf(value):
        return str(value)
    sign = "-" if value < 0 else ""
    if dialect.name == "postgresql":
        return f"CAST('{sign}Infinity' AS {type_})"
    return f"{sign}9e999"
