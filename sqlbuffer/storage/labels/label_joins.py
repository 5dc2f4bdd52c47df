"""Rows joined with labels that were given late."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.schema.compiled_clauses import processed


class late_labels(FunctionElement[Any]):
    """The labels of a row, as a table to the right of a join: `late_labels(buffer_id, seq)`.

    Each row is looked up: PostgreSQL would rather read all labels, or all from the first one on.
    """

    inherit_cache = True


_LATE_COLUMNS = "buffer_id, seq, reward_t, adv_t, v_t, extra"


@compiles(late_labels, "postgresql")
def _pg_late_labels(element: late_labels, compiler: Any, **kw: Any) -> str:
    buffer_id, seq = processed(element, compiler, kw)
    return (
        f"LATERAL (SELECT {_LATE_COLUMNS} FROM labels WHERE buffer_id = {buffer_id} "
        f"AND seq = {seq} OFFSET 0)"
    )


@compiles(late_labels, "sqlite")
def _sqlite_late_labels(element: late_labels, compiler: Any, **kw: Any) -> str:
    return "labels"


class labelled_steps(FunctionElement[Any]):
    """The table of `steps_near` with values that were given late.

    The arguments are `labelled_steps(buffer_id, steps)`.
    """

    inherit_cache = True


_REPLACED = {name: f"coalesce(l.{name}, s.{name}) AS {name}" for name in ("reward_t", "extra")}


def _labelled_columns(element: labelled_steps) -> str:
    _, steps = element.clauses
    names: Sequence[str] = ("anchor_t", "length", *getattr(steps, "COLUMNS", ()))
    return ", ".join(_REPLACED.get(name, f"s.{name}") for name in names)


@compiles(labelled_steps, "postgresql")
def _pg_labelled_steps(element: labelled_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, steps = processed(element, compiler, kw)
    return (
        f"(SELECT {_labelled_columns(element)} FROM {steps} AS s LEFT JOIN LATERAL ("
        f"SELECT reward_t, extra FROM labels WHERE buffer_id = {buffer_id} AND seq = s.seq "
        "OFFSET 0) AS l ON true)"
    )


@compiles(labelled_steps, "sqlite")
def _sqlite_labelled_steps(element: labelled_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, steps = processed(element, compiler, kw)
    return (
        f"(SELECT {_labelled_columns(element)} FROM {steps} AS s "
        f"LEFT JOIN labels AS l ON l.buffer_id = {buffer_id} AND l.seq = s.seq)"
    )
