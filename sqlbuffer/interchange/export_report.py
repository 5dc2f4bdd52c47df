"""The result of an export."""

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
