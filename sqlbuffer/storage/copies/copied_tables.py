"""The tables whose rows belong to steps, as a copy reads and writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
from sqlbuffer.storage.chunks.tables import chunk_data, chunks, deleted_steps, step_ids
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.rows.layouts import ROWS, StepLayout
from sqlbuffer.storage.schema.column_types import BooleanList, IntegerList, RealList
from sqlbuffer.storage.schema.overlays import OVERLAYS

_POSTGRESQL = postgresql.dialect()  # type: ignore[no-untyped-call]
# Form of a column by its type on PostgreSQL; the first match counts.
_FORMS: tuple[tuple[type[Any], str], ...] = (
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
# Columns that the target fills itself: its own keys, and its own transactions.
_LEFT_OUT = ("buffer_id", "xid")


@dataclass(frozen=True)
class CopiedTable:
    """A table whose rows are copied.

    Attributes:
        name: Its name.
        number: The column with the number of a step, or of the first step of a chunk.
        columns: The columns that are copied.
        forms: Form of the values of each column; see `value_forms`.
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
