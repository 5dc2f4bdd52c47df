"""What became of an import."""

from dataclasses import dataclass

from sqlbuffer.interchange.export_report import counted


@dataclass
class ImportCounts:
    """What an import has stored so far; attributes as those of `ImportReport`."""

    n_steps: int = 0
    n_stored: int = 0
    n_duplicates: int = 0
    n_conflicts: int = 0
    is_restored: bool = False


@dataclass(frozen=True)
class ImportReport:
    """What an import has stored.

    Attributes:
        source: What was imported.
        target: Name and database of the buffer, without a password.
        n_steps: Steps that the files have.
        n_stored: Steps that this call stored.
        n_duplicates: Steps that the buffer held already.
        n_conflicts: Steps that were not stored, because the buffer holds others with their ids.
        is_restored: The buffer has the numbers, times and episodes of the one that was exported;
            else the steps were appended as new ones.
        seconds: How long it took.

    Example:
        >>> report = ImportReport("out", "'b' in replay.db", 10, 8, 2, 0, False, 0.5)
        >>> print(str(report).split(": ")[1])
        8 of 10 steps, 2 were there already, in 0.5 s (16 steps/s)
    """

    source: str
    target: str
    n_steps: int
    n_stored: int
    n_duplicates: int
    n_conflicts: int
    is_restored: bool
    seconds: float

    def __str__(self) -> str:
        if not self.n_steps:
            return f"{self.source} has no steps: none is stored in {self.target}"
        verb = "restored" if self.is_restored else "appended"
        counts = f"{self.n_stored:,} of {counted(self.n_steps, 'step')}"
        if self.n_duplicates:
            counts += f", {self.n_duplicates:,} were there already"
        if self.n_conflicts:
            counts += f", {self.n_conflicts:,} have ids of other steps and were not stored"
        rate = f"{self.n_stored / max(self.seconds, 1e-9):,.0f} steps/s"
        return f"{verb} {self.source} to {self.target}: {counts}, in {self.seconds:.1f} s ({rate})"
