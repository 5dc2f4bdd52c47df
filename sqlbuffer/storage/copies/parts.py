"""Data that a copy passes from its source to its target.

The databases have other forms of some values. SQLite stores lists as JSON, with null also for NaN
and `9e999` for infinity; times as text; and truth values as numbers. JSON is text in both here:
PostgreSQL returns its text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    Table,
    Uuid,
)
from sqlalchemy.dialects import postgresql

from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.numbered_chunks import values_json
from sqlbuffer.storage.chunks.tables import chunk_data, chunks, deleted_steps, step_ids
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.rows.layouts import CHUNKS, ROWS, StepLayout
from sqlbuffer.storage.schema.expressions import BooleanList, IdList, IntegerList, RealList, listed
from sqlbuffer.storage.schema.metadata import OVERLAYS

# PostgreSQL writes the 9e999 that stands for infinity in JSON in this way.
_INFINITY = re.compile("90{999}(?![0-9])")
_LONG = 1_000


def time_text(time: datetime) -> str:
    """Return a time in the form of SQLite: UTC, in milliseconds or, if needed, microseconds."""
    utc = time.astimezone(UTC)
    precision = "microseconds" if utc.microsecond % 1_000 else "milliseconds"
    return f"{utc.replace(tzinfo=None).isoformat(timespec=precision)}Z"


def _json_text(text: str) -> str:
    return text if len(text) < _LONG else _INFINITY.sub("9e999", text)


def _reals_text(values: Sequence[Any]) -> str | None:
    if all(value is None or value - value == 0 for value in values):
        return orjson.dumps(values).decode()  # finite
    return values_json([None if value != value else value for value in values])


_TO_SQLITE: dict[str, Callable[[Any], Any]] = {
    "integers": lambda values: orjson.dumps(values).decode(),
    "reals": _reals_text,
    "flags": lambda values: orjson.dumps(values).decode(),
    "json": _json_text,
    "time": time_text,
    "flag": int,
}
_TO_POSTGRESQL: dict[str, Callable[[Any], Any]] = {
    "integers": listed,
    "reals": listed,
    "flags": listed,
    "time": datetime.fromisoformat,
    "flag": bool,
}
_CONVERSIONS = {
    ("postgresql", "sqlite"): _TO_SQLITE,
    ("sqlite", "postgresql"): _TO_POSTGRESQL,
}


def converted(values: list[Any], form: str, source: str, target: str) -> list[Any]:
    """Return values of a column in the form of another database.

    Args:
        values: The values.
        form: The form of the column.
        source: Database that they are from: sqlite or postgresql.
        target: Database that they are for.
    """
    convert = _CONVERSIONS.get((source, target), {}).get(form)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


_POSTGRESQL = postgresql.dialect()  # type: ignore[no-untyped-call]
# Form of a column by its type on PostgreSQL; the first match counts.
_FORMS: tuple[tuple[type[Any], str], ...] = (
    (IdList, "ids"),
    (IntegerList, "integers"),
    (RealList, "reals"),
    (BooleanList, "flags"),
    (JSON, "json"),
    (Uuid, "uuid"),
    (DateTime, "time"),
    (Boolean, "flag"),
    (BigInteger, "bigint"),
    (Integer, "integer"),
    (Double, "real"),
    (LargeBinary, "bytes"),
)
# Columns that the target fills itself: its own keys and transactions. No writer of the source
# writes there.
_LEFT_OUT = ("buffer_id", "xid", "writer", "item_id")


@dataclass(frozen=True)
class CopiedTable:
    """A table whose rows are copied.

    Attributes:
        name: Its name.
        number: The column with the number of a step, or of the first step of a chunk.
        columns: The columns that are copied.
        forms: Form of the values of each column; see `converted`.
        is_keyed: SQLite finds its rows by one integer; see `schema.number_keys`.
        flag: The column of `buffers` that is true if a buffer may have rows in it; None if any
            buffer may.
    """

    name: str
    number: str
    columns: tuple[str, ...]
    forms: tuple[str, ...]
    is_keyed: bool = False
    flag: str | None = None


@dataclass
class TableRows:
    """Rows of a table, column by column.

    Attributes:
        table: The table.
        values: The values of each of its columns.
    """

    table: CopiedTable
    values: dict[str, list[Any]]

    @classmethod
    def of(cls, table: CopiedTable, rows: Sequence[Sequence[Any]]) -> "TableRows":
        """Return the table of rows that are given one after the other."""
        columns = list(zip(*rows, strict=True)) or [()] * len(table.columns)
        return cls(table, dict(zip(table.columns, map(list, columns), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    @property
    def numbers(self) -> list[int]:
        """The number of each row."""
        return self.values[self.table.number]

    def without(self, *names: str) -> "TableRows":
        """Return the rows without some columns."""
        kept = {name: values for name, values in self.values.items() if name not in names}
        return TableRows(self.table, kept)

    def where(self, is_kept: Sequence[bool]) -> "TableRows":
        """Return the rows whose flag is set."""
        kept = {
            name: [value for value, keep in zip(values, is_kept, strict=True) if keep]
            for name, values in self.values.items()
        }
        return TableRows(self.table, kept)


def _described(table: Table, number: str, flag: str | None = None) -> CopiedTable:
    columns = [column for column in table.c if column.name not in _LEFT_OUT]
    return CopiedTable(
        table.name,
        number,
        tuple(column.name for column in columns),
        tuple(map(_form, columns)),
        "integer_key" in table.info,
        flag,
    )


def _form(column: Column[Any]) -> str:
    types = (column.type, column.type.dialect_impl(_POSTGRESQL))
    return next((form for kind, form in _FORMS if any(isinstance(t, kind) for t in types)), "text")


@lru_cache(maxsize=2)
def step_tables(steps: StepLayout) -> tuple[CopiedTable, ...]:
    """Return the tables with the steps of a buffer, in the order in which they are written."""
    if steps is ROWS:
        return (_described(experiences, "seq"),)
    return (
        _described(chunk_data, "first_seq"),
        _described(chunks, "first_seq"),
        _described(step_ids, "seq", "has_step_ids"),
        _described(deleted_steps, "seq", "has_deleted"),
    )


@lru_cache(maxsize=1)
def overlay_tables() -> tuple[CopiedTable, ...]:
    """Return the overlay tables, whose rows belong to single steps of either layout."""
    overlays = sorted(OVERLAYS.items())
    return tuple(_described(overlay.table, "seq", overlay.flag) for _, overlay in overlays)


@lru_cache(maxsize=1)
def episode_table() -> CopiedTable:
    """Return the table of episodes, with their keys in the source."""
    return _described(episodes, "id")


@dataclass(frozen=True)
class SourceIdentity:
    """The buffer and the database that a copy is made of."""

    database: str
    name: str
    buffer_id: int
    created_at: str
    condition: str | None
    uuid: str = field(default="", compare=False)


@dataclass(frozen=True)
class CopiedRange:
    """The steps that a copy takes: those with low < seq <= high. It continues behind `cursor`."""

    low: int
    high: int
    cursor: int


@dataclass(frozen=True)
class SourceState:
    """Data of the source buffer as a whole that a copy takes.

    Attributes:
        range: The copied steps.
        columns: Values of `BUFFER_COLUMNS`.
        session: The current session.
        sessions: The model version of each session.
        n_expected: Number of steps that it reads, if whole tasks or episodes are evicted.
    """

    range: CopiedRange
    columns: dict[str, Any]
    session: str | None
    sessions: dict[str, int | None]
    n_expected: int | None


@dataclass
class StepBatch:
    """Some steps with all their rows in other tables.

    Attributes:
        begin: Number below the batch's steps.
        end: Number of the batch's last step.
        n_steps: Number of copied steps.
        n_read: Number of read steps, also of those that do not match.
        tables: Their rows, in the order in which they are written.
    """

    begin: int
    end: int
    n_steps: int = 0
    n_read: int = 0
    tables: list[TableRows] = field(default_factory=list)

    @property
    def flags(self) -> set[str]:
        """The columns of `buffers` that show which tables have rows."""
        return {rows.table.flag for rows in self.tables if rows.table.flag and len(rows)}

    def keep(self, seqs: set[int]) -> None:
        """Keep the steps that have one of the numbers.

        A chunk is kept whole if one of its steps is kept: the others are noted as deleted.
        """
        self.n_steps = len(seqs)
        by_name = {rows.table.name: rows for rows in self.tables}
        deleted: list[int] = []
        firsts: set[int] = set()
        if "chunks" in by_name:
            chunk_rows = by_name["chunks"]
            for first, n in zip(chunk_rows.numbers, chunk_rows.values["n_steps"], strict=True):
                others = [seq for seq in range(first, first + n) if seq not in seqs]
                if len(others) < n:
                    firsts.add(first)
                    deleted += others
        kept = []
        for rows in self.tables:
            numbers = firsts if rows.table.number == "first_seq" else seqs
            if rows.table.name != "deleted_steps":
                kept.append(rows.where([number in numbers for number in rows.numbers]))
        if deleted:
            table = next(
                described for described in step_tables(CHUNKS) if described.name == "deleted_steps"
            )
            kept.insert(2, TableRows(table, {"seq": list(deleted)}))
        self.tables = kept
