"""Payloads too large for one value, written and read in parts; and payloads read in part.

A row whose arrays have more than 1 MiB has them in `payload_parts`, 1 MiB of content in each. So a
position in them gives its part, and neither side ever holds one large value.
"""

import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np
from orjson import loads
from sqlalchemy import Column, Connection, Integer, Select, case, func, null
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.codec.decoder import Blob
from sqlbuffer.codec.plain_values import ALIGNMENT, dumps
from sqlbuffer.config import BufferConfig
from sqlbuffer.encoding.packing import LENGTH, MAX_CHUNK_STEPS, Layout, item_bytes, shown_row
from sqlbuffer.encoding.records import MAX_JSON_BYTES, Record, check_row_size
from sqlbuffer.errors import FieldError
from sqlbuffer.query.selected_fields import (
    MISSING,
    PLAIN,
    SelectedFields,
    pruned,
    references,
)
from sqlbuffer.steps import PAYLOADS
from sqlbuffer.storage.database.transactions import driver_of, fetch
from sqlbuffer.storage.dialects import HEADER, TRAILER, by_database
from sqlbuffer.storage.marks import Wanted, read_marks, runs_of
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import (
    PLACES,
    ROWS,
    TASK_ID,
    Row,
    StepLayout,
    with_marks,
    with_values,
)
from sqlbuffer.storage.rows.statements import RowSelection
from sqlbuffer.storage.schema.metadata import BYTES, overlay_table
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

payload_parts = overlay_table(
    "payload_parts",
    Column("part", Integer, primary_key=True, autoincrement=False, comment="order of the part"),
    Column("bytes", BYTES, nullable=False, comment="content of the part"),
    flag="has_parts",
    writer_may="INSERT",
    learner_may="INSERT",
)


class Columns(NamedTuple):
    """Values of rows in addition to their keys: for each column one value a row.

    Attributes:
        arrays: Their typed fields, packed.
        fields: JSON of the fields that conditions can use.
        reward_t: Their rewards.
        terminated: True if the episode ended there in a terminal state.
        truncated: True if the episode was truncated there.
    """

    arrays: Sequence[Blob]
    fields: Sequence[str | None]
    reward_t: Sequence[float | None]
    terminated: Sequence[bool | None]
    truncated: Sequence[bool | None]


# Stands for `chunk_data.records` in place of a part; `seq` is then the first one of the chunk.
RECORDS = -1


class Piece(NamedTuple):
    """Bytes in the database: of a part, of `RECORDS`, or of the column `arrays` if it is None."""

    seq: int
    part: int | None
    start: int
    size: int


# Parts are read and written once: in the page cache they would replace hot pages, and need the
# memory of one more copy. Reading is a third faster if cache and chunks fit the processor's own
# cache.
READ_CACHE_KIB, WRITE_CACHE_KIB = 256, 2_048
_CHUNK_BYTES = 2**18

