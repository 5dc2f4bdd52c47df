"""The time of the database, and the distance of columns from it."""

from typing import Any

from sqlalchemy import Boolean, Double, Text
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.schema.parameters import processed


class utc_now(FunctionElement[Any]):
    """The current time in the form of TIME columns."""

    inherit_cache = True
    type = Text()


@compiles(utc_now, "postgresql")
def _pg_utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "now()"


@compiles(utc_now, "sqlite")
def _sqlite_utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"


class age_s(FunctionElement[float]):
    """Seconds since a TIME column, by the database's clock."""

    inherit_cache = True
    type = Double()


@compiles(age_s, "postgresql")
def _pg_age_s(element: age_s, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"CAST(extract(epoch FROM clock_timestamp() - {column}) AS double precision)"


@compiles(age_s, "sqlite")
def _sqlite_age_s(element: age_s, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"((julianday('now') - julianday({column})) * 86400.0)"


class unix_now(FunctionElement[float]):
    """The current time in Unix seconds."""

    inherit_cache = True
    type = Double()


@compiles(unix_now, "postgresql")
def _pg_unix_now(element: unix_now, compiler: Any, **kw: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


@compiles(unix_now, "sqlite")
def _sqlite_unix_now(element: unix_now, compiler: Any, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


class seconds_ago(FunctionElement[Any]):
    """The time some seconds ago, in the form of TIME columns."""

    inherit_cache = True
    type = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")


@compiles(seconds_ago, "postgresql")
def _pg_seconds_ago(element: seconds_ago, compiler: Any, **kw: Any) -> str:
    (seconds,) = processed(element, compiler, kw)
    return f"now() - make_interval(secs => {seconds})"


@compiles(seconds_ago, "sqlite")
def _sqlite_seconds_ago(element: seconds_ago, compiler: Any, **kw: Any) -> str:
    (seconds,) = processed(element, compiler, kw)
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (-{seconds}) || ' seconds')"


class is_past(FunctionElement[bool]):
    """True if a TIME column is not in the future, by the database's clock at this statement."""

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(is_past, "postgresql")
def _pg_is_past(element: is_past, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"{column} <= clock_timestamp()"


@compiles(is_past, "sqlite")
def _sqlite_is_past(element: is_past, compiler: Any, **kw: Any) -> str:
    (column,) = processed(element, compiler, kw)
    return f"{column} <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"


class in_seconds(FunctionElement[Any]):
    """The time in some seconds, in the form of TIME columns, by the clock at this statement."""

    inherit_cache = True
    type = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")


@compiles(in_seconds, "postgresql")
def _pg_in_seconds(element: in_seconds, compiler: Any, **kw: Any) -> str:
    (seconds,) = processed(element, compiler, kw)
    return f"clock_timestamp() + make_interval(secs => {seconds})"


@compiles(in_seconds, "sqlite")
def _sqlite_in_seconds(element: in_seconds, compiler: Any, **kw: Any) -> str:
    (seconds,) = processed(element, compiler, kw)
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', {seconds} || ' seconds')"
