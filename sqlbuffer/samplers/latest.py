"""The newest rows."""

from typing import TYPE_CHECKING

from sqlbuffer.samplers.base import Sampler

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates


class LatestSampler(Sampler):
    """Takes the newest rows that match, newest first.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
        >>> _ = buffer.extend({"x": [1, 2, 3]})
        >>> buffer.sample_arrays(2, sampler=LatestSampler()).x.tolist()
        [3, 2]
    """

    def __repr__(self) -> str:
        return "LatestSampler()"

    def choose(self, candidates: "Candidates", batch_size: int) -> list[int]:
        """Return the `batch_size` greatest seq, descending."""
        return candidates.newest(batch_size)