# Numbers that the buffer has given: none has more bits.
_SQLITE_AMONG = f"key IN (SELECT ? << {NUMBER_BITS} | value FROM json_each(?))"
_SQLITE_INSERT_PART = "INSERT INTO payload_parts (buffer_id, seq, part, bytes) VALUES (?, ?, ?, ?)"
_SQLITE_BLOCKS = f"""
SELECT seq, first_seq, start,
    CASE WHEN size <= :small THEN substr(records, start + 1, size) END, layout
FROM (
    SELECT w.value AS seq, d.first_seq, d.records, d.layout,
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


def _sqlite_keep_parts(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> set[int]:
    """Note that the buffer has rows with parts; return the rows that it holds."""
    connection.exec_driver_sql(
        "UPDATE buffers SET has_parts = 1 WHERE id = ? AND NOT has_parts", (buffer_id,)
    )
    held = connection.exec_driver_sql(
        f"SELECT seq FROM experiences WHERE {_SQLITE_AMONG}",
        (buffer_id, json.dumps(list(seqs))),
    )
    return set(held.scalars())


def _sqlite_insert_parts(
    connection: Connection, buffer_id: int, parts: Iterable[tuple[int, int, Any]]
) -> None:
    """Write parts (seq, number, bytes) one after the other."""
    driver = driver_of(connection)
    with small_cache(driver, WRITE_CACHE_KIB):
        driver.executemany(_SQLITE_INSERT_PART, ((buffer_id, *part) for part in parts))


def _sqlite_read_pieces(
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


def _sqlite_read_blocks(
    connection: Connection, buffer_id: int, seqs: Sequence[int], small_bytes: int
) -> Sequence[tuple[Any, ...]]:
    """Return the columns of a `_Block` of each step that is in a chunk.

    Their bytes are not compressed. A block with more than `small_bytes` is None.
    """
    values = {"id": buffer_id, "seqs": json.dumps(list(seqs)), "small": small_bytes}
    blocks: list[tuple[Any, ...]]
    blocks = driver_of(connection).execute(_SQLITE_BLOCKS, values).fetchall()
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
    row = driver.execute(statement, (buffer_id, *key)).fetchone()
    if row is None:
        return
    with driver.blobopen(table, column, row[0], readonly=True) as blob:
        n_left = min(piece.size, max(0, len(blob) - piece.start))
        blob.seek(min(piece.start, len(blob)))
        while n_left > 0:
            raw: bytes = blob.read(min(n_left, _CHUNK_BYTES))
            n_left -= len(raw)
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


_POSTGRESQL_COPY_PARTS = (
    "COPY payload_parts (buffer_id, seq, part, bytes) FROM STDIN (FORMAT BINARY)"
)
_POSTGRESQL_PART_HEAD = struct.Struct(">hiiiqiii")
# Each piece is looked up alone, by the primary key, with any statistics of the table. COPY sends
# pieces while the client copies earlier ones: half the time of a select for each few.
_POSTGRESQL_PIECES = (
    "COPY (SELECT w.n::integer - 1, substr(p.bytes, w.start + 1, w.size) "
    "FROM unnest(%s::bigint[], %s::integer[], %s::integer[], %s::integer[]) "
    "WITH ORDINALITY AS w(seq, part, start, size, n) CROSS JOIN LATERAL ({} OFFSET 0) AS p "
    "WHERE p.bytes IS NOT NULL) TO STDOUT (FORMAT BINARY)"
)
_POSTGRESQL_PIECE_HEAD = struct.Struct(">hiii")
_POSTGRESQL_PARTS = _POSTGRESQL_PIECES.format(
    "SELECT bytes FROM payload_parts WHERE buffer_id = %s AND seq = w.seq AND part = w.part"
)
_POSTGRESQL_ARRAYS = _POSTGRESQL_PIECES.format(
    "SELECT arrays AS bytes FROM experiences WHERE buffer_id = %s AND seq = w.seq"
)
_POSTGRESQL_RECORDS = _POSTGRESQL_PIECES.format(
    "SELECT records AS bytes FROM chunk_data WHERE buffer_id = %s AND first_seq = w.seq"
)
_POSTGRESQL_BLOCKS = f"""
SELECT seq, first_seq, start,
    CASE WHEN size <= %(small)s THEN substr(records, start + 1, size) END, layout
