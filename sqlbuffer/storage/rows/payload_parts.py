"""Payloads too large for one value, written and read in parts; and payloads read in part.

A row whose arrays have more than 1 MiB has them in `payload_parts`, 1 MiB of content in each. So a
position in them gives its part, and neither side ever holds one large value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np
from orjson import loads
from sqlalchemy import Connection, Select, case, func, null
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.codec.plain_values import ALIGNMENT, dumps
from sqlbuffer.config import BufferConfig
from sqlbuffer.encoding.packing import Layout, shown_row
from sqlbuffer.encoding.records import MAX_JSON_BYTES, Record, check_row_size
from sqlbuffer.errors import FieldError
from sqlbuffer.query.selected_fields import (
    MISSING,
    PAYLOADS,
    PLAIN,
    SelectedFields,
    pruned,
    references,
)
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.marks import Wanted, read_marks, runs_of
from sqlbuffer.storage.rows import postgresql, sqlite, statements
from sqlbuffer.storage.rows.layouts import ROWS, StepLayout
from sqlbuffer.storage.rows.pieces import Piece
from sqlbuffer.storage.rows.row_selection import RowSelection
from sqlbuffer.storage.rows.step_parts import StepParts
from sqlbuffer.storage.rows.stored_rows import PLACES, TASK_ID, Row, with_marks, with_values

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


keep_parts = by_database(sqlite=sqlite.keep_parts, postgresql=postgresql.keep_parts)
insert_parts = by_database(sqlite=sqlite.insert_parts, postgresql=postgresql.insert_parts)
read_pieces = by_database(sqlite=sqlite.read_pieces, postgresql=postgresql.read_pieces)

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
        wanted: Fields to read; None for all.
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
        wanted: SelectedFields | None = None,
        only: frozenset[str] | None = None,
        *,
        steps: StepLayout = ROWS,
        may_replace: bool = False,
    ) -> None:
        self._buffer_id, self._layout = buffer_id, layout
        self._read, self._may_replace = steps.read_rows, may_replace
        self._step_parts: StepParts | None = None
        is_part = wanted is not None and 0 < len(wanted.typed) < len(layout.specs)
        if is_part and self._read and not may_replace and layout.compression is None:
            self._step_parts = StepParts(layout, wanted.typed if wanted else ())
        self._wanted, self._only = wanted, only
        has_fields = bool(layout.specs) and only is None and (wanted is None or bool(wanted.typed))
        self._has_fields = has_fields and self._step_parts is None
        self._names = frozenset(self._wanted_names())
        # Of whole payloads small arrays are read at once, also those that others refer to: each
        # statement for a part takes longer.
        self._takes_whole = (
            wanted is not None
            and not self._read
            and all(wanted.is_whole(name) for name in wanted.fields)
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
        wanted = set() if self._wanted is None else self._wanted.fields.keys() & set(PAYLOADS[:-1])
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
        if self._wanted is None:
            return names
        # `extra` also has numbers that their columns cannot hold.
        unwanted = {*PAYLOADS[:-1], *PLAIN} - self._wanted.fields.keys()
        if not self._read or not self._wanted.fields.keys() & set(PAYLOADS):
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
        found: list[Row] = []
        n_read, n_bytes = 0, 0
        while n_read < len(seqs) and (most is None or n_bytes < most):
            some = seqs[n_read : n_read + steps_at_once]
            more = self.reading.read(connection, some, has_labels, False)
            found += more
            n_read += len(some)
            n_bytes += sum(map(n_bytes_of, more))
            if most is not None:  # the next ones are expected to be as large
                fits = (most - n_bytes) * n_read // max(n_bytes, 1)
                steps_at_once = max(1, min(_MORE_STEPS * steps_at_once, fits))
        return found, len(seqs)

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
        found = []
        for row, plan in zip(self._filled(connection, plans), plans, strict=True):
            if row is None:
                raise FieldError(
                    f"{shown_row(0, [plan.row[0]])} lacks a part of its payload; delete it, or "
                    f"restore it from a backup"
                )
            found.append(row)
        return found

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
        """Return rows with the bytes of the wanted typed fields, and their place there, which is 0.

        Of a page that will be cut to a number of bytes, all are read.
        """
        blocks = parts.read(connection, self._buffer_id, [row[0] for row in rows])
        return [(*row, block, 0) for row, block in zip(rows, blocks, strict=True)]

    def _are_whole(self, rows: Sequence[Row]) -> bool:
        """Return True if rows have all their bytes, and all of these are wanted."""
        if self._wanted is None:
            return not have_parts(rows)
        return self._takes_whole and _are_ready(rows, "extra" in self._wanted.fields)

    def _plans(self, rows: Sequence[Row], most_bytes: int | None) -> list[ReadPlan]:
        plans: list[ReadPlan] = []
        total = 0
        for row in rows:
            if self._wanted is None:
                plan = _whole(row)
            elif self._takes_whole and _are_ready([row], "extra" in self._wanted.fields):
                plan, total = ReadPlan(row), total + len(row[_ARRAYS] or b"")
            elif self._read:
                plan = ReadPlan(with_values(row, _texts(_wanted_trees(row, self._wanted))))
            else:
                plan = _part(row, self._wanted)
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
            found = read_pieces(connection, self._buffer_id, pieces)
            for n, chunks in groupby(found, itemgetter(0)):
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


def _part(row: Row, wanted: SelectedFields) -> ReadPlan:
    """Return the plan of a row with the wanted part of its JSON, which refers to the read bytes."""
    trees = _wanted_trees(row, wanted)
    found = [each for tree in trees.values() for each in references(tree) if each[-1]]
    runs, size = _laid_out(found)
    texts = _texts(trees)
    return ReadPlan(with_values(row, texts if size else {**texts, _SIZE: None}), runs, size)


def _texts(trees: Mapping[str, Any]) -> dict[int, Any]:
    """Return the JSON of trees by their places in a row."""
    return {PLACES[name]: None if tree is MISSING else dumps(tree) for name, tree in trees.items()}


def _wanted_trees(row: Row, wanted: SelectedFields) -> dict[str, Any]:
    """Return the wanted part of a row's JSON."""
    trees: dict[str, Any] = {}
    for name in PAYLOADS:
        text = row[PLACES[name]]
        if text is not None:
            tree = loads(text)
            trees[name] = (
                _wanted_extra(tree, wanted)
                if name == "extra"
                else pruned(tree, wanted.fields.get(name, {}))
            )
    return trees


def _wanted_extra(tree: dict[str, Any], wanted: SelectedFields) -> Any:
    kept = {"execute_time", *wanted.fields}
    reals = {name: real for name, real in tree.pop("$reals", {}).items() if name in kept}
    is_none = tree.pop("$none", False)
    found = MISSING if is_none else pruned(tree, wanted.fields.get("extra", {}))
    if not reals:
        return found
    rest: Any = {"$none": True} if found is MISSING else found
    return {**rest, "$reals": reals}


def _laid_out(references: Sequence[list[Any]]) -> tuple[list[PieceRun], int]:
    """Return the runs to read for arrays, and their size; the references point into them.

    Each array keeps its offset, up to multiples of the alignment.
    """
    runs: list[PieceRun] = []
    size = 0
    for reference in sorted(references, key=lambda each: int(each[-2])):
        start, n = reference[-2:]
        if not runs or start > runs[-1].end + NEAR_BYTES:
            size += (start - size) % ALIGNMENT
            runs.append(PieceRun(start, start, size))
        last = runs[-1]
        runs[-1] = last._replace(end=max(last.end, start + n))
        size = max(size, last.place + start + n - last.start)
        reference[-2] = last.place + start - last.start
    return runs, size
