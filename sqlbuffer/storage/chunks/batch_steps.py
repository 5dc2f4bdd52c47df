"""Read single steps for batches from the bytes of chunks alone."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, Integer, LargeBinary, Text, column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.record_blocks import rows_of_blocks
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
_NO_REWARD, _NO_END = struct.pack(">d", float("nan")), b"\0"


class batch_steps(FunctionElement[Any]):
    """The steps of a buffer with some numbers: `batch_steps(buffer_id, seqs)`."""

    inherit_cache = True


def batch_steps_at(buffer_id: Any, seqs: Any) -> Any:
    """Return the table of the steps with a number of a `SeqList`, if none was ever replaced.

    Columns: `seq`, `task_id`, `agent_id`, `step`; `reward`, 8 bytes, and `ends`, 1 byte, or null;
    `block` with the step's typed fields, and its place there.
    """
    columns = (column(name, type_) for name, type_ in _COLUMNS.items())
    return batch_steps(buffer_id, seqs).table_valued(*columns, name="batch_steps")


def as_rows(layout: Layout, found: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return rows of `batch_steps_at` in the form of `statements.COLUMNS`.

    Args:
        layout: The typed fields.
        found: The rows.
    """
    if not found:
        return []
    seqs, tasks, agents, steps, rewards, ends, blocks, places = zip(*found, strict=True)
    packed = [_NO_REWARD if reward is None else reward for reward in rewards]
    flags = np.frombuffer(b"".join([end or _NO_END for end in ends]), np.uint8)
    # Without compression a block is a single step.
    own = blocks if layout.compression is None else rows_of_blocks(layout, blocks, places, seqs)
    columns = (
        seqs,
        tasks,
        agents,
        steps,
        np.frombuffer(b"".join(packed), ">f8").tolist(),
        (flags & 1).tolist(),
        (flags & 2).tolist(),
        [None] * len(found),
        own,
    )
    return list(zip(*columns, strict=True))


@compiles(batch_steps, "postgresql")
def _pg_batch_steps(element: batch_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = processed(element, compiler, kw)
    return f"sqlbuffer_batch_steps_v1({buffer_id}, CAST({seqs} AS bigint[]))"


@compiles(batch_steps, "sqlite")
def _sqlite_batch_steps(element: batch_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = processed(element, compiler, kw)
    place, size = "(w.seq - d.first_seq)", "(length(d.records) / d.n_steps)"
    start = f"json_extract(d.offsets, '$[' || ({place} / d.block_steps) || ']')"
    end = f"json_extract(d.offsets, '$[' || ({place} / d.block_steps + 1) || ']')"
    return f"""(SELECT w.seq, d.task_id, d.agent_id,
        CASE WHEN d.steps IS NULL THEN d.step + {place}
        ELSE json_extract(d.steps, '$[' || {place} || ']') END AS step,
        substr(d.rewards, {place} * 8 + 1, 8) AS reward,
        substr(d.ends, {place} + 1, 1) AS ends,
        CASE WHEN d.offsets IS NULL THEN substr(d.records, {place} * {size} + 1, {size})
        ELSE substr(d.records, {start} + 1, {end} - {start}) END AS block,
        CASE WHEN d.offsets IS NULL THEN 0 ELSE {place} % d.block_steps END AS block_place
    FROM (SELECT value AS seq FROM json_each({seqs})) w
    CROSS JOIN chunk_data d ON d.key = (
        SELECT k.key FROM chunk_data k
        WHERE k.key > {buffer_id} << 40 AND k.key <= ({buffer_id} << 40 | w.seq)
        ORDER BY k.key DESC LIMIT 1)
    WHERE w.seq < d.first_seq + d.n_steps AND NOT (
        (SELECT has_deleted FROM buffers WHERE id = {buffer_id}) AND EXISTS (
            SELECT 1 FROM deleted_steps x WHERE x.buffer_id = {buffer_id} AND x.seq = w.seq)))"""
