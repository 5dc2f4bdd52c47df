"""`ElasticReplayBuffer`: draws among the newest items, whose number depends on the step."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from sqlbuffer.compat.ding.buffers.naive import NaiveReplayBuffer
from sqlbuffer.compat.ding.buffers.ring import checked_size
from sqlbuffer.compat.ding.errors import ReplayConfigError
from sqlbuffer.compat.ding.registry import register_buffer


@register_buffer("elastic")
class ElasticReplayBuffer(NaiveReplayBuffer):
    """A naive buffer that draws among its newest items; a function gives their number.

    Config: that of `NaiveReplayBuffer`, and `set_buffer_size`, a function from the collector's
    step to a number of items; None: all of them.

    Example:
        >>> config = {"replay_buffer_size": 100, "set_buffer_size": lambda envstep: 2 + envstep}
        >>> buffer = ElasticReplayBuffer(config)
        >>> buffer.push(list(range(8)), cur_collector_envstep=0)
        >>> sorted(buffer.sample(2, cur_learner_iter=0))
        [6, 7]
        >>> buffer.update(1)
        >>> sorted(buffer.sample(3, cur_learner_iter=0))
        [5, 6, 7]
    """

    config: ClassVar[Mapping[str, Any]] = {
        **NaiveReplayBuffer.config,
        "type": "elastic",
        "set_buffer_size": None,
    }

    def _check_config(self) -> None:
        super()._check_config()
        function = self._cfg.set_buffer_size
        if function is not None and not callable(function):
            raise ReplayConfigError(
                f"set_buffer_size is a function from the collector's step to a number of items, "
                f"got {function!r}"
            )
        self._size_at: Callable[[int], Any] | None = function
        self.update(0)

    def update(self, envstep: Any) -> None:
        """Draw from now on among as many of the newest items as there should be at a step.

        Raises:
            ReplayConfigError: `set_buffer_size` returns no number from 1 on.
        """
        size = self._size if self._size_at is None else self._size_at(envstep)
        is_number = isinstance(size, (int, float, np.number)) and not isinstance(size, bool)
        if not is_number or not size >= 1:
            raise ReplayConfigError(
                f"set_buffer_size({envstep!r}) is to return a number of items, got {size!r}"
            )
        self._current_size = int(min(size, self._size))

    def sample(
        self, size: int, cur_learner_iter: int, sample_range: Any = None, replace: bool = False
    ) -> list[Any] | None:
        """Draw items uniformly among the newest, in random order.

        Args:
            size: Number of items.
            cur_learner_iter: The learner's iteration; not used.
            sample_range: None: the range is `set_buffer_size`'s.
            replace: An item may be drawn several times.

        Returns:
            A list of `size` items, each a copy; None where there are too few.

        Raises:
            ReplayConfigError: A range.
            ReplayError: A negative size.
        """
        if sample_range is not None:
            raise ReplayConfigError(
                "an elastic buffer draws among its newest items, as set_buffer_size says: leave "
                "sample_range out"
            )
        size = checked_size(size)
        if size == 0:
            return []

        def choose(n: int, _: int) -> list[int]:
            newest = range(n)[-self._current_size :]
            if not newest or (len(newest) < size and not replace):
                return []
            return self._drawn(newest, size, replace)

        return self._sampled(self._ring.draw(choose), size)
