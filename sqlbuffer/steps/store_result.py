"""`StoreResult`: what became of the rows of one write."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StoreResult:
    """What became of the rows of one call; the three numbers add up to all of them.

    Attributes:
        inserted: Rows stored.
        duplicates: Rows whose id the buffer holds with the same content: not stored again.
        conflicts: Rows whose id the buffer holds with other content: not stored.
        conflicting_ids: The ids of those.
        seqs: The number of each id, stored now or held before.

    Example:
        >>> StoreResult(inserted=2, duplicates=0, conflicts=0).inserted
        2
    """

    inserted: int
    duplicates: int
    conflicts: int
    conflicting_ids: tuple[str, ...] = field(default=(), compare=False)
    seqs: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
