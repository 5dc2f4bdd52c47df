"""What a sampler knows of the priorities of candidates."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.weighted_sampling.block_weights import Weights


def no_priorities() -> BufferConfigError:
    """Return the error of draws by priority from a buffer without."""
    return BufferConfigError(
        "the buffer has no priorities; make one with ReplayBuffer(..., priorities=True)"
    )


class RowPriorities(Protocol):
    """The priorities of the candidates; `priority_candidates.Priorities` reads them.

    Attributes:
        alpha: The weight of a row is its priority ^ alpha.
        total: Sum of the weights that rows are drawn by; None where it is not known.
    """

    alpha: float
    total: float | None

    @property
    def has_blocks(self) -> bool:
        """Whether sums of weights are kept; else all of them are read."""

    @property
    def weights(self) -> Weights:
        """The weights of all rows, by blocks."""

    def note_missing_summaries(self) -> None:
        """Note which blocks are worth adding up; read no rows."""

    def of(self, seqs: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the priorities of rows of the candidates."""

    def all(self, candidates: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return every number that matches, in order, and the priorities."""

    def least(self) -> float:
        """Return the least positive priority of the whole buffer; infinity if there is none."""
