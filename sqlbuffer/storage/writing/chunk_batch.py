"""A batch of chunks in the form in which it is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.chunks import PackedChunk
from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.storage.episodes.keys import EpisodeKey


@dataclass(frozen=True)
class ChunkBatch:
    """A batch of chunks in the form in which it is stored.

    Attributes:
        chunks: The chunks, in the order in which they are numbered.
        order: For each step in that order its place in the user's order; None if they are the same.
        endings: Ends of episodes in the batch.
        metas: The user's JSON of episodes that may begin with it.
        whole: Id of the user's for an episode that is stored whole or not at all.
        ignore: Keys of chunks that make no conflict if they differ from the stored ones.
    """

    chunks: Sequence[PackedChunk]
    order: NDArray[np.int64] | None = None
    endings: Sequence[EpisodeEnd] = ()
    metas: Mapping[EpisodeKey, str] = field(default_factory=dict)
    whole: EpisodeKey | None = None
    ignore: frozenset[str] = frozenset()

    @property
    def n_steps(self) -> int:
        """Number of their steps."""
        return sum(chunk.n_steps for chunk in self.chunks)

    @property
    def n_bytes(self) -> int:
        """Size of their fields and arrays in bytes."""
        return sum(len(c.records) + len(c.payload_arrays or b"") for c in self.chunks)
