"""The numbers that a write gets before it inserts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReservedSeqs:
    """Numbers for a batch.

    Attributes:
        held: The ids that the buffer holds.
        seqs: Consecutive numbers for the others.
        priority: Initial priority of rows that were given none; None if the buffer has no
            priorities.
    """

    held: set[str]
    seqs: range
    priority: float | None = None
