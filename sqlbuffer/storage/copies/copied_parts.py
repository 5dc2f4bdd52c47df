"""Data that a copy passes from its source to its target."""

from dataclasses import dataclass, field
from typing import Any

from sqlbuffer.storage.copies.copied_tables import TableRows, step_tables
from sqlbuffer.storage.rows.layouts import CHUNKS


@dataclass(frozen=True)
class SourceIdentity:
    """The buffer and the database that a copy is made of."""

    database: str
    name: str
    buffer_id: int
    created_at: str
    condition: str | None


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
            own = by_name["chunks"]
            for first, n in zip(own.numbers, own.values["n_steps"], strict=True):
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
            table = next(each for each in step_tables(CHUNKS) if each.name == "deleted_steps")
            kept.insert(2, TableRows(table, {"seq": list(deleted)}))
        self.tables = kept
