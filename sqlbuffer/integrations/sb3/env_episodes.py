"""The open episodes of environments that take their steps together."""

import logging
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.integrations.sb3.space_fields import NEXT, Arrays
from sqlbuffer.processes import at_process_end

logger = logging.getLogger("sqlbuffer")

Flags = NDArray[np.bool_]


class EnvEpisodes:
    """Writes the steps of each environment as episodes; for one thread.

    Args:
        begin: Begins an episode of an environment, given by its number.
        n_envs: Number of environments.
    """

    def __init__(self, begin: Callable[[int], EpisodeWriter], n_envs: int) -> None:
        self._begin = begin
        self._episodes: list[EpisodeWriter | None] = [None] * n_envs
        self._after: Arrays = {}
        at_process_end(_end_all, priority=1)  # before what waits is stored
        _every.add(self)

    def add(self, step: Arrays, before: Sequence[str], terminated: Flags, truncated: Flags) -> None:
        """Add a step of each environment.

        Args:
            step: Fields of all environments, each of shape (n_envs, *shape), and `reward`.
            before: Fields of the observation before the step; `next_<name>` is the one after.
            terminated: Flags of episodes that end, shape (n_envs,).
            truncated: Flags of episodes that a time limit cuts, shape (n_envs,).

        Raises:
            SQLBufferError: Earlier steps could not be stored. Episodes of environments whose step
                was not added end before it.
        """
        if self._after:
            self._end_where_reset({name: step[name] for name in before})
        self._after = {name: step[NEXT + name] for name in before}
        rewards, n_added = step["reward"].tolist(), 0
        try:
            for i, ends in enumerate(zip(terminated.tolist(), truncated.tolist(), strict=True)):
                own: dict[str, Any] = {name: values[i] for name, values in step.items()}
                own["reward"], own["terminated"], own["truncated"] = rewards[i], *ends
                episode = self._episodes[i]
                if episode is None:
                    episode = self._episodes[i] = self._begin(i)
                episode.append(**own)
                n_added += 1
                if any(ends):
                    self._end(i)
        except BaseException:
            for i in range(n_added, len(rewards)):  # a later step would not follow their last one
                self._end(i)
            raise

    def end(self) -> None:
        """End all open episodes where they are."""
        for i in range(len(self._episodes)):
            self._end(i)

    def _end(self, i: int) -> None:
        episode, self._episodes[i] = self._episodes[i], None
        if episode is not None:
            episode.finish()

    def _end_where_reset(self, observed: Arrays) -> None:
        """End the episodes of environments that do not continue from their last observation."""
        for name, now in observed.items():
            then = self._after[name]
            if now.tobytes() == then.tobytes():  # bytes, because NaN does not equal itself
                continue
            for i in range(len(now)):
                if self._episodes[i] is not None and now[i].tobytes() != then[i].tobytes():
                    self._end(i)


_every: "WeakSet[EnvEpisodes]" = WeakSet()


def _end_all() -> None:
    for episodes in list(_every):
        try:
            episodes.end()
        except SQLBufferError as error:
            logger.error("an episode of an environment stays open: %s", error)
