"""Read and delete rows by their numbers on PostgreSQL."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects.arrays import HEADER, TRAILER
from sqlbuffer.storage.rows.pieces import RECORDS, Piece

# Each episode is looked up alone, by its key, with any statistics of the tables.
_REMOVE_EPISODES = (
    "SELECT e.id, e.task_id, e.status, sqlbuffer_remove_episode_v1(e.buffer_id, e.id) "
    "FROM unnest(%s::text[], %s::text[]) AS k(key, task) CROSS JOIN LATERAL ("
    "SELECT x.id, x.task_id, x.status, x.buffer_id FROM episodes x "
    "WHERE x.buffer_id = %s AND x.key = k.key AND x.task_id = k.task OFFSET 0) AS e"
)

_COPY_PARTS = "COPY payload_parts (buffer_id, seq, part, bytes) FROM STDIN (FORMAT BINARY)"
_PART_HEAD = struct.Struct(">hiiiqiii")
# Each piece is looked up alone, by the primary key, with any statistics of the table. COPY sends
# pieces while the client copies earlier ones: half the time of a select for each few.
_PIECES = (
    "COPY (SELECT w.n::integer - 1, substr(p.bytes, w.start + 1, w.size) "
    "FROM unnest(%s::bigint[], %s::integer[], %s::integer[], %s::integer[]) "
    "WITH ORDINALITY AS w(seq, part, start, size, n) CROSS JOIN LATERAL ({} OFFSET 0) AS p "
    "WHERE p.bytes IS NOT NULL) TO STDOUT (FORMAT BINARY)"
)
_PIECE_HEAD = struct.Struct(">hiii")
_PARTS = _PIECES.format(
    "SELECT bytes FROM payload_parts WHERE buffer_id = %s AND seq = w.seq AND part = w.part"
)
_ARRAYS = _PIECES.format(
    "SELECT arrays AS bytes FROM experiences WHERE buffer_id = %s AND seq = w.seq"
)
_RECORDS = _PIECES.format(
    "SELECT records AS bytes FROM chunk_data WHERE buffer_id = %s AND first_seq = w.seq"
)
_BLOCKS = """
SELECT seq, first_seq, start, CASE WHEN size <= %(small)s THEN substr(records, start + 1, size) END
FROM (
    SELECT w.seq, d.first_seq, d.records,
        CASE WHEN d.offsets IS NULL THEN octet_length(d.records) / d.n_steps * d.place
        ELSE d.offsets[d.place + 1]::integer END AS start,
        CASE WHEN d.offsets IS NULL THEN octet_length(d.records) / d.n_steps
        ELSE (d.offsets[d.place + 2] - d.offsets[d.place + 1])::integer END AS size
    FROM unnest(%(seqs)s::bigint[]) AS w(seq) CROSS JOIN LATERAL (
        SELECT (w.seq - c.first_seq)::integer AS place, c.* FROM chunk_data c
        WHERE c.buffer_id = %(id)s AND c.first_seq <= w.seq AND c.first_seq > w.seq - 256
        ORDER BY c.first_seq DESC LIMIT 1
    ) d
    WHERE d.place < d.n_steps AND octet_length(d.records) > 0
    OFFSET 0
) s"""


def remove_rows(
    connection: Connection, buffer_id: int, seqs: Sequence[int], origin: str | None = None
) -> int:
    """Delete rows, with their rows in narrow tables; return how many existed.

    Deletions inside the window are logged.
    """
    statement = "SELECT sqlbuffer_remove_v1(%s::integer, %s::bigint[], false, %s::uuid)"
    ((n_removed,),) = driver_of(connection).execute(statement, (buffer_id, list(seqs), origin))
    return int(n_removed)


def read_blocks(
    connection: Connection, buffer_id: int, seqs: Sequence[int], small_bytes: int
) -> Sequence[tuple[int, int, int, bytes | None]]:
    """Return (seq, first number of the chunk, start in `records`, small block) of steps in chunks.

    Their bytes are not compressed. A block with more than `small_bytes` is None.
    """
    values = {"id": buffer_id, "seqs": list(seqs), "small": small_bytes}
    with driver_of(connection).cursor(binary=True) as cursor:
        blocks: list[tuple[int, int, int, bytes | None]] = cursor.execute(
            _BLOCKS, values
        ).fetchall()
        return blocks


def keep_parts(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> set[int]:
    """Note that the buffer has rows with parts; return the rows that it holds."""
    statement = "SELECT sqlbuffer_keep_parts_v1(%s::integer, %s::bigint[])"
    ((held,),) = driver_of(connection).execute(statement, (buffer_id, list(seqs)))
    return set(held)


def insert_parts(
    connection: Connection, buffer_id: int, parts: Iterable[tuple[int, int, Any]]
) -> None:
    """Write parts (seq, number, bytes) one after the other."""
    with driver_of(connection).cursor() as cursor, cursor.copy(_COPY_PARTS) as copy:
        copy.write(HEADER)
        for seq, number, part in parts:
            copy.write(_PART_HEAD.pack(4, 4, buffer_id, 8, seq, 4, number, len(part)))
            copy.write(part)
        copy.write(TRAILER)


def read_pieces(
    connection: Connection, buffer_id: int, pieces: Sequence[Piece]
) -> Iterator[tuple[int, Any]]:
    """Yield (index, bytes) of the pieces that exist, once or more for each piece.

    All of the pieces belong to parts, or all of them to `arrays` or `RECORDS`.
    """
    seqs, parts, starts, sizes = zip(*pieces, strict=True)
    statement = {None: _ARRAYS, RECORDS: _RECORDS}.get(parts[0], _PARTS)
    values = (list(seqs), [part or 0 for part in parts], list(starts), list(sizes), buffer_id)
    with driver_of(connection).cursor() as cursor, cursor.copy(statement, values) as copy:
        for n, row in enumerate(copy):
            found = memoryview(row)[len(HEADER) if n == 0 else 0 :]
            if len(found) >= _PIECE_HEAD.size:
                _, _, index, _ = _PIECE_HEAD.unpack_from(found)
                yield index, found[_PIECE_HEAD.size :]


def remove_episodes(
    connection: Connection, buffer_id: int, keys: Sequence[tuple[str, str]]
) -> list[tuple[int, str, str]]:
    """Delete the chunks of episodes, with the rows of their steps in other tables.

    Return the number, the task and the status of each episode.
    """
    given = ([key for key, _ in keys], [task for _, task in keys], buffer_id)
    found = driver_of(connection).execute(_REMOVE_EPISODES, given).fetchall()
    return [(id_, task, status) for id_, task, status, _ in found]
