"""A batch of chunks as it is handed to the database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.encoding.packed_chunk import PackedChunk
from sqlbuffer.storage.episodes.keys import EpisodeKey


@dataclass(frozen=True)
class ChunkBatch:
    """A batch of chunks as it is handed to the database.

    Attributes:
        chunks: The chunks, in the order in which they are numbered.
        order: For each step in that order its place in what the user gave; None: the same.
        endings: How episodes end with it.
        metas: JSON of what the user says of episodes that may begin with it.
        whole: The episode that it is, under an id of the user's: stored whole or not at all.
    """

    chunks: Sequence[PackedChunk]
    order: NDArray[np.int64] | None = None
    endings: Sequence[EpisodeEnd] = ()
    metas: Mapping[EpisodeKey, str] = field(default_factory=dict)
    whole: EpisodeKey | None = None

    @property
    def n_steps(self) -> int:
        """How many steps they have."""
        return sum(chunk.n_steps for chunk in self.chunks)

    @property
    def n_bytes(self) -> int:
        """How many bytes of fields and arrays they have."""
        return sum(len(c.records) + len(c.payload_arrays or b"") for c in self.chunks)
