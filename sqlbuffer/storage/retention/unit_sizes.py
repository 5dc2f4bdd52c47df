"""Which tasks or episodes leave, each as a whole, so that a buffer fits its size."""

from sqlalchemy import Connection, text

from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS
from sqlbuffer.storage.schema.payload_sizes import chunk_size, message_size, row_size

# All sizes are added up when the buffer is too large. So that this is seldom, it shrinks to this
# part of its limit.
KEPT_PART = 0.9
_OF_BUFFER = {
    "sqlite": f"x.key > :id << {NUMBER_BITS} AND x.key < (:id + 1) << {NUMBER_BITS}",
    "postgresql": "x.buffer_id = :id",
}
_SIZES = """
SELECT u.n_bytes, u.last_seq, {is_open} AS is_open FROM (
    SELECT x.{unit} AS unit, max({last}) AS last_seq, sum({size}) AS n_bytes
    FROM {table} x WHERE {of_buffer} GROUP BY x.{unit}
) u {states} ORDER BY u.last_seq
"""
_STATES = "LEFT JOIN episode_states s ON s.id = u.unit"


def size_bound(connection: Connection, info: BufferInfo, max_bytes: int) -> int | None:
    """Return the number up to which the newest step of a task or episode lies that leaves; None if
    the buffer fits its size.

    Shared messages count in proportion to the other bytes.

    Args:
        connection: The transaction.
        info: A buffer that evicts by task or episode.
        max_bytes: Its largest size.
    """
    dialect, unit = connection.dialect.name, info.config.retention.evict_by
    size, table, last = (
        (chunk_size(dialect), "chunk_data", "x.first_seq + x.n_steps - 1")
        if info.has_chunks
        else (row_size(dialect), "experiences", "x.seq")
    )
    statement = _SIZES.format(
        is_open="false" if unit == "task" else "s.status = 'open'",
        unit=f"{unit}_id", last=last, size=size, table=table, of_buffer=_OF_BUFFER[dialect],
        states="" if unit == "task" else _STATES,
    )  # fmt: skip
    units = connection.execute(text(statement), {"id": info.id}).all()
    n_shared = connection.execute(
        text(f"SELECT sum({message_size(dialect)}) FROM messages WHERE buffer_id = :id"),
        {"id": info.id},
    ).scalar()
    n_own = sum(int(n_bytes) for n_bytes, _, _ in units)
    share = (n_own + int(n_shared or 0)) / max(n_own, 1)
    if n_own * share <= max_bytes:
        return None
    left, bound = n_own * share, None
    for n_bytes, last_seq, is_open in units:
        if left <= max_bytes * KEPT_PART:
            break
        if not is_open:
            left, bound = left - int(n_bytes) * share, int(last_seq)
    return bound
