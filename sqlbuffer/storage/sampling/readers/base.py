"""What every reader of batches offers."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.strategy import RowStrategy


class BatchReader(Protocol):
    """Makes batches of one kind of thing: steps, transitions, windows or episodes.

    Each is known by a key: the seq of its first step; for windows, of the step that they are laid
    at.
    """

    @property
    def columns(self) -> Any:
        """What is fetched for each key; `BufferStore.draw` takes it."""

    @property
    def counted_at_once(self) -> int:
        """How many keys `count` is given at most, which bounds the memory that it takes."""

    def draw(self, candidates: Candidates, sampler: RowStrategy, n: int) -> Batch:
        """Return n of them, drawn by a sampler; fewer where too few can be made."""

    def read(self, candidates: Candidates, keys: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Return those of the keys that are things of this kind, can be made and match, in the
        order of the keys; one statement.
        """

    def count(self, candidates: Candidates, keys: Sequence[int] | NDArray[np.int64]) -> int:
        """Return how many of the keys `read` would return; each is one of a row that matches."""

    def keys(self, candidates: Candidates) -> NDArray[np.int64] | None:
        """Return every key at this moment in ascending order, or None: any number of the window
        may be one. Reads keys only.
        """
