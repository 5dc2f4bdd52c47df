"""The oldest rows."""

from typing import TYPE_CHECKING

from sqlbuffer.samplers.base import Sampler

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.population import Population


class FifoSampler(Sampler):
    """Takes the oldest rows that match, oldest first; it does not remove them.

    Example:
        >>> sampler = FifoSampler()
    """

    def choose(self, population: "Population", batch_size: int) -> list[int]:
        """Return the `batch_size` least seq, ascending."""
        return population.oldest(batch_size)
