"""What the loaders read of a buffer."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]


class Track(Protocol):
    """A field: its name, what it holds a step or an episode, and what it holds unless written."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Readable(Protocol):
    """A buffer of slots, each of which holds one episode."""

    @property
    def tracks(self) -> Mapping[str, Track]: ...
    @property
    def meta_tracks(self) -> Mapping[str, Track]: ...
    @property
    def max_timesteps(self) -> int: ...

    @property
    def num_episodes(self) -> int: ...

    def _flush(self) -> None:
        """Make what was stored readable."""

    def _snapshot(self, slots: Ints | None = None) -> AbstractContextManager[Any]:
        """Have everything that is read in a block, by this thread, be of one moment.

        Args:
            slots: Slots whose state is wanted, of shape (n,).
        """

    def _state(self, slots: Ints | None = None) -> tuple[Ints, Ints]:
        """Return the length of each slot and the number of the episode that it shows.

        Args:
            slots: Which slots, of shape (n,); all of them by default.

        Returns:
            The lengths, that of an open episode included, 0 where a slot is empty; and numbers that
            no two episodes share, -1 where it is empty. Both of shape (n,).
        """

    def _cells(self, names: Sequence[str], slots: Ints, ts: Ints) -> Arrays:
        """Return values of steps; slots and ts have the same shape S, and results (*S, *shape)."""

    def _meta(self, names: Sequence[str], slots: Ints) -> Arrays:
        """Return values of episodes, of shape (len(slots), *shape)."""


INTERNAL = frozenset({"episode_lens", "_initted"})  # kept for each episode, and no part of items


def user_meta(buffer: Readable) -> list[str]:
    """Return the names of what the user keeps for each episode."""
    return [name for name in buffer.meta_tracks if name not in INTERNAL]
