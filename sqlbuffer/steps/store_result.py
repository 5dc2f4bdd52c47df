"""`StoreResult`: what became of the rows of one write."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class StoreResult:
    """Result of storing rows; the three numbers add up to all rows of the call.

    Attributes:
        inserted: Number of stored rows.
        duplicates: Number of rows that were not stored again: the buffer holds their id, or their
            place in an episode, with the same content.
        conflicts: Number of rows that were not stored: the buffer holds their id, or their place in
            an episode, with other content.
        conflicting_ids: Ids of these conflicting rows; `<episode>/<t>` for a step of an episode
            that is known by its place there.
        seqs: Number of each row in the order of the call, stored now or before; -1 if it is not
            stored. int64 of shape (n,).

    Example:
        >>> StoreResult(inserted=2, duplicates=0, conflicts=0).inserted
        2
    """

    inserted: int
    duplicates: int
    conflicts: int
    conflicting_ids: tuple[str, ...] = field(default=(), compare=False)
    seqs: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64), compare=False, repr=False
    )