FROM (
    SELECT w.seq, d.first_seq, d.records, d.layout,
        CASE WHEN d.offsets IS NULL THEN octet_length(d.records) / d.n_steps * d.place
        ELSE d.offsets[d.place + 1]::integer END AS start,
        CASE WHEN d.offsets IS NULL THEN octet_length(d.records) / d.n_steps
        ELSE (d.offsets[d.place + 2] - d.offsets[d.place + 1])::integer END AS size
    FROM unnest(%(seqs)s::bigint[]) AS w(seq) CROSS JOIN LATERAL (
        SELECT (w.seq - c.first_seq)::integer AS place, c.* FROM chunk_data c
        WHERE c.buffer_id = %(id)s AND c.first_seq <= w.seq
        AND c.first_seq > w.seq - {MAX_CHUNK_STEPS}
        ORDER BY c.first_seq DESC LIMIT 1
    ) d
    WHERE d.place < d.n_steps AND octet_length(d.records) > 0
    OFFSET 0
) s"""


def _postgresql_read_blocks(
    connection: Connection, buffer_id: int, seqs: Sequence[int], small_bytes: int
) -> Sequence[tuple[Any, ...]]:
    values = {"id": buffer_id, "seqs": list(seqs), "small": small_bytes}
    with driver_of(connection).cursor(binary=True) as cursor:
        blocks: list[tuple[Any, ...]] = cursor.execute(_POSTGRESQL_BLOCKS, values).fetchall()
        return blocks


def _postgresql_keep_parts(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> set[int]:
    statement = "SELECT sqlbuffer_keep_parts_v1(%s::integer, %s::bigint[])"
    ((held,),) = driver_of(connection).execute(statement, (buffer_id, list(seqs)))
    return set(held)


def _postgresql_insert_parts(
    connection: Connection, buffer_id: int, parts: Iterable[tuple[int, int, Any]]
) -> None:
    with driver_of(connection).cursor() as cursor, cursor.copy(_POSTGRESQL_COPY_PARTS) as copy:
        copy.write(HEADER)
        for seq, number, part in parts:
            copy.write(_POSTGRESQL_PART_HEAD.pack(4, 4, buffer_id, 8, seq, 4, number, len(part)))
            copy.write(part)
        copy.write(TRAILER)


def _postgresql_read_pieces(
    connection: Connection, buffer_id: int, pieces: Sequence[Piece]
) -> Iterator[tuple[int, Any]]:
    seqs, parts, starts, sizes = zip(*pieces, strict=True)
    statement = {None: _POSTGRESQL_ARRAYS, RECORDS: _POSTGRESQL_RECORDS}.get(
        parts[0], _POSTGRESQL_PARTS
    )
    values = (list(seqs), [part or 0 for part in parts], list(starts), list(sizes), buffer_id)
    with driver_of(connection).cursor() as cursor, cursor.copy(statement, values) as copy:
        for n, row in enumerate(copy):
            view = memoryview(row)[len(HEADER) if n == 0 else 0 :]
            if len(view) >= _POSTGRESQL_PIECE_HEAD.size:
                _, _, index, _ = _POSTGRESQL_PIECE_HEAD.unpack_from(view)
                yield index, view[_POSTGRESQL_PIECE_HEAD.size :]


# A smaller block is read whole: a statement for each of its parts would cost more.
SMALL_BLOCK = 65_536
# Fields with at most this distance are read together: TOAST has chunks of 2 kB.
_NEAR_BYTES = 4_096

read_pieces = by_database(sqlite=_sqlite_read_pieces, postgresql=_postgresql_read_pieces)
read_blocks = by_database(sqlite=_sqlite_read_blocks, postgresql=_postgresql_read_blocks)


keep_parts = by_database(sqlite=_sqlite_keep_parts, postgresql=_postgresql_keep_parts)


insert_parts = by_database(sqlite=_sqlite_insert_parts, postgresql=_postgresql_insert_parts)


class _Block(NamedTuple):
    """The block of a step: where it is in `chunk_data.records`, and a small one itself."""

    seq: int
    first_seq: int
    start: int
    small: bytes | None
    layout: int


class StepParts:
    """Reads some typed fields of steps whose bytes are not compressed.

    The bytes of a step are its record, and behind it the values of varying length one after the
    other. Where such a value begins depends on the lengths in the record.

    Args:
        layout: The typed fields of the buffer.
        names: The fields to read, in the order of the layout.

    Attributes:
        layout: The layout of the bytes that are returned.
    """

    def __init__(self, layout: Layout, names: Sequence[str]) -> None:
        layout = layout.fixed
        self.layout = Layout({name: layout.specs[name] for name in names})
        self._whole, self._number, self._size = layout, layout.number, layout.size_bytes
        offsets = {name: field[1] for name, field in (layout.record.fields or {}).items()}
        varying = [spec for spec in layout.specs.values() if spec.is_variable]
        last = max((i for i, spec in enumerate(varying) if spec.name in names), default=-1)
        self._varying = varying[: last + 1]
        heads = {*names, *(spec.name for spec in self._varying)}
        self._heads = [
            (offsets[name], layout.record[name].itemsize) for name in layout.specs if name in heads
        ]
        self._head_names = [name for name in layout.specs if name in heads]

    def read(self, connection: Connection, buffer_id: int, seqs: Sequence[int]) -> list[Any]:
        """Return the bytes of steps in `layout`; None for a step that is not in a chunk."""
        blocks = [_Block(*row) for row in read_blocks(connection, buffer_id, seqs, SMALL_BLOCK)]
        steps: dict[int, bytes] = {}
        for number in {block.layout for block in blocks}:
            parts = self if number == self._number else self._of(number)
            some = [block for block in blocks if block.layout == number]
            rows = parts._wanted(connection, buffer_id, some)
            if parts is not self:
                rows = self.layout.converted(rows, parts.layout)
            steps.update(zip((block.seq for block in some), rows, strict=True))
        return [steps.get(seq) for seq in seqs]

    def _of(self, number: int) -> "StepParts":
        """Return what reads those of the fields that steps of another layout have."""
        layout = self._whole.of(number)
        return StepParts(layout, [name for name in self.layout.specs if name in layout.specs])

    def _wanted(
        self, connection: Connection, buffer_id: int, blocks: Sequence[_Block]
    ) -> list[bytes]:
        heads = self._read(connection, buffer_id, blocks, [self._heads] * len(blocks))
        tails = [self._tails(head) for head in heads]
        values = self._read(connection, buffer_id, blocks, tails)
        return [
            b"".join([*self._wanted_heads(head), *tail])
            for head, tail in zip(heads, values, strict=True)
        ]

    def _wanted_heads(self, head: Sequence[bytes]) -> Iterator[bytes]:
        for name, value in zip(self._head_names, head, strict=True):
            if name in self.layout.specs:
                yield value

    def _tails(self, head: Sequence[bytes]) -> list[tuple[int, int]]:
        """Return where the wanted values of varying length are in a block, and their sizes."""
        lengths = dict(zip(self._head_names, head, strict=True))
        sizes = [
            int(np.frombuffer(lengths[spec.name], LENGTH)[0]) * item_bytes(spec)
            for spec in self._varying
        ]
        starts = accumulate(sizes, initial=self._size)
        return [
            (start, size)
            for spec, start, size in zip(self._varying, starts, sizes, strict=False)
            if spec.name in self.layout.specs
        ]

    def _read(
        self,
        connection: Connection,
        buffer_id: int,
        blocks: Sequence[_Block],
        ranges: Sequence[Sequence[tuple[int, int]]],
    ) -> list[list[bytes]]:
        """Return the bytes of (start, size) ranges of each block, in their order."""
        pieces: list[Piece] = []
        of_blocks: list[tuple[int, int]] = []  # block, start in the block
        for i, (block, ranges_of_block) in enumerate(zip(blocks, ranges, strict=True)):
            if block.small is None:
                for start, end in _runs(ranges_of_block):
                    pieces.append(Piece(block.first_seq, RECORDS, block.start + start, end - start))
                    of_blocks.append((i, start))
        runs: list[dict[int, bytes]] = [{} for _ in blocks]
        if pieces:
            read = read_pieces(connection, buffer_id, pieces)
            for n, parts in groupby(read, itemgetter(0)):
                i, start = of_blocks[n]
                runs[i][start] = b"".join(raw for _, raw in parts)
        return [
            [_part(block, runs_of_block, start, size) for start, size in wanted]
            for block, runs_of_block, wanted in zip(blocks, runs, ranges, strict=True)
        ]


def _part(block: _Block, runs: dict[int, bytes], start: int, size: int) -> bytes:
    if block.small is not None:
        return block.small[start : start + size]
    first = max((first for first in runs if first <= start), default=start)
    return runs.get(first, b"")[start - first : start - first + size]


def _runs(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, end) of ranges, those that are near to each other as one."""
    runs: list[tuple[int, int]] = []
    for start, size in sorted(ranges):
        if runs and start <= runs[-1][1] + _NEAR_BYTES:
            runs[-1] = runs[-1][0], max(runs[-1][1], start + size)
        elif size:
            runs.append((start, start + size))
    return runs


