"""The oldest rows."""

from typing import TYPE_CHECKING

from sqlbuffer.samplers.base import Sampler

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates


class FifoSampler(Sampler):
    """Takes the oldest rows that match, oldest first; it does not remove them.

    Example:
        >>> sampler = FifoSampler()
    """

    def __repr__(self) -> str:
        return "FifoSampler()"

    def choose(self, candidates: "Candidates", batch_size: int) -> list[int]:
        """Return the `batch_size` least seq, ascending."""
        return candidates.oldest(batch_size)
