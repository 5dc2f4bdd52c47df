"""The numbers that are reserved for a write before it inserts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReservedSeqs:
    """Numbers for a batch.

    Attributes:
        held: The ids that the buffer holds.
        seqs: Consecutive numbers for the others.
        priority: Initial priority of rows without a given one; None if the buffer has no
            priorities.
    """

    held: set[str]
    seqs: range
    priority: float | None = None
