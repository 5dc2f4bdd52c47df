"""The oldest rows."""

from typing import TYPE_CHECKING

from sqlbuffer.samplers.base import Sampler

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates


class FifoSampler(Sampler):
    """Takes the oldest rows that match, oldest first; it does not remove them.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
        >>> _ = buffer.extend({"x": [1, 2, 3]})
        >>> buffer.sample_arrays(2, sampler=FifoSampler()).x.tolist()
        [1, 2]
    """

    def __repr__(self) -> str:
        return "FifoSampler()"

    def choose(self, candidates: "Candidates", batch_size: int) -> list[int]:
        """Return the `batch_size` least seq, ascending."""
        return candidates.oldest(batch_size)
