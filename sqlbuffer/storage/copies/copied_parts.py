"""What a copy passes from its source to its target."""

from dataclasses import dataclass, field
from typing import Any

from sqlbuffer.storage.copies.copied_tables import TableRows, step_tables


@dataclass(frozen=True)
class SourceIdentity:
    """Which buffer of which database a copy is of."""

    database: str
    name: str
    buffer_id: int
    created_at: str
    condition: str | None


@dataclass(frozen=True)
class CopiedRange:
    """Which steps a copy takes: those with low < seq <= high. It reads on behind `cursor`."""

    low: int
    high: int
    cursor: int


@dataclass(frozen=True)
class SourceState:
    """What a copy takes of the buffer as a whole.

    Attributes:
        range: Which steps it takes.
        columns: Values of `BUFFER_COLUMNS`.
        session: The current session.
        sessions: The model version of each session.
        n_expected: How many steps it reads, where whole tasks or episodes are evicted.
    """

    range: CopiedRange
    columns: dict[str, Any]
    session: str | None
    sessions: dict[str, int | None]
    n_expected: int | None


@dataclass
class StepBatch:
    """Some steps with all that belongs to them.

    Attributes:
        begin: The batch has the copied steps above this number,
        end: and up to this one.
        n_steps: How many there are that are copied.
        n_read: How many there are, with those that do not match.
        tables: Their rows, in the order in which they are written.
    """

    begin: int
    end: int
    n_steps: int = 0
    n_read: int = 0
    tables: list[TableRows] = field(default_factory=list)

    @property
    def flags(self) -> set[str]:
        """The columns of `buffers` that say which tables have rows."""
        return {rows.table.flag for rows in self.tables if rows.table.flag and len(rows)}

    def keep(self, seqs: set[int], *, has_chunks: bool) -> None:
        """Keep the steps that have one of the numbers.

        Chunks are kept whole where one of their steps is: the others are noted as deleted.
        """
        self.n_steps = len(seqs)
        by_name = {rows.table.name: rows for rows in self.tables}
        deleted: list[int] = []
        firsts: set[int] = set()
        if has_chunks:
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
            table = next(each for each in step_tables(True) if each.name == "deleted_steps")
            kept.insert(2, TableRows(table, {"seq": list(deleted)}))
        self.tables = kept
