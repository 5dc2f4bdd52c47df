"""Steps of an episode near to other steps."""

from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.schema.compiled_clauses import processed


class steps_near(FunctionElement[Any]):
    """A table of steps near to others: `steps_near(buffer_id, anchors, first, last)`.

    `anchors` is a select of (episode_id, t, length). For each of its rows the table has the steps
    of the episode from t + first to t + last, except itself. They come with the anchor's t and
    length. Each anchor is looked up: PostgreSQL without statistics would rather read the whole
    buffer.
    """

    inherit_cache = True
    COLUMNS: tuple[str, ...] = (
        "seq", "episode_id", "t", "reward_t", "terminated", "truncated", "extra", "arrays",
    )  # fmt: skip


class limited_steps_near(steps_near):
    """The same table, with the columns that limits need."""

    inherit_cache = True
    COLUMNS = (*steps_near.COLUMNS, "model_version", "session_id")


@compiles(steps_near, "postgresql")
def _pg_steps_near(element: steps_near, compiler: Any, **kw: Any) -> str:
    buffer_id, anchors, first, last = processed(element, compiler, kw)
    columns = ", ".join(element.COLUMNS)
    return (
        f"(SELECT a.t AS anchor_t, a.length, f.* FROM {anchors} AS a CROSS JOIN LATERAL ("
        f"SELECT {columns} FROM experiences WHERE buffer_id = {buffer_id} "
        f"AND episode_id = a.episode_id AND t BETWEEN a.t + {first} AND a.t + {last} AND t <> a.t "
        "OFFSET 0) f)"
    )


@compiles(steps_near, "sqlite")
def _sqlite_steps_near(element: steps_near, compiler: Any, **kw: Any) -> str:
    buffer_id, anchors, first, last = processed(element, compiler, kw)
    columns = ", ".join(f"f.{name}" for name in element.COLUMNS)
    # CROSS JOIN keeps SQLite from changing the order of the loops.
    return (
        f"(SELECT a.t AS anchor_t, a.length, {columns} FROM {anchors} AS a "
        f"CROSS JOIN experiences AS f WHERE f.buffer_id = {buffer_id} "
        f"AND f.episode_id = a.episode_id AND f.t BETWEEN a.t + {first} AND a.t + {last} "
        "AND f.t <> a.t)"
    )
