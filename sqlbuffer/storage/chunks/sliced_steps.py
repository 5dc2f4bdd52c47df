"""Steps with their neighbours in the same chunk, read from the bytes of chunks alone."""

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Integer, Text, column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.schema.compiled_clauses import processed


class Slice(NamedTuple):
    """Consecutive steps of a chunk.

    Attributes:
        seq: Number of the first step.
        episode_id: Number of their episode.
        t: Step of the first one in the episode.
        place: Place of the first one in the chunk.
        n: Number of steps.
        rewards: Their bytes of `chunk_data.rewards`.
        ends: Their bytes of `chunk_data.ends`.
        block_steps: Steps in a block.
        offsets: Offsets of all blocks of the chunk: a list, its JSON, or None.
        records: The blocks that hold these steps.
        deleted: Numbers of the deleted steps: a list, its JSON, or None.
    """

    seq: int
    episode_id: int
    t: int
    place: int
    n: int
    rewards: Any
    ends: Any
    block_steps: int
    offsets: Any
    records: Any
    deleted: Any


# Columns that the selections of batches name, and those of the slice.
_COLUMNS: dict[str, Any] = {
    "seq": BigInteger(),
    "task_id": Text(),
    "agent_id": Text(),
    "step": BigInteger(),
    "episode_id": BigInteger(),
    "t": Integer(),
}
SLICE_COLUMNS = (
    "n_steps", "own_place", "place", "n", "rewards", "ends", "block_steps", "offsets", "records",
    "deleted",
)  # fmt: skip


class sliced_steps(FunctionElement[Any]):
    """`sliced_steps(buffer_id, seqs, first, last)`: see `sliced_steps_at`."""

    inherit_cache = True


def sliced_steps_at(buffer_id: Any, seqs: Any, first: int, last: int) -> Any:
    """Return the table of the steps with a number of a `SeqList`, each with a slice of its chunk.

    The slice has the steps from `first` to `last` after the step. For a step without an episode it
    has that step alone.

    Columns: those of `experiences` that batches need, without values that the slice has, and
    `SLICE_COLUMNS`.
    """
    columns = [column(name, type_) for name, type_ in _COLUMNS.items()]
    columns += [column(name) for name in SLICE_COLUMNS]
    found = sliced_steps(buffer_id, seqs, first, last)
    return found.table_valued(*columns, name="sliced_steps")


def sqlite_slice(buffer_id: str) -> str:
    """Return the columns of a slice from `rewards` on, for a `chunk_data` with a place and `n`."""
    size = "(length(s.records) / s.n_steps)"
    start, end = (
        f"json_extract(s.offsets, '$[' || ({place} / s.block_steps + {more}) || ']')"
        for place, more in (("s.place", 0), ("(s.place + s.n - 1)", 1))
    )
    return f"""substr(s.rewards, s.place * 8 + 1, s.n * 8) AS rewards,
        substr(s.ends, s.place + 1, s.n) AS ends, s.block_steps, s.offsets,
        CASE WHEN s.n = s.n_steps THEN s.records
        WHEN s.offsets IS NULL THEN substr(s.records, s.place * {size} + 1, s.n * {size})
        ELSE substr(s.records, {start} + 1, {end} - {start}) END AS records,
        CASE WHEN (SELECT has_deleted FROM buffers WHERE id = {buffer_id}) THEN (
            SELECT json_group_array(x.seq) FROM deleted_steps x
            WHERE x.buffer_id = {buffer_id} AND x.seq >= s.first_seq + s.place
              AND x.seq < s.first_seq + s.place + s.n) END AS deleted"""


def pg_slice(buffer_id: str) -> str:
    """Return the columns of `sqlite_slice` for PostgreSQL."""
    size = "(octet_length(s.records) / s.n_steps)"
    start, end = (
        f"s.offsets[{place} / s.block_steps + {more}]"
        for place, more in (("s.place", 1), ("(s.place + s.n - 1)", 2))
    )
    return f"""substr(s.rewards, s.place * 8 + 1, s.n * 8) AS rewards,
        substr(s.ends, s.place + 1, s.n) AS ends, s.block_steps, s.offsets,
        CASE WHEN s.offsets IS NULL THEN substr(s.records, s.place * {size} + 1, s.n * {size})
        ELSE substr(s.records, {start}::integer + 1, ({end} - {start})::integer) END AS records,
        CASE WHEN (SELECT has_deleted FROM buffers WHERE id = {buffer_id}) THEN (
            SELECT array_agg(x.seq) FROM deleted_steps x
            WHERE x.buffer_id = {buffer_id} AND x.seq >= s.first_seq + s.place
              AND x.seq < s.first_seq + s.place + s.n) END AS deleted"""


@compiles(sliced_steps, "postgresql")
def _pg_sliced_steps(element: sliced_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs, first, last = processed(element, compiler, kw)
    return f"sqlbuffer_sliced_steps_v1({buffer_id}, CAST({seqs} AS bigint[]), {first}, {last})"


@compiles(sliced_steps, "sqlite")
def _sqlite_sliced_steps(element: sliced_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs, first, last = processed(element, compiler, kw)
    own = "(w.seq - c.first_seq)"
    from_, to = f"max(0, {own} + {first})", f"min(c.n_steps - 1, {own} + {last})"
    # The limit keeps SQLite from computing the place and n again at each use.
    return f"""(SELECT s.first_seq + s.own_place AS seq, s.task_id, s.agent_id,
        CASE WHEN s.steps IS NULL THEN s.step + s.own_place
        ELSE json_extract(s.steps, '$[' || s.own_place || ']') END AS step,
        s.episode_id, s.t + s.own_place AS t, s.n_steps, s.own_place, s.place, s.n,
        {sqlite_slice(buffer_id)}
    FROM (
        SELECT e.*, a.own_place, a.place, a.n FROM (
            SELECT c.key, {own} AS own_place,
                CASE WHEN c.episode_id IS NULL THEN {own} ELSE {from_} END AS place,
                CASE WHEN c.episode_id IS NULL THEN 1 ELSE {to} - {from_} + 1 END AS n
            FROM (SELECT value AS seq FROM json_each({seqs})) w
            CROSS JOIN chunk_data c ON c.key = (
                SELECT k.key FROM chunk_data k
                WHERE k.key > {buffer_id} << 40 AND k.key <= ({buffer_id} << 40 | w.seq)
                ORDER BY k.key DESC LIMIT 1)
            WHERE w.seq < c.first_seq + c.n_steps AND NOT (
                (SELECT has_deleted FROM buffers WHERE id = {buffer_id}) AND EXISTS (
                    SELECT 1 FROM deleted_steps x
                    WHERE x.buffer_id = {buffer_id} AND x.seq = w.seq))
            LIMIT -1 OFFSET 0
        ) a CROSS JOIN chunk_data e ON e.key = a.key
    ) s)"""
