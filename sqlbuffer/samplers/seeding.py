"""Random numbers for one call of a sampler."""

from itertools import count

import numpy as np


class Seeding:
    """Gives each call a generator of its own: the same sequence for the same seed, or fresh entropy
    without one.

    Each call's numbers depend on the seed and the number of the call alone, not on how many an
    earlier call drew.
    """

    def __init__(self, seed: int | None) -> None:
        if seed is not None and (
            isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0
        ):
            raise ValueError(f"seed must be a non-negative integer or None, got {seed!r}")
        self.seed = None if seed is None else int(seed)
        self._calls = count()

    def generator(self) -> np.random.Generator:
        """Return the generator of the next call."""
        return np.random.default_rng(None if self.seed is None else [self.seed, next(self._calls)])
