"""`NaiveReplayBuffer`: uniform draws."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sqlbuffer.compat.ding.buffers.ring import NAIVE_CONFIG, RingBuffer, checked_size
from sqlbuffer.compat.ding.errors import ReplayError
from sqlbuffer.compat.ding.registry import register_buffer
from sqlbuffer.compat.ding.rings.ring import Choice


@register_buffer("naive")
class NaiveReplayBuffer(RingBuffer):
    """A ring of items that are drawn uniformly.

    Config: `replay_buffer_size` (10,000), `deepcopy` (sampled items are always copies),
    `enable_track_used_data`, `periodic_thruput_seconds` (60); and `url`, `name`, `seed`, which are
    not DI-engine's.

    Example:
        >>> import numpy as np
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
            size: Number of items.
            cur_learner_iter: The learner's iteration; not used.
            sample_range: Range of items by age, 0 is the oldest: `slice(-10, None)` is the newest
                ten.
            replace: Whether an item may be drawn several times.

        Returns:
            A list of `size` items, each a copy; None if there are too few.

        Raises:
            ReplayError: The size is negative, or the range has too few items.
        """
        size = checked_size(size)
        if size == 0:
            return []
        if sample_range is None:
            items = self._uniform(size, replace)
        else:
            items = self._ring.draw(self._of_range(size, checked_range(sample_range), replace))
        return self._sampled(items, size)

    def _uniform(self, size: int, replace: bool) -> list[Any]:
        with self._mutex:
            seed = int(self._rng.integers(2**62))
        return self._ring.uniform(size, replace=replace, seed=seed)

    def _sampled(self, items: list[Any], size: int) -> list[Any] | None:
        """Count items that were drawn; return None if there are fewer than wanted."""
        if len(items) < size:
            self._warn_of_few(size)
            return None
        self._noted(sampled=size)
        return items

    def _of_range(self, size: int, which: slice, replace: bool) -> Choice:
        """Return what chooses among the items of a range; none if there are too few in all."""

        def choose(n: int, _: int) -> Sequence[int]:
            if not n or (n < size and not replace):
                return ()
            wanted = range(n)[which]
            if not wanted or (len(wanted) < size and not replace):
                raise ReplayError(
                    f"sample_range={which} has {len(wanted)} of {n} items, and {size} are to be "
                    f"drawn"
                )
            return self._drawn(wanted, size, replace)

        return choose

    def _drawn(self, ages: range, size: int, replace: bool) -> list[int]:
        """Return ages drawn uniformly."""
        with self._mutex:
            places = self._rng.choice(len(ages), size, replace=replace).tolist()
        return [ages[place] for place in places]


def checked_range(sample_range: Any) -> slice:
    """Return a slice.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(sample_range, slice):
        raise TypeError(f"sample_range is a slice, such as slice(-10, None), got {sample_range!r}")
    return sample_range
