"""Priorities of candidates, as samplers see them."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.weighted_sampling import Weights


def no_priorities() -> BufferConfigError:
    """Return the error for draws by priority from a buffer without priorities."""
    return BufferConfigError(
        "the buffer has no priorities; make one with ReplayBuffer(..., priorities=True)"
    )


class RowPriorities(Protocol):
    """The priorities of the candidates; `priority_candidates.Priorities` reads them.

    Attributes:
        alpha: The weight of a row is its priority ^ alpha.
        total: Sum of the weights that rows are drawn by; None if it is unknown.
    """

    alpha: float
    total: float | None

    @property
    def has_blocks(self) -> bool:
        """True if sums of weights are stored; otherwise all weights are read."""

    @property
    def weights(self) -> Weights:
        """The weights of all rows, by blocks."""

    def note_missing_summaries(self) -> None:
        """Record the blocks that are worth adding up, without reading rows."""

    def of(self, seqs: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the priorities of rows of the candidates."""

    def all(self, candidates: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return every matching number, in order, and the priorities."""

    def least(self) -> float:
        """Return the smallest positive priority of the whole buffer; infinity if there is none."""