PART_BYTES = 2**20
# Maximum number of positions in one statement; the bytes are returned one piece after the other.
GROUP_PIECES = 1_000
# Arrays with at most this distance are read together: TOAST has chunks of 2 kB.
NEAR_BYTES = 4_096
# Arrays up to this size are read with their row, where all of a payload is wanted.
SMALL_BYTES = 8_192
# Neither database holds more than this in one column.
MAX_INLINE_BYTES = 900_000_000
# Steps of chunks are read in growing numbers while their size is not known.
_FIRST_STEPS, _MORE_STEPS = 16, 8


_ARRAYS, _SIZE = PLACES["arrays"], PLACES["payload_bytes"]
_EXTRA = PLACES["extra"]
_PAYLOADS_OF = itemgetter(*(PLACES[name] for name in PAYLOADS))
_TEXTS = slice(Record._fields.index("state"), Record._fields.index("fields") + 1)


class PieceRun(NamedTuple):
    """Bytes of a row's content, and their position in the result."""

    start: int
    end: int
    place: int


@dataclass
class ReadPlan:
    """The plan for reading a row, or a part of it.

    Attributes:
        row: The row.
        runs: Runs of its content to read.
        size: Size in bytes of the result, with the gaps in it.
    """

    row: Row
    runs: list[PieceRun] = field(default_factory=list)
    size: int = 0


def check_row_sizes(records: Sequence[Record], limit: int, where: str = "row {}: ") -> None:
    """Raise an error if a payload is too large to be stored.

    Args:
        records: The rows.
        limit: Maximum size of a payload in bytes.
        where: Format of a row's name in errors, by its index.

    Raises:
        FieldError: A payload is too large; the message names the row and its size.
    """
    most = min(limit, MAX_JSON_BYTES)
    # A whole batch is mostly smaller than the limit of one row, and this check takes half the time.
    if len(records) == 1 or _at_most_bytes(records) > most:
        for i, record in enumerate(records):
            if _at_most_bytes([record]) > most:
                texts = zip(Record._fields[_TEXTS], _texts_of(record), strict=True)
                check_row_size(dict(texts), len(record.arrays or b""), limit, where.format(i))


