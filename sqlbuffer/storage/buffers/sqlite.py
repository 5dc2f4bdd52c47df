"""Counts the rows of a buffer block by block on SQLite."""

import json
from collections.abc import Sequence

from sqlalchemy import Connection, Engine

from sqlbuffer.storage.buffers.live_count import BLOCK
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.watermarks import Watermark

# Needed after rows that plain SQL has written; the library's own writes fill one block after the
# other.
BLOCKS_AT_ONCE = 16
_NEXT_BLOCK = (
    f"SELECT max(w.low_seq / {BLOCK} + 1, coalesce("
    "(SELECT max(k.block) + 1 FROM row_blocks k WHERE k.buffer_id = w.buffer_id), 0)), "
    f"w.low_seq / {BLOCK} FROM v_windows w WHERE w.buffer_id = :id AND w.evict_unit = 'row'"
)
# A buffer has rows or chunks. A chunk has up to 256 steps, and may begin in the block before.
_COUNT = f"""
INSERT INTO row_blocks (buffer_id, block, n_rows)
SELECT :id, j.value, (
    SELECT count(*) FROM experiences e
    WHERE e.buffer_id = :id AND e.seq >= j.value * {BLOCK} AND e.seq < (j.value + 1) * {BLOCK}
) + (
    SELECT coalesce(sum(min(c.first_seq + c.n_steps, (j.value + 1) * {BLOCK})
                        - max(c.first_seq, j.value * {BLOCK})), 0) FROM chunks c
    WHERE c.buffer_id = :id AND c.first_seq > j.value * {BLOCK} - 256
    AND c.first_seq < (j.value + 1) * {BLOCK} AND c.first_seq + c.n_steps > j.value * {BLOCK}
) - (
    SELECT count(*) FROM deleted_steps d
    WHERE d.buffer_id = :id AND d.seq >= j.value * {BLOCK} AND d.seq < (j.value + 1) * {BLOCK}
)
FROM json_each(:blocks) j
"""

_PUT_DOCUMENT = (
    "INSERT INTO documents (buffer_id, key, version, value) VALUES (?, ?, 1, ?) "
    "ON CONFLICT (buffer_id, key) DO UPDATE SET version = documents.version + 1, "
    "value = excluded.value, changed_at = excluded.changed_at"
)


def settled_seq(engine: Engine, watermark: Watermark, wait_s: float = 0.0) -> int | None:
    """Return None: only one writer runs at a time, so every existing row is settled."""
    return None


def clean_after_write(
    engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: Watermark | None = None
) -> None:
    """Do nothing: the file reuses the pages of evicted rows."""


def note_write(engine: Engine, buffer_id: int, write_id: str, keep_s: float) -> str | None:
    """Return None: a connection to a file is not lost."""
    return None


def count_full_blocks(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    """Count the rows of the blocks that an insert of these numbers has filled."""
    if not seqs or seqs[0] // BLOCK >= (seqs[-1] + 1) // BLOCK:
        return
    found = connection.exec_driver_sql(_NEXT_BLOCK, {"id": buffer_id}).one_or_none()
    if found is None:
        return
    next_block, cut_block = found
    blocks = range(next_block, min((seqs[-1] + 1) // BLOCK, next_block + BLOCKS_AT_ONCE))
    connection.exec_driver_sql(_COUNT, {"id": buffer_id, "blocks": json.dumps([*blocks])})
    connection.exec_driver_sql(
        "DELETE FROM row_blocks WHERE buffer_id = ? AND block <= ?", (buffer_id, cut_block)
    )


def lock_as_writer(connection: Connection, buffer_id: int) -> None:
    """Do nothing: no other transaction writes at the same time."""


def put_documents(
    connection: Connection, buffer_id: int, documents: Sequence[tuple[str, str]]
) -> None:
    """Write documents, given by key and JSON."""
    rows = [(buffer_id, key, json) for key, json in documents]
    driver_of(connection).executemany(_PUT_DOCUMENT, rows)
