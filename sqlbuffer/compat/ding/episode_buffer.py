"""`EpisodeReplayBuffer`: its items are whole episodes."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from sqlbuffer.compat.ding.base_buffer import register_buffer
from sqlbuffer.compat.ding.naive_buffer import NaiveReplayBuffer

logger = logging.getLogger("sqlbuffer")


@register_buffer("episode")
class EpisodeReplayBuffer(NaiveReplayBuffer):
    """A naive buffer whose items are episodes: lists of steps.

    Push one episode as `[episode]`: a list means many items.

    Config: as that of `NaiveReplayBuffer`; `replay_buffer_size` counts episodes.

    Example:
        >>> buffer = EpisodeReplayBuffer({"replay_buffer_size": 10})
        >>> buffer.push([[{"obs": 1}, {"obs": 2}], [{"obs": 3}]], cur_collector_envstep=3)
        >>> buffer.episode_len
        [2, 1]
    """

    config: ClassVar[Mapping[str, Any]] = {**NaiveReplayBuffer.config, "type": "episode"}
    _keeps_lengths = True
    _is_warned = False

    @property
    def episode_len(self) -> list[int]:
        """Number of steps of each episode, the oldest first.

        Raises:
            TypeError: An item has no length.
        """
        lengths = self._ring.lengths()
        if None in lengths:
            raise TypeError(
                f"{self._instance_name}: item {lengths.index(None)} is not an episode; push "
                "episodes as lists of steps: push([episode], ...)"
            )
        return cast("list[int]", lengths)

    def push(self, data: list[Any] | Any, cur_collector_envstep: int) -> None:
        """Store an episode that is not a list, or each of a list of episodes; see
        `NaiveReplayBuffer.push`.
        """
        if isinstance(data, list) and not self._is_warned and any(map(_is_step, data)):
            self._is_warned = True
            logger.warning(
                "%s: steps were pushed as separate episodes; push one episode as "
                "push([episode], ...)",
                self._instance_name,
            )
        super().push(data, cur_collector_envstep)


def _is_step(item: Any) -> bool:
    return isinstance(item, Mapping)
