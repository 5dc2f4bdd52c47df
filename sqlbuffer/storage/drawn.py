"""What a write finds and gets before it inserts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Drawn:
    """Numbers for a batch.

    Attributes:
        held: The ids that the buffer holds.
        seqs: Numbers for the others, in ascending order.
        deletions: How often rows were deleted inside the window so far.
        transaction: The server's name of the transaction, to ask for its outcome later; None where
            a connection cannot be lost.
        priority: What rows have that were given none; None where the buffer has no priorities.
    """

    held: set[str]
    seqs: list[int]
    deletions: int = 0
    transaction: int | None = None
    priority: float | None = None
