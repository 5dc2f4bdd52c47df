"""The results of exports and imports."""

from dataclasses import dataclass

from sqlbuffer.sizes import shown_size


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    The steps are those that the buffer held when the export began. Labels, priorities, uses and
    reasons of quarantine are those at the time at which each batch of steps was read.

    Attributes:
        source: Name and database of the buffer, without a password.
        path: The folder or file that was written.
        low_seq: The export has steps with `low_seq < seq <= high_seq`.
        high_seq: See `low_seq`.
        n_steps: Number of steps.
        n_episodes: Number of episodes; None if the format has no episodes.
        n_files: Number of files.
        n_bytes: Size of the files.
        seconds: Duration of the export.

    Example:
        >>> report = ExportReport("'b' in replay.db", "out", 0, 10, 10, 1, 2, 5_000, 0.5)
        >>> print(str(report).split(": ")[1])
        10 steps, 1 episode, 2 files of 5 kB, in 0.5 s (20 steps/s)
    """

    source: str
    path: str
    low_seq: int
    high_seq: int
    n_steps: int
    n_episodes: int | None
    n_files: int
    n_bytes: int
    seconds: float

    def __str__(self) -> str:
        parts = [counted(self.n_steps, "step")]
        if self.n_episodes is not None:
            parts.append(counted(self.n_episodes, "episode"))
        parts.append(f"{counted(self.n_files, 'file')} of {shown_size(self.n_bytes)}")
        rate = f"{self.n_steps / max(self.seconds, 1e-9):,.0f} steps/s"
        return (
            f"exported {self.source} to {self.path}: {', '.join(parts)}, in {self.seconds:.1f} s "
            f"({rate})"
        )


def counted(n: int, what: str) -> str:
    """Return a number with its noun: "1 step", "1,000 steps"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


@dataclass
class ImportCounts:
    """Counts of an import so far; attributes as in `ImportReport`."""

    n_steps: int = 0
    n_stored: int = 0
    n_duplicates: int = 0
    n_conflicts: int = 0
    is_restored: bool = False


@dataclass(frozen=True)
class ImportReport:
    """Result of an import.

    Attributes:
        source: Name of the imported files.
        target: Name and database of the buffer, without a password.
        n_steps: Number of steps in the files.
        n_stored: Number of steps that this call stored.
        n_duplicates: Number of steps that the buffer held already.
        n_conflicts: Number of steps that were not stored because the buffer holds other steps with
            their ids.
        is_restored: True if the buffer got the numbers, times and episodes of the exported one;
            False if the steps were appended as new steps.
        seconds: Duration of the import.

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
