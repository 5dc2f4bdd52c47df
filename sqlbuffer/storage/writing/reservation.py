"""The numbers that a write gets before it inserts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReservedSeqs:
    """Numbers for a batch.

    Attributes:
        held: The ids that the buffer holds.
        seqs: Numbers for the others, in ascending order.
        priority: What rows have that were given none; None where the buffer has no priorities.
    """

    held: set[str]
    seqs: list[int]
    priority: float | None = None
