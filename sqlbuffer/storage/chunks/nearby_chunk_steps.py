"""Steps of an episode that are near to other steps, where steps are in chunks."""

from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.chunks.step_relations import (
    pg_expressions,
    pg_replaced,
    sqlite_expressions,
    sqlite_replaced,
)
from sqlbuffer.storage.schema.compiled_clauses import processed


class chunk_steps_near(FunctionElement[Any]):
    """Steps of chunks near to other steps, as `steps_near` and `limited_steps_near` for rows.

    `arrays` is the block that has the step's typed fields, and `block_place` the place there.
    """

    inherit_cache = True
    COLUMNS: tuple[str, ...] = (
        "seq", "episode_id", "t", "reward_t", "terminated", "truncated", "extra", "arrays",
        "model_version", "session_id", "block_place",
    )  # fmt: skip


def first_chunk(buffer_id: str, episode_id: str, t: str) -> str:
    """Return SQL for the t of the chunk of an episode that holds a step.

    If no chunk holds it, the SQL gives the last chunk before the step, otherwise the step itself. A
    chunk may have one step only, so a search over all t that its chunk may have would read
    hundreds.
    """
    return f"""coalesce((SELECT b.t FROM chunks b WHERE b.buffer_id = {buffer_id}
        AND b.episode_id = {episode_id} AND b.t <= {t} ORDER BY b.t DESC LIMIT 1), {t})"""


def _columns(expressions: dict[str, str]) -> str:
    expressions = {**expressions, "arrays": expressions["block"]}
    return ", ".join(f"{expressions[name]} AS {name}" for name in chunk_steps_near.COLUMNS)


@compiles(chunk_steps_near, "postgresql")
def _pg_chunk_steps_near(element: chunk_steps_near, compiler: Any, **kw: Any) -> str:
    buffer_id, anchors, first, last = processed(element, compiler, kw)
    start = first_chunk(buffer_id, "a.episode_id", f"a.t + {first}")
    return f"""(SELECT a.t AS anchor_t, a.length, f.* FROM {anchors} AS a CROSS JOIN LATERAL (
        SELECT {_columns(pg_expressions("p.place"))}
        FROM chunks c
        CROSS JOIN LATERAL generate_series(
            greatest(0, a.t + {first} - c.t),
            least(c.n_steps - 1, a.t::bigint + {last} - c.t)::integer
        ) AS p(place)
        LEFT JOIN LATERAL (
            SELECT * FROM chunk_data
            WHERE chunk_data.buffer_id = {buffer_id} AND chunk_data.first_seq = c.first_seq LIMIT 1
        ) d ON true
        {pg_replaced(buffer_id, "(c.first_seq + p.place)")}
        WHERE c.buffer_id = {buffer_id} AND c.episode_id = a.episode_id
          AND c.t >= {start} AND c.t <= a.t::bigint + {last}
          AND c.t + p.place <> a.t AND NOT EXISTS (
              SELECT 1 FROM deleted_steps x
              WHERE x.buffer_id = {buffer_id} AND x.seq = c.first_seq + p.place OFFSET 0)
        OFFSET 0) f)"""


@compiles(chunk_steps_near, "sqlite")
def _sqlite_chunk_steps_near(element: chunk_steps_near, compiler: Any, **kw: Any) -> str:
    buffer_id, anchors, first, last = processed(element, compiler, kw)
    start = first_chunk(buffer_id, "a.episode_id", f"a.t + {first}")
    # CROSS JOIN keeps SQLite from changing the order of the loops.
    return f"""(SELECT a.t AS anchor_t, a.length, {_columns(sqlite_expressions("p.place"))}
        FROM {anchors} AS a
        CROSS JOIN chunks c
        CROSS JOIN chunk_places p
        LEFT JOIN chunk_data d ON d.key = c.key
        {sqlite_replaced(buffer_id, "c.first_seq + p.place")}
        WHERE c.buffer_id = {buffer_id} AND c.episode_id = a.episode_id
          AND c.t >= {start} AND c.t <= a.t + {last}
          AND p.place >= a.t + {first} - c.t AND p.place <= a.t + {last} - c.t
          AND p.place < c.n_steps AND c.t + p.place <> a.t AND NOT EXISTS (
              SELECT 1 FROM deleted_steps x
              WHERE x.buffer_id = {buffer_id} AND x.seq = c.first_seq + p.place))"""