def _at_most_bytes(records: Sequence[Record]) -> int:
    """Return the maximum size of the payloads in bytes: a character has up to four."""
    texts = chain.from_iterable([_texts_of(record) for record in records])
    arrays = (record.arrays for record in records)
    return 4 * sum(map(len, filter(None, texts))) + sum(map(len, filter(None, arrays)))


def _texts_of(record: Record) -> Any:
    return record[_TEXTS]


def row_limit(config: BufferConfig) -> int:
    """Return the maximum size of a row's payload in a buffer, in bytes."""
    most = config.payloads.max_row_bytes
    return min(most, MAX_INLINE_BYTES) if config.fields.specs else most


def prepared(records: Sequence[Record], layout: Layout) -> list[Record]:
    """Return records in their stored form: large ones marked, others compressed."""
    large = {i for i, r in enumerate(records) if r.arrays and len(r.arrays) > PART_BYTES}
    if not large and layout.compression is None:
        return list(records)
    stored = layout.compress([None if i in large else r.arrays for i, r in enumerate(records)])
    return [
        record._replace(payload_bytes=len(record.arrays or b""))
        if i in large
        else record._replace(arrays=arrays)
        for i, (record, arrays) in enumerate(zip(records, stored, strict=True))
    ]


def without_parts(records: Sequence[Record]) -> Sequence[Record]:
    """Return records in the form of `experiences`."""
    if all(record.payload_bytes is None for record in records):
        return records
    return [r if r.payload_bytes is None else r._replace(arrays=None) for r in records]


def split(content: bytes | bytearray, layout: Layout) -> Iterator[Any]:
    """Yield the parts of a row's content in their stored form."""
    whole = memoryview(content)
    for start in range(0, len(whole), PART_BYTES):
        part = whole[start : start + PART_BYTES]
        yield part if layout.compression is None else layout.compress([bytes(part)])[0]


def n_bytes_of(row: Row) -> int:
    """Return the size of the texts and bytes of a row."""
    sized = (str, bytes, memoryview)
    return sum(len(value) for value in row if isinstance(value, sized))


def is_in_parts(row: Row) -> bool:
    """Return True if a row of `statements.ROW_COLUMNS` has its bytes in parts."""
    return row[_SIZE] is not None


def have_parts(rows: Sequence[Row]) -> bool:
    """Return True if any of several rows has its bytes in parts."""
    return [row[_SIZE] for row in rows].count(None) < len(rows)


