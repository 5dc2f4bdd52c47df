"""`StoreResult`: what became of the rows of one write."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class StoreResult:
    """What became of the rows of one call; the three numbers add up to all of them.

    Attributes:
        inserted: Rows stored.
        duplicates: Rows whose id the buffer holds with the same content: not stored again.
        conflicts: Rows whose id the buffer holds with other content: not stored.
        conflicting_ids: The ids of those.
        seqs: The number of each row in the order of the call, stored now or held before; -1 where
            it is not stored. int64 of shape (n,).

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
