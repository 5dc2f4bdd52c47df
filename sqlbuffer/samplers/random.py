"""Uniform over rows."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_flag
from sqlbuffer.samplers.base import Sampler
from sqlbuffer.samplers.seeding import Seeding

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates

# In a window of at most this many numbers, they are drawn without replacement if rows are.
SMALL_SPAN = 1024
LARGEST_SHUFFLED = 2**24
PROBE_ROUNDS = 4
# Below this share of hits, one scan over the keys is cheaper than the probes.
LOWEST_HIT_RATE = 1 / 32
# Fewer numbers are not enough: of 24, none is a hit once in twelve times where one in ten would be.
FEWEST_TO_JUDGE = 256


class RandomSampler(Sampler):
    """Draws rows uniformly.

    FIFO eviction keeps `seq` dense, so it draws numbers of the window and keeps those of rows that
    match. This is uniform by rejection, at a cost that does not grow with the table. If few rows
    match, it puts the matching keys into random order.

    Args:
        replace: Draw with replacement: exactly `batch_size` rows if any match.
        seed: Seed that repeats the same sequence of batches over the same live rows.

    Raises:
        ArgumentError: An argument is invalid.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
        >>> _ = buffer.extend({"x": [1, 2, 3]})
        >>> sorted(buffer.sample_arrays(3, sampler=RandomSampler(seed=7)).x.tolist())
        [1, 2, 3]
    """

    def __init__(self, *, replace: bool = False, seed: int | None = None) -> None:
        self.replace = checked_flag(replace, "replace")
        self._seeding = Seeding(seed)

    def __repr__(self) -> str:
        return f"RandomSampler(replace={self.replace}, seed={self._seeding.seed})"

    def generator(self) -> np.random.Generator:
        """Return the random generator of the next batch, for draws from something other than
        candidates.

        :meta private:
        """
        return self._seeding.generator()

    def choose(self, candidates: "Candidates", batch_size: int) -> Sequence[int]:
        """Return up to `batch_size` seq, uniform over the rows that match."""
        rng = self.generator()
        if candidates.span and not candidates.selective and not candidates.picks_first:
            found = self._probe(candidates, batch_size, rng)
            if found is not None:
                return found
        return self._order(candidates, batch_size, rng)

    def _probe(
        self, candidates: "Candidates", batch_size: int, rng: np.random.Generator
    ) -> Sequence[int] | None:
        """Return a batch by rejection, or None where too few numbers are hits."""
        span = candidates.span
        is_narrow = not self.replace and span <= max(SMALL_SPAN, 4 * batch_size)
        if is_narrow and span > LARGEST_SHUFFLED:
            return None
        shuffled = rng.permutation(span) if is_narrow else None
        # A few more than wanted: some are drawn twice, or left the buffer.
        n_twice = 0 if self.replace or is_narrow else batch_size**2 // span
        found: list[int] = []
        drawn, size = 0, batch_size + n_twice + 8
        for _ in range(PROBE_ROUNDS):
            if shuffled is not None:
                numbers = shuffled[drawn : drawn + size]
            else:
                # One double for each number: drawing more of them in one call does not change their
                # values.
                numbers = (rng.random(size) * span).astype(np.int64)
            seqs: list[int] = (candidates.low + 1 + numbers).tolist()
            hits = candidates.probe(seqs)
            found.extend(filter(hits.__contains__, seqs))
            drawn += len(seqs)
            kept = found if self.replace else list(dict.fromkeys(found))
            if len(kept) >= batch_size or (is_narrow and drawn == span):
                return kept[:batch_size]
            hit_rate = len(found) / drawn
            if hit_rate < LOWEST_HIT_RATE:
                if drawn >= FEWEST_TO_JUDGE:
                    return None
                hit_rate = LOWEST_HIT_RATE
            size = math.ceil(1.2 * (batch_size - len(kept)) / hit_rate) + 16
        return None

    def _order(
        self, candidates: "Candidates", batch_size: int, rng: np.random.Generator
    ) -> Sequence[int]:
        if self._seeding.seed is None and not self.replace:
            return candidates.random(batch_size)
        picked = candidates.pick(rng, batch_size, replace=self.replace)
        if picked is not None:
            return picked
        keys: NDArray[np.int64] = candidates.keys()
        if not keys.size:
            return []
        size = batch_size if self.replace else min(batch_size, keys.size)
        chosen: list[int] = rng.choice(keys, size, replace=self.replace).tolist()
        return chosen
