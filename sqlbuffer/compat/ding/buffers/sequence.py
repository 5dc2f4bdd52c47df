"""`SequenceReplayBuffer`: draws items that follow one another."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.ding.buffers.naive import NaiveReplayBuffer
from sqlbuffer.compat.ding.buffers.ring import checked_size
from sqlbuffer.compat.ding.config import checked_count
from sqlbuffer.compat.ding.errors import ReplayError
from sqlbuffer.compat.ding.registry import register_buffer


@register_buffer("sequence")
class SequenceReplayBuffer(NaiveReplayBuffer):
    """A ring of the steps of episodes of equal length, which are pushed in order.

    Config: as that of `NaiveReplayBuffer`, and `episode_length` (500), which is not DI-engine's:
    500 stands in its code.

    Example:
        >>> buffer = SequenceReplayBuffer({"episode_length": 4, "seed": 1})
        >>> buffer.push(list(range(8)), cur_collector_envstep=0)
        >>> windows = buffer.sample(2, 3, cur_learner_iter=0)
        >>> all(window in ([0, 1, 2], [1, 2, 3], [4, 5, 6], [5, 6, 7]) for window in windows)
        True
    """

    config: ClassVar[Mapping[str, Any]] = {
        **NaiveReplayBuffer.config,
        "type": "sequence",
        "episode_length": 500,
    }

    def _check_config(self) -> None:
        super()._check_config()
        self._length = checked_count(self._cfg.episode_length, "episode_length")

    def sample(  # type: ignore[override]  # as DI-engine has it
        self,
        batch: int,
        sequence: int,
        cur_learner_iter: int,
        sample_range: Any = None,
        replace: bool = False,
    ) -> list[list[Any]] | None:
        """Draw windows uniformly over all that lie within an episode.

        Args:
            batch: Number of windows.
            sequence: Number of items of each.
            cur_learner_iter: The learner's iteration; not used.
            sample_range: None.
            replace: A window may be drawn several times. Windows may overlap in any case.

        Returns:
            `batch` lists of `sequence` items each, in the order in which they were pushed, each a
            copy; None where there are fewer than `batch * sequence` items, or too few windows.

        Raises:
            NotImplementedError: A range.
            ReplayError: A negative number, or windows longer than an episode.
        """
        if sample_range is not None:
            raise NotImplementedError("a sequence buffer has no sample_range: leave it out")
        batch, sequence = checked_size(batch), checked_size(sequence)
        if not 1 <= sequence <= self._length:
            raise ReplayError(
                f"a window has from 1 to {self._length} items, as an episode has (config key "
                f"episode_length), got sequence={sequence}"
            )
        if batch == 0:
            return []

        def choose(n: int, push_count: int) -> list[int]:
            starts = window_starts(n, push_count, sequence, self._length)
            if not len(starts) or (not replace and (batch > len(starts) or batch * sequence > n)):
                return []
            with self._mutex:
                drawn = self._rng.choice(starts, batch, replace=replace).tolist()
            return [start + i for start in drawn for i in range(sequence)]

        items = self._sampled(self._ring.draw(choose), batch * sequence)
        if items is None:
            return None
        return [items[start : start + sequence] for start in range(0, len(items), sequence)]


def window_starts(n: int, push_count: int, sequence: int, length: int) -> NDArray[np.int64]:
    """Return where the windows begin that lie within an episode, as ages from the oldest item.

    Args:
        n: Number of items: the last of those that were pushed.
        push_count: Number of pushed items.
        sequence: Number of items.
        length: Number of items of an episode; the first began with the first pushed item.
    """
    ages = np.arange(max(0, n - sequence + 1))
    places = (push_count - n + ages) % length
    found: NDArray[np.int64] = ages[places <= length - sequence]
    return found
