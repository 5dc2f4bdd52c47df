"""`NaiveReplayBuffer`: uniform draws."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.ding.buffers.ring import NAIVE_CONFIG, RingBuffer, checked_size, items_of
from sqlbuffer.compat.ding.errors import ReplayError
from sqlbuffer.compat.ding.registry import register_buffer
from sqlbuffer.samplers.random import RandomSampler
from sqlbuffer.storage.sampling.candidates import Candidates


@register_buffer("naive")
class NaiveReplayBuffer(RingBuffer):
    """A ring of items that are drawn uniformly.

    Config: `replay_buffer_size` (10,000), `deepcopy` (what is sampled is a copy always),
    `enable_track_used_data`, `periodic_thruput_seconds` (60); and `url`, `name`, `seed`, which are
    not DI-engine's.

    Example:
        >>> buffer = NaiveReplayBuffer({"replay_buffer_size": 3, "seed": 1})
        >>> buffer.push([{"obs": np.ones(2, np.float32) * i} for i in range(5)], 0)
        >>> buffer.count(), buffer.push_count
        (3, 5)
        >>> [item["obs"].tolist() for item in buffer.sample(1, 0, sample_range=slice(-1, None))]
        [[4.0, 4.0]]
        >>> buffer.close()
    """

    config: ClassVar[Mapping[str, Any]] = NAIVE_CONFIG

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[Any] | None:
        """Draw items uniformly, in random order.

        Args:
            size: How many.
            cur_learner_iter: The learner's iteration; not used.
            sample_range: Which items by age, 0 being the oldest: `slice(-10, None)` are the newest
                ten.
            replace: An item may be drawn several times.

        Returns:
            A list of `size` items, each a copy; None where there are too few.

        Raises:
            ReplayError: A negative size, or a range with too few items.
        """
        size = checked_size(size)
        if size == 0:
            return []
        if sample_range is None:
            rows = self._ring.draw(self._uniform(size, replace))
        else:
            rows = self._ring.draw(self._of_range(size, checked_range(sample_range), replace))
        if len(rows) < size:
            self._warn_of_few(size)
            return None
        self._noted(sampled=size)
        return items_of(rows)

    def _uniform(self, size: int, replace: bool) -> Any:
        with self._mutex:
            sampler = RandomSampler(replace=replace, seed=int(self._rng.integers(2**62)))
        return lambda candidates: sampler.choose(candidates, size)

    def _of_range(self, size: int, which: slice, replace: bool) -> Any:
        """Return what chooses among the items of a range; none where there are too few in all."""
        n = self.count()

        def choose(candidates: Candidates) -> Sequence[int]:
            keys = keys_by_age(candidates, n)
            if not len(keys) or (len(keys) < size and not replace):
                return []
            wanted = range(len(keys))[which]
            if not wanted or (len(wanted) < size and not replace):
                raise ReplayError(
                    f"sample_range={which} has {len(wanted)} of {len(keys)} items, and {size} are "
                    f"to be drawn"
                )
            return self._drawn(keys, wanted, size, replace)

        return choose

    def _drawn(self, keys: Any, wanted: Sequence[int], size: int, replace: bool) -> list[int]:
        with self._mutex:
            places = self._rng.choice(len(wanted), size, replace=replace).tolist()
        return [int(keys[wanted[place]]) for place in places]


def keys_by_age(candidates: Candidates, n: int) -> "range | NDArray[np.int64]":
    """Return the numbers of all items, the oldest first.

    Args:
        candidates: The items.
        n: How many they were just now: where that is as many as there are numbers, no number is
            missing, and none need be read.
    """
    if candidates.span == n:
        return range(candidates.low + 1, candidates.high + 1)
    return candidates.keys()


def checked_range(sample_range: Any) -> slice:
    """Return a slice.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(sample_range, slice):
        raise TypeError(f"sample_range is a slice, such as slice(-10, None), got {sample_range!r}")
    return sample_range
