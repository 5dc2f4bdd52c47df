"""The interface of all readers of batches."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.strategy import RowStrategy


class BatchReader(Protocol):
    """Makes batches of one kind of item: steps, transitions, windows or episodes.

    Each item has a key: the seq of its first step; for windows, of the step at which they are
    placed.
    """

    @property
    def columns(self) -> Any:
        """The columns that are read for each key; an argument of `BufferStore.draw`."""

    @property
    def tested_at_once(self) -> int:
        """Maximum number of keys in a call of `made`, which bounds its memory."""

    @property
    def needs_episodes(self) -> bool:
        """True if no item is made of a step without an episode."""

    def draw(self, candidates: Candidates, sampler: RowStrategy, n: int) -> Batch:
        """Return n items drawn by a sampler, or fewer if too few can be made."""

    def read(self, candidates: Candidates, keys: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Return the items of the given keys, in their order, with one statement.

        Keys are left out if they are not of this kind, cannot be made, or do not match.
        """

    def made(
        self, candidates: Candidates, keys: Sequence[int] | NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return those of the keys that `read` would return; each is the key of a matching row."""

    def keys(self, candidates: Candidates) -> NDArray[np.int64] | None:
        """Return every current key in ascending order, reading keys only.

        None means that any number of the window may be a key.
        """
