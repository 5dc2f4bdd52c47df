"""The newest rows."""

from typing import TYPE_CHECKING

from sqlbuffer.samplers.base import Sampler

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates


class LatestSampler(Sampler):
    """Takes the newest rows that match, newest first.

    Example:
        >>> sampler = LatestSampler()
    """

    def __repr__(self) -> str:
        return "LatestSampler()"

    def choose(self, candidates: "Candidates", batch_size: int) -> list[int]:
        """Return the `batch_size` greatest seq, descending."""
        return candidates.newest(batch_size)
