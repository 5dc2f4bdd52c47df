"""The result of an update of priorities."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PriorityUpdate:
    """Result of an update of priorities; each row is counted once.

    Attributes:
        updated: Number of rows that have their new priority.
        missing: Number of rows that the buffer does not hold, such as evicted ones.

    Example:
        >>> PriorityUpdate(updated=255, missing=1).missing
        1
    """

    updated: int
    missing: int
