"""What became of an update of priorities."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PriorityUpdate:
    """What became of the rows of one update; each is counted once.

    Attributes:
        updated: Rows that have their new priority.
        missing: Rows that the buffer does not hold, such as evicted ones.

    Example:
        >>> PriorityUpdate(updated=255, missing=1).missing
        1
    """

    updated: int
    missing: int
