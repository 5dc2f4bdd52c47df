"""Read and delete rows by their numbers on SQLite."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.chunks.sqlite import remove_steps
from sqlbuffer.storage.database.sqlite import checkpoint_rarely
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.rows.pieces import RECORDS, Piece
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

# Parts are read and written once: in the page cache they would replace hot pages, and need the
# memory of one more copy. Reading is a third faster if cache and chunks fit the processor's own
# cache.
READ_CACHE_KIB, WRITE_CACHE_KIB = 256, 2_048
_CHUNK_BYTES = 2**18

# Numbers that the buffer has given: none has more bits.
_AMONG = f"key IN (SELECT ? << {NUMBER_BITS} | value FROM json_each(?))"
# The triggers of deleted rows log only the deletions that the library does not log itself.
_BEGIN_DELETING = (
    "UPDATE buffers SET is_deleting = 1 WHERE id = ? RETURNING has_chunks, has_followers, "
    "(SELECT low_seq FROM v_windows WHERE buffer_id = buffers.id)"
)
_END_DELETING = "UPDATE buffers SET is_deleting = 0 WHERE id = ?"
_INSERT_PART = "INSERT INTO payload_parts (buffer_id, seq, part, bytes) VALUES (?, ?, ?, ?)"
_BLOCKS = f"""
SELECT seq, first_seq, start, CASE WHEN size <= :small THEN substr(records, start + 1, size) END
FROM (
    SELECT w.value AS seq, d.first_seq, d.records,
        CASE WHEN d.offsets IS NULL THEN length(d.records) / d.n_steps * (w.value - d.first_seq)
        ELSE json_extract(d.offsets, '$[' || (w.value - d.first_seq) || ']') END AS start,
        CASE WHEN d.offsets IS NULL THEN length(d.records) / d.n_steps
        ELSE json_extract(d.offsets, '$[' || (w.value - d.first_seq + 1) || ']')
            - json_extract(d.offsets, '$[' || (w.value - d.first_seq) || ']') END AS size
    FROM json_each(:seqs) w CROSS JOIN chunk_data d ON d.key = (
        SELECT k.key FROM chunk_data k
        WHERE k.key > :id << {NUMBER_BITS} AND k.key <= (:id << {NUMBER_BITS} | w.value)
        ORDER BY k.key DESC LIMIT 1)
    WHERE w.value < d.first_seq + d.n_steps AND length(d.records) > 0
)"""


def remove_rows(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    origin: str | None = None,
    *,
    evicted: bool = False,
) -> int:
    """Delete rows or steps, and log those inside the window; return how many existed.

    Triggers clean the narrow tables.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: The rows.
        origin: The opener that deletes them.
        evicted: They leave because the buffer is full, which is logged for followers alone.
    """
    if not seqs:
        return 0
    found = connection.exec_driver_sql(_BEGIN_DELETING, (buffer_id,)).one_or_none()
    # A buffer that is being dropped has no row any more.
    has_chunks, has_followers, low = (False, False, 0) if found is None else found
    if has_chunks:
        n_removed = remove_steps(connection, buffer_id, seqs)
    else:
        n_removed = connection.exec_driver_sql(
            f"DELETE FROM experiences WHERE {_AMONG}", (buffer_id, json.dumps(list(seqs)))
        ).rowcount
    connection.exec_driver_sql(_END_DELETING, (buffer_id,))
    if found is not None and (has_followers or not evicted):
        inside = [seq for seq in seqs if seq > low]
        log_change(connection, buffer_id, "deleted", inside, origin)
    return n_removed


def keep_parts(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> set[int]:
    """Note that the buffer has rows with parts; return the rows that it holds."""
    connection.exec_driver_sql(
        "UPDATE buffers SET has_parts = 1 WHERE id = ? AND NOT has_parts", (buffer_id,)
    )
    found = connection.exec_driver_sql(
        f"SELECT seq FROM experiences WHERE {_AMONG}",
        (buffer_id, json.dumps(list(seqs))),
    )
    return set(found.scalars())


def insert_parts(
    connection: Connection, buffer_id: int, parts: Iterable[tuple[int, int, Any]]
) -> None:
    """Write parts (seq, number, bytes) one after the other."""
    driver = driver_of(connection)
    checkpoint_rarely(connection)
    with small_cache(driver, WRITE_CACHE_KIB):
        driver.executemany(_INSERT_PART, ((buffer_id, *part) for part in parts))


def read_pieces(
    connection: Connection, buffer_id: int, pieces: Sequence[Piece]
) -> Iterator[tuple[int, Any]]:
    """Yield (index, bytes) of the pieces that exist, once or more for each piece.

    All of the pieces belong to parts, or all of them to `arrays` or `RECORDS`.
    """
    driver = driver_of(connection)
    with small_cache(driver, READ_CACHE_KIB):
        for n, piece in enumerate(pieces):
            for raw in _read_blob(driver, buffer_id, piece):
                yield n, raw


def read_blocks(
    connection: Connection, buffer_id: int, seqs: Sequence[int], small_bytes: int
) -> Sequence[tuple[int, int, int, bytes | None]]:
    """Return (seq, first number of the chunk, start in `records`, small block) of steps in chunks.

    Their bytes are not compressed. A block with more than `small_bytes` is None.
    """
    values = {"id": buffer_id, "seqs": json.dumps(list(seqs)), "small": small_bytes}
    blocks: list[tuple[int, int, int, bytes | None]]
    blocks = driver_of(connection).execute(_BLOCKS, values).fetchall()
    return blocks


@contextmanager
def small_cache(driver: Any, size_kib: int) -> Iterator[None]:
    """Limit the page cache of a connection for a while."""
    ((size,),) = driver.execute("PRAGMA cache_size").fetchall()
    driver.execute(f"PRAGMA cache_size = -{size_kib}")
    try:
        yield
    finally:
        # An interrupt has closed the connection; its error must be the one that is raised.
        with suppress(sqlite3.ProgrammingError):
            driver.execute(f"PRAGMA cache_size = {int(size)}")


def _read_blob(driver: Any, buffer_id: int, piece: Piece) -> Iterator[bytes]:
    """Yield a piece in chunks, or nothing if it is missing; the rest of its value is not read."""
    table, column, condition, key = _place_of(piece)
    statement = f"SELECT rowid FROM {table} WHERE {condition} AND {column} IS NOT NULL"
    found = driver.execute(statement, (buffer_id, *key)).fetchone()
    if found is None:
        return
    with driver.blobopen(table, column, found[0], readonly=True) as blob:
        left = min(piece.size, max(0, len(blob) - piece.start))
        blob.seek(min(piece.start, len(blob)))
        while left > 0:
            raw: bytes = blob.read(min(left, _CHUNK_BYTES))
            left -= len(raw)
            yield raw


def _place_of(piece: Piece) -> tuple[str, str, str, tuple[int, ...]]:
    """Return the table, the column, the condition on the key, and the key of a piece's value."""
    if piece.part is None:
        return "experiences", "arrays", f"key = ? << {NUMBER_BITS} | ?", (piece.seq,)
    if piece.part == RECORDS:
        return "chunk_data", "records", f"key = ? << {NUMBER_BITS} | ?", (piece.seq,)
    return (
        "payload_parts",
        "bytes",
        "buffer_id = ? AND seq = ? AND part = ?",
        (piece.seq, piece.part),
    )


def remove_episodes(
    connection: Connection, buffer_id: int, keys: Sequence[tuple[str, str]]
) -> list[tuple[int, str, str]]:
    """Delete the chunks of episodes. A trigger counts them, and cleans the narrow tables.

    Return the number, the task and the status of each episode.
    """
    driver = driver_of(connection)
    select = (
        "SELECT id, task_id, status FROM episodes WHERE buffer_id = ? AND key = ? AND task_id = ?"
    )
    remove = "DELETE FROM chunks WHERE buffer_id = ? AND episode_id = ?"
    forget = "DELETE FROM rollout_stats WHERE buffer_id = ? AND task_id = ? AND episode_id = ?"
    found = [row for key in keys for row in driver.execute(select, (buffer_id, *key)).fetchall()]
    for id_, task, _ in found:
        driver.execute(remove, (buffer_id, id_))
        driver.execute(forget, (buffer_id, task, id_))
    return found
