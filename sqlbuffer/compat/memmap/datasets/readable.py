"""The interface of buffers for datasets and data loaders."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


class FieldType(Protocol):
    """A declared field: its name, and the dtype and shape of its values."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Readable(Protocol):
    """A buffer of slots, each of which holds one episode."""

    @property
    def tracks(self) -> Mapping[str, FieldType]: ...
    @property
    def meta_tracks(self) -> Mapping[str, FieldType]: ...
    @property
    def max_timesteps(self) -> int: ...

    @property
    def num_episodes(self) -> int: ...

    def _flush(self) -> None:
        """Make the stored steps readable."""

    def _at_one_moment(self, read: Callable[[Any], T], slots: Ints | None = None) -> T:
        """Return the result of `read`; all reads of this thread in it see one state of the
        database. It is called again after a lost connection.

        Args:
            read: Function to call.
            slots: Slots whose state is wanted, of shape (n,).
        """

    def _state(self, slots: Ints | None = None) -> tuple[Ints, Ints]:
        """Return the length of each slot and the number of the episode that it shows.

        Args:
            slots: Slots to look at, of shape (n,); all of them by default.

        Returns:
            The lengths, with that of an open episode, 0 for an empty slot; and numbers that no two
            episodes share, -1 for an empty slot. Both of shape (n,).
        """

    def _cells(self, names: Sequence[str], slots: Ints, ts: Ints) -> Arrays:
        """Return values of steps; slots and ts have the same shape S, and results (*S, *shape)."""

    def _meta(self, names: Sequence[str], slots: Ints) -> Arrays:
        """Return values of episodes, of shape (len(slots), *shape)."""


# A buffer, its folder, or its database URL.
Source = Readable | str | Path

# The class of buffers makes datasets, so it registers here how it is opened, and is not imported.
_openers: list[Callable[[str | Path], Readable]] = []


def register_opener(open_read_only: Callable[[str | Path], Readable]) -> None:
    """Set the function that opens the buffer of a folder or URL for reading."""
    _openers[:] = [open_read_only]


def as_readable(source: Source) -> Readable:
    """Return a buffer; that of a folder or URL is opened for reading."""
    return _openers[0](source) if isinstance(source, (str, Path)) else source


INTERNAL = frozenset({"episode_lens", "_initted"})  # kept for each episode, and not part of items


def user_meta(buffer: Readable) -> list[str]:
    """Return the names of the meta fields that the user declared."""
    return [name for name in buffer.meta_tracks if name not in INTERNAL]
