"""Reads and deletes rows by their numbers on SQLite."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.sqlite import remove_steps
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.database.wal import checkpoint_rarely
from sqlbuffer.storage.rows.pieces import Piece
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

# Parts are read and written once: in the page cache they would take the place of hot pages, and the
# memory of one more copy. Reading is a third faster where cache and chunks fit the processor's own.
READ_CACHE_KIB, WRITE_CACHE_KIB = 256, 2_048
_CHUNK_BYTES = 2**18

# Numbers that the buffer gave out: none has more bits.
_AMONG = f"key IN (SELECT ? << {NUMBER_BITS} | value FROM json_each(?))"
_HAS_CHUNKS = "SELECT has_chunks FROM buffers WHERE id = ?"
_INSERT_PART = "INSERT INTO payload_parts (buffer_id, seq, part, bytes) VALUES (?, ?, ?, ?)"


def remove_rows(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> int:
    """Delete rows or steps; return how many there were. Triggers clean the narrow tables."""
    if not seqs:
        return 0
    if connection.exec_driver_sql(_HAS_CHUNKS, (buffer_id,)).scalar():
        return remove_steps(connection, buffer_id, seqs)
    return connection.exec_driver_sql(
        f"DELETE FROM experiences WHERE {_AMONG}", (buffer_id, json.dumps(list(seqs)))
    ).rowcount


def keep_parts(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> set[int]:
    """Note that the buffer has rows with parts; return which of the rows it holds."""
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
    with _small_cache(driver, WRITE_CACHE_KIB):
        driver.executemany(_INSERT_PART, ((buffer_id, *part) for part in parts))


def read_pieces(
    connection: Connection, buffer_id: int, pieces: Sequence[Piece]
) -> Iterator[tuple[int, Any]]:
    """Yield (index, bytes) of the pieces that exist, once or more for each piece.

    All of the pieces belong to parts, or all of them to `arrays`.
    """
    driver = driver_of(connection)
    with _small_cache(driver, READ_CACHE_KIB):
        for n, piece in enumerate(pieces):
            for raw in _read_blob(driver, buffer_id, piece):
                yield n, raw


@contextmanager
def _small_cache(driver: Any, size_kib: int) -> Iterator[None]:
    ((size,),) = driver.execute("PRAGMA cache_size").fetchall()
    driver.execute(f"PRAGMA cache_size = -{size_kib}")
    try:
        yield
    finally:
        driver.execute(f"PRAGMA cache_size = {int(size)}")


def _read_blob(driver: Any, buffer_id: int, piece: Piece) -> Iterator[bytes]:
    """Yield a piece in chunks, and nothing if it is missing. Read nothing else of its value."""
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
    return (
        "payload_parts",
        "bytes",
        "buffer_id = ? AND seq = ? AND part = ?",
        (piece.seq, piece.part),
    )