class Payloads:
    """Reads rows of a buffer, whole or in part, and writes their parts.

    Args:
        buffer_id: The buffer.
        layout: Layout that knows the compression of bytes.
        selected: Fields to read; None for all.
        only: Columns to read in addition to `seq`, for callers that decode them; the others are
            null.
        steps: How the steps are stored.
        may_replace: The bytes of stored steps may have been replaced.

    Attributes:
        columns: Columns to select of rows: `statements.ROW_COLUMNS`, with null for those left out.
        reading: Reads rows by their numbers. Those of steps with typed fields end with the block
            of bytes, and their place in it.
    """

    def __init__(
        self,
        buffer_id: int,
        layout: Layout,
        selected: SelectedFields | None = None,
        only: frozenset[str] | None = None,
        *,
        steps: StepLayout = ROWS,
        may_replace: bool = False,
    ) -> None:
        self._buffer_id, self._layout = buffer_id, layout
        self._read, self._may_replace = steps.read_rows, may_replace
        self._step_parts: StepParts | None = None
        is_part = selected is not None and 0 < len(selected.typed) < len(layout.specs)
        if is_part and self._read and not may_replace and layout.compression is None:
            self._step_parts = StepParts(layout, selected.typed if selected else ())
        self._selected, self._only = selected, only
        has_fields = (
            bool(layout.specs) and only is None and (selected is None or bool(selected.typed))
        )
        self._has_fields = has_fields and self._step_parts is None
        self._names = frozenset(self._wanted_names())
        # Of whole payloads small arrays are read at once, also those that others refer to: each
        # statement for a part takes longer.
        self._takes_whole = (
            selected is not None
            and not self._read
            and all(selected.is_whole(name) for name in selected.fields)
        )
        self.columns = (
            statements.ROW_COLUMNS[0],
            *(self._column(column) for column in statements.ROW_COLUMNS[1:]),
        )
        self.reading = RowSelection(
            self.columns,
            self._with_late,
            complete=self.complete,
            read=self._read_steps if self._read else None,
        )

    def _column(self, column: Any) -> ColumnElement[Any]:
        if column.name in self._names:
            return cast("ColumnElement[Any]", column)
        # `extra` alone seldom refers to arrays.
        names = set(PAYLOADS[:-1])
        wanted = set() if self._selected is None else self._selected.fields.keys() & names
        if column.name == "arrays" and self._takes_whole and wanted:
            small = case((func.length(column) <= SMALL_BYTES, column))
            return small.label(column.name)
        return null().label(column.name)

    def _wanted_names(self) -> set[str]:
        """Return the columns of a `Record` that are read."""
        # Those that were given late are read in place of `fields`, whose values are in the bytes.
        names = {*Record._fields} - {"fields"}
        if self._only is not None:
            names &= self._only
        if self._selected is None:
            return names
        # `extra` also has numbers that their columns cannot hold.
        payloads = PAYLOADS[:-1] if self._only is None else PAYLOADS
        unwanted = {*payloads, *PLAIN} - self._selected.fields.keys()
        if not self._read or not self._selected.fields.keys() & set(PAYLOADS):
            unwanted.add("arrays")
        return names - unwanted

    def _read_steps(
        self,
        connection: Connection,
        seqs: Sequence[int],
        has_labels: bool,
        has_deleted: bool,
    ) -> list[Row]:
        """Return steps of chunks by their numbers; see `RowSelection.read`."""
        wanted = Wanted(
            labels=has_labels, extra=has_labels, deleted=has_deleted, replaced=self._may_replace
        )
        assert self._read is not None
        return self._read(connection, self._buffer_id, seqs, self._names, wanted, self._has_fields)

    def _with_late(self, connection: Connection, rows: list[Row]) -> list[Row]:
        """Return rows of `columns` with values that were given late."""
        wanted = Wanted(labels=True, extra=True)
        runs = runs_of([row[0] for row in rows])
        marks = read_marks(connection, self._buffer_id, runs, wanted, has_chunks=False)
        return with_marks(rows, marks, self._names)

    @cached_property
    def by_id(self) -> Select[Any]:
        """The select of rows by id; see `statements.of_named`."""
        return statements.of_named("id", *self.columns)

    def matching(
        self,
        connection: Connection,
        keys: Select[Any],
        steps: Any,
        *,
        has_labels: bool,
        excludes: ColumnElement[bool] | None = None,
        most_bytes: int | None = None,
    ) -> tuple[list[Row], int]:
        """Return the rows that a select of `seq` finds, without their parts, and how many it finds.

        They are in the order of the select, or for steps of chunks in that of their numbers.

        Args:
            connection: The transaction.
            keys: The select.
            steps: The table of steps that it reads.
            has_labels: Read values that were given late.
            excludes: Condition for a row by which its whole task is left out.
            most_bytes: Fewer steps of chunks are returned if they have more bytes; at least one.
        """
        reads_steps = self.reading.read is not None
        if reads_steps and excludes is not None:
            keys = keys.add_columns(steps.c.task_id)
        elif not reads_steps:
            keys = keys.with_only_columns(*self.columns)
        if excludes is not None:
            keys = keys.add_columns(excludes.label("is_excluded"))
        rows = fetch(connection, keys)
        if excludes is not None:
            task = 1 if reads_steps else TASK_ID
            excluded = {row[task] for row in rows if row[-1]}
            rows = [row[:-1] for row in rows if row[task] not in excluded]
        if self.reading.read is None:
            return self._with_late(connection, rows) if has_labels else rows, len(rows)
        seqs, steps_at_once, most = [row[0] for row in rows], len(rows), most_bytes
        if most is not None:
            largest = self._layout.size_bytes or 1
            steps_at_once = max(1, min(_FIRST_STEPS, most // largest))
        stored: list[Row] = []
        n_read, n_bytes = 0, 0
        while n_read < len(seqs) and (most is None or n_bytes < most):
            some = seqs[n_read : n_read + steps_at_once]
            more = self.reading.read(connection, some, has_labels, False)
            stored += more
            n_read += len(some)
            n_bytes += sum(map(n_bytes_of, more))
            if most is not None:  # the next ones are expected to be as large
                fits = (most - n_bytes) * n_read // max(n_bytes, 1)
                steps_at_once = max(1, min(_MORE_STEPS * steps_at_once, fits))
        return stored, len(seqs)

    def insert(self, connection: Connection, numbered: Iterable[tuple[int, Record]]) -> None:
        """Write the parts of rows that the transaction wrote, if the buffer still holds them.

        A batch may evict rows of its own.
        """
        large = {seq: record for seq, record in numbered if record.payload_bytes is not None}
        if large:
            held = keep_parts(connection, self._buffer_id, list(large))
            parts = (
                (seq, number, part)
                for seq in sorted(held)
                for number, part in enumerate(split(large[seq].arrays or b"", self._layout))
            )
            insert_parts(connection, self._buffer_id, parts)

    def complete(
        self, connection: Connection, rows: Sequence[Row], most_bytes: int | None = None
    ) -> list[Row]:
        """Return rows of `columns` with the bytes that they refer to, each in separate memory.

        Args:
            connection: Transaction that read the rows; it sees one state throughout.
            rows: The rows.
            most_bytes: Maximum size of the result; at least one row is returned.

        Raises:
            FieldError: A part of a row is missing.
        """
        if self._are_whole(rows):
            return list(rows)
        if self._step_parts is not None:
            rows = self._with_typed(connection, self._step_parts, rows)
        plans = self._plans(rows, most_bytes)
        completed = []
        for row, plan in zip(self._filled(connection, plans), plans, strict=True):
            if row is None:
                raise FieldError(
                    f"{shown_row(0, [plan.row[0]])} lacks a part of its payload; delete it, or "
                    f"restore it from a backup"
                )
            completed.append(row)
        return completed

    def held(self, connection: Connection, rows: Sequence[Row]) -> list[Row]:
        """Return rows as in `complete`, without those that left since they were read."""
        if self._are_whole(rows):
            return list(rows)
        if self._step_parts is not None:
            rows = self._with_typed(connection, self._step_parts, rows)
        plans = self._plans(rows, None)
        return [row for row in self._filled(connection, plans) if row is not None]

    @property
    def typed_layout(self) -> Layout:
        """Layout of the bytes of typed fields in the rows."""
        return self._layout if self._step_parts is None else self._step_parts.layout

    def _with_typed(
        self, connection: Connection, parts: StepParts, rows: Sequence[Row]
    ) -> list[Row]:
        """Return rows with the bytes of the wanted typed fields, their place there, which is 0, and
        the number of their layout.

        Of a page that will be cut to a number of bytes, all are read.
        """
        blocks = parts.read(connection, self._buffer_id, [row[0] for row in rows])
        number = parts.layout.number
        return [(*row, block, 0, number) for row, block in zip(rows, blocks, strict=True)]

    def _are_whole(self, rows: Sequence[Row]) -> bool:
        """Return True if rows have all their bytes, and all of these are wanted."""
        if self._selected is None:
            return not have_parts(rows)
        return self._takes_whole and _are_ready(rows, "extra" in self._selected.fields)

    def _plans(self, rows: Sequence[Row], most_bytes: int | None) -> list[ReadPlan]:
        plans: list[ReadPlan] = []
        total = 0
        for row in rows:
            if self._selected is None:
                plan = _whole(row)
            elif self._takes_whole and _are_ready([row], "extra" in self._selected.fields):
                plan, total = ReadPlan(row), total + len(row[_ARRAYS] or b"")
            elif self._read:
                plan = ReadPlan(with_values(row, _texts(_wanted_trees(row, self._selected))))
            else:
                plan = _plan_of_parts(row, self._selected)
            total += plan.size
            if plans and most_bytes is not None and total > most_bytes:
                break
            plans.append(plan)
        return plans

    def _filled(self, connection: Connection, plans: Sequence[ReadPlan]) -> list[Row | None]:
        if not any(plan.size for plan in plans):
            return [plan.row for plan in plans]
        contents = [np.empty(plan.size, np.uint8) for plan in plans]
        missing = [sum(end - start for start, end, _ in plan.runs) for plan in plans]
        targets = (
            target
            for i, plan in enumerate(plans)
            for target in self._targets(i, plan, contents[i].data)
        )
        for group in _groups(targets):
            pieces = [piece for _, piece, _, _ in group]
            read = read_pieces(connection, self._buffer_id, pieces)
            for n, chunks in groupby(read, itemgetter(0)):
                i, piece, skipped, target = group[n]
                missing[i] -= self._fill(target, piece, skipped, (raw for _, raw in chunks))
        return [
            None
            if n_missing
            else with_values(plan.row, {_ARRAYS: content.data, _SIZE: plan.size})
            if plan.size
            else plan.row
            for plan, content, n_missing in zip(plans, contents, missing, strict=True)
        ]

    def _fill(self, target: memoryview, piece: Piece, skipped: int, chunks: Iterable[Any]) -> int:
        """Copy a piece to its position; return its number of bytes."""
        if self._layout.compression is not None:
            (raw,) = self._layout.expand([b"".join(chunks)], [piece.seq])
            chunks = [memoryview(raw or b"")[skipped : skipped + len(target)]]
        n = 0
        for chunk in chunks:
            target[n : n + len(chunk)] = chunk
            n += len(chunk)
        return n

    def _targets(self, i: int, plan: ReadPlan, content: memoryview) -> Iterator["_Target"]:
        """Yield the pieces of a row, with their positions in its content."""
        seq, in_parts = plan.row[0], plan.row[_SIZE] is not None
        is_packed = self._layout.compression is not None
        for start, end, place in plan.runs:
            while start < end:
                part, inside = divmod(start, PART_BYTES) if in_parts else (None, start)
                size = min(end - start, PART_BYTES - inside) if in_parts else end - start
                target = content[place : place + size]
                if is_packed:  # compressed content is read whole
                    yield i, Piece(seq, part, 0, MAX_INLINE_BYTES), inside, target
                else:
                    yield i, Piece(seq, part, inside, size), 0, target
                start, place = start + size, place + size


# The number of the row, the piece, the number of bytes to skip, and the target memory.
_Target = tuple[int, Piece, int, memoryview]


def _groups(targets: Iterable[_Target]) -> Iterator[list[_Target]]:
    """Yield targets in groups that are read together: from parts, or from `arrays`."""
    for _, kind in groupby(targets, lambda target: target[1].part is None):
        while group := list(islice(kind, GROUP_PIECES)):
            yield group


def _whole(row: Row) -> ReadPlan:
    size = row[_SIZE]
    return ReadPlan(row) if size is None else ReadPlan(row, [PieceRun(0, size, 0)], size)


def _are_ready(rows: Sequence[Row], wants_extra: bool) -> bool:
    """Return True if rows that were read have all that is wanted, which are whole fields."""
    if have_parts(rows):
        return False
    extras = [row[_EXTRA] for row in rows if row[_EXTRA] is not None]
    if extras and (not wants_extra or '"$reals"' in "".join(extras)):
        return False
    bare = [row for row in rows if row[_ARRAYS] is None]
    texts = filter(None, chain.from_iterable(map(_PAYLOADS_OF, bare)))
    return not any('"$' in text for text in texts)


def _plan_of_parts(row: Row, selected: SelectedFields) -> ReadPlan:
    """Return the plan of a row with the wanted part of its JSON, which refers to the read bytes."""
    trees = _wanted_trees(row, selected)
    refs = [reference for tree in trees.values() for reference in references(tree) if reference[-1]]
    runs, size = _laid_out(refs)
    texts = _texts(trees)
    return ReadPlan(with_values(row, texts if size else {**texts, _SIZE: None}), runs, size)


def _texts(trees: Mapping[str, Any]) -> dict[int, Any]:
    """Return the JSON of trees by their places in a row."""
    return {PLACES[name]: None if tree is MISSING else dumps(tree) for name, tree in trees.items()}


def _wanted_trees(row: Row, selected: SelectedFields) -> dict[str, Any]:
    """Return the wanted part of a row's JSON."""
    trees: dict[str, Any] = {}
    for name in PAYLOADS:
        text = row[PLACES[name]]
        if text is not None:
            tree = loads(text)
            trees[name] = (
                _wanted_extra(tree, selected)
                if name == "extra"
                else pruned(tree, selected.fields.get(name, {}))
            )
    return trees


def _wanted_extra(tree: dict[str, Any], selected: SelectedFields) -> Any:
    kept = {"execute_time", *selected.fields}
    reals = {name: real for name, real in tree.pop("$reals", {}).items() if name in kept}
    is_none = tree.pop("$none", False)
    part = MISSING if is_none else pruned(tree, selected.fields.get("extra", {}))
    if not reals:
        return part
    rest: Any = {"$none": True} if part is MISSING else part
    return {**rest, "$reals": reals}


def _laid_out(references: Sequence[list[Any]]) -> tuple[list[PieceRun], int]:
    """Return the runs to read for arrays, and their size; the references point into them.

    Each array keeps its offset, up to multiples of the alignment.
    """
    runs: list[PieceRun] = []
    size = 0
    for reference in sorted(references, key=lambda ref: int(ref[-2])):
        start, n = reference[-2:]
        if not runs or start > runs[-1].end + NEAR_BYTES:
            size += (start - size) % ALIGNMENT
            runs.append(PieceRun(start, start, size))
        last = runs[-1]
        runs[-1] = last._replace(end=max(last.end, start + n))
        size = max(size, last.place + start + n - last.start)
        reference[-2] = last.place + start - last.start
    return runs, size
