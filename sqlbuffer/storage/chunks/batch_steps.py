"""What a batch of single steps needs, read from the bytes of chunks alone."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, Integer, LargeBinary, Text, column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.chunks.step_relations import pg_replaced, sqlite_replaced
from sqlbuffer.storage.chunks.tables import MOST_STEPS
from sqlbuffer.storage.schema.compiled_clauses import processed

_COLUMNS: dict[str, Any] = {
    "seq": BigInteger(),
    "task_id": Text(),
    "agent_id": Text(),
    "step": BigInteger(),
    "reward": LargeBinary(),
    "ends": LargeBinary(),
    "block": LargeBinary(),
    "block_place": Integer(),
}
_REWARD, _NO_END = struct.Struct(">d"), b"\0"
_NO_REWARD = _REWARD.pack(float("nan"))


class batch_steps(FunctionElement[Any]):
    """The steps of a buffer that have one of the numbers: `batch_steps(buffer_id, seqs)`."""

    inherit_cache = True


def batch_steps_at(buffer_id: Any, seqs: Any) -> Any:
    """Return the table of the steps of a buffer that have one of the numbers of a `SeqList`.

    Columns: `seq`, `task_id`, `agent_id`, `step`; `reward`, 8 bytes, and `ends`, 1 byte, or null;
    `block` with the step's typed fields, and its place there.
    """
    columns = (column(name, type_) for name, type_ in _COLUMNS.items())
    return batch_steps(buffer_id, seqs).table_valued(*columns, name="batch_steps")


def as_rows(found: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return rows of `batch_steps_at` as those of `statements.COLUMNS`, the place behind."""
    values = [_NO_REWARD if row[4] is None else row[4] for row in found]
    # SQLite cannot pack the number of a step that plain SQL has written, or that was replaced.
    packed = [_REWARD.pack(value) if isinstance(value, float) else value for value in values]
    rewards = np.frombuffer(b"".join(packed), ">f8").tolist()
    ends = b"".join([row[5] or _NO_END for row in found])
    return [
        (seq, task_id, agent_id, step, reward, end & 1, end & 2, None, block, place)
        for (seq, task_id, agent_id, step, _, _, block, place), reward, end in zip(
            found, rewards, ends, strict=True
        )
    ]


@compiles(batch_steps, "postgresql")
def _pg_batch_steps(element: batch_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = processed(element, compiler, kw)
    size, block = "(octet_length(d.records) / d.n_steps)", "(d.place / d.block_steps + 1)"
    # Each chunk is looked up alone, by the primary key: without statistics PostgreSQL takes a
    # buffer for a few rows and would rather read all of them. Both bounds: with one, the index
    # hands out all keys of a page that are below.
    return f"""(SELECT d.first_seq + d.place AS seq, d.task_id, d.agent_id,
        CASE WHEN d.steps IS NULL THEN d.step + d.place ELSE d.steps[d.place + 1] END AS step,
        CASE WHEN y.seq IS NULL THEN substr(d.rewards, d.place * 8 + 1, 8)
        ELSE float8send(y.reward_t) END AS reward,
        CASE WHEN y.seq IS NULL THEN substr(d.ends, d.place + 1, 1)
        ELSE set_byte('\\x00'::bytea, 0, CASE WHEN y.terminated THEN 1 ELSE 0 END
            + CASE WHEN y.truncated THEN 2 ELSE 0 END) END AS ends,
        CASE WHEN y.seq IS NOT NULL THEN y.record
        WHEN d.offsets IS NULL THEN substr(d.records, d.place * {size} + 1, {size})
        ELSE substr(d.records, d.offsets[{block}]::integer + 1,
            (d.offsets[{block} + 1] - d.offsets[{block}])::integer) END AS block,
        CASE WHEN d.offsets IS NULL OR y.seq IS NOT NULL THEN 0
        ELSE mod(d.place, d.block_steps) END AS block_place
    FROM unnest(CAST({seqs} AS bigint[])) AS w(seq) CROSS JOIN LATERAL (
        SELECT (w.seq - c.first_seq)::integer AS place, c.* FROM chunk_data c
        WHERE c.buffer_id = {buffer_id} AND c.first_seq <= w.seq
          AND c.first_seq > w.seq - {MOST_STEPS}
        ORDER BY c.first_seq DESC LIMIT 1
    ) d
    {pg_replaced(buffer_id, "w.seq")}
    WHERE d.place < d.n_steps AND NOT EXISTS (
        SELECT 1 FROM deleted_steps x
        WHERE x.buffer_id = {buffer_id} AND x.seq = w.seq OFFSET 0))"""


@compiles(batch_steps, "sqlite")
def _sqlite_batch_steps(element: batch_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = processed(element, compiler, kw)
    place, size = "(w.seq - d.first_seq)", "(length(d.records) / d.n_steps)"
    start = f"json_extract(d.offsets, '$[' || ({place} / d.block_steps) || ']')"
    end = f"json_extract(d.offsets, '$[' || ({place} / d.block_steps + 1) || ']')"
    return f"""(SELECT w.seq, d.task_id, d.agent_id,
        CASE WHEN d.steps IS NULL THEN d.step + {place}
        ELSE json_extract(d.steps, '$[' || {place} || ']') END AS step,
        CASE WHEN y.seq IS NOT NULL THEN CAST(y.reward_t AS REAL)
        WHEN length(d.records) = 0 THEN (
            SELECT CAST(json_extract(c.reward_t, '$[0]') AS REAL) FROM chunks c WHERE c.key = d.key
        ) ELSE substr(d.rewards, {place} * 8 + 1, 8) END AS reward,
        CASE WHEN y.seq IS NULL THEN substr(d.ends, {place} + 1, 1)
        ELSE CASE coalesce(y.terminated, 0) + 2 * coalesce(y.truncated, 0)
            WHEN 1 THEN x'01' WHEN 2 THEN x'02' WHEN 3 THEN x'03' END END AS ends,
        CASE WHEN y.seq IS NOT NULL THEN y.record
        WHEN d.offsets IS NULL THEN substr(d.records, {place} * {size} + 1, {size})
        ELSE substr(d.records, {start} + 1, {end} - {start}) END AS block,
        CASE WHEN d.offsets IS NULL OR y.seq IS NOT NULL THEN 0
        ELSE {place} % d.block_steps END AS block_place
    FROM (SELECT value AS seq FROM json_each({seqs})) w
    CROSS JOIN chunk_data d ON d.key = (
        SELECT k.key FROM chunk_data k
        WHERE k.key > {buffer_id} << 40 AND k.key <= ({buffer_id} << 40 | w.seq)
        ORDER BY k.key DESC LIMIT 1)
    {sqlite_replaced(buffer_id, "w.seq")}
    WHERE w.seq < d.first_seq + d.n_steps AND NOT EXISTS (
        SELECT 1 FROM deleted_steps x WHERE x.buffer_id = {buffer_id} AND x.seq = w.seq))"""
