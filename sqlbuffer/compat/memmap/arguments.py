"""The arguments of calls of memmap-replay-buffer, checked and as arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.errors import MemmapError, MemmapIndexError, MemmapTypeError
from sqlbuffer.compat.memmap.fields import (
    INTERNAL,
    DeclaredField,
    as_array,
    cast,
    check_names,
    exact,
    squeezed,
    wrong_shape,
)
from sqlbuffer.compat.memmap.slots import Ints


class Arguments:
    """Checks the arguments of a buffer's calls, and returns them as arrays.

    Args:
        tracks: The fields of a step.
        meta_tracks: The fields of an episode.
        max_episodes: Number of slots.
        max_timesteps: Number of steps of a slot.
    """

    def __init__(
        self,
        tracks: Mapping[str, DeclaredField],
        meta_tracks: Mapping[str, DeclaredField],
        max_episodes: int,
        max_timesteps: int,
    ) -> None:
        self.tracks, self.meta_tracks = tracks, meta_tracks
        self.max_episodes, self.max_timesteps = max_episodes, max_timesteps

    def batch(
        self, data: Mapping[str, Any], tracks: Mapping[str, DeclaredField], call: str, what: str
    ) -> dict[str, NDArray[Any]]:
        """Return arrays of one leading size."""
        if not data:
            raise MemmapError(f"No data provided to {call}")
        if unknown := set(data) - set(tracks):
            raise MemmapError(
                f"invalid {what}field names {unknown} - must be a subset of {', '.join(tracks)}"
            )
        arrays = {name: as_array(name, value) for name, value in data.items()}
        for name, array in arrays.items():
            if array.ndim == 0:
                raise MemmapTypeError(f"field {name} - expected an array, one value an episode")
        sizes = {name: len(array) for name, array in arrays.items()}
        first = next(iter(sizes.values()))
        for name, size in sizes.items():
            if size != first:
                raise MemmapError(
                    f"All data in batch must have the same batch size. Field {name} has batch size "
                    f"{size} while previous fields had {first}."
                )
        if first == 0:
            raise MemmapError(f"No data provided to {call}: a batch of no episodes")
        return arrays

    def episode(
        self, data: Mapping[str, Any]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Return the fields of an episode, of one length, and its meta values."""
        if not data:
            raise MemmapError("No data provided to `store_episode`")
        arrays, metas = {}, {}
        for name, value in data.items():
            if name in self.tracks:
                arrays[name] = as_array(name, value)
            elif name in self.meta_tracks:
                track = self.meta_tracks[name]
                metas[name] = exact(track, squeezed(track, as_array(name, value), 0))
            else:
                raise MemmapError(
                    f"invalid field name {name} - must be one of {', '.join(self.tracks)} or "
                    f"{', '.join(self.meta_tracks)}"
                )
        if not arrays:
            raise MemmapError("At least one time-varying field must be provided to store_episode")
        first: int | None = None
        for name, array in arrays.items():
            track = self.tracks[name]
            if array.ndim == 0:
                raise MemmapError(f"field {name} - expected an array, one value a step")
            first = len(array) if first is None else first
            if len(array) != first:
                raise MemmapError(
                    f"all fields must have the same time dimension. field {name} has {len(array)} "
                    f"while previous fields had {first}"
                )
            array = squeezed(track, array, 1)
            if array.shape[1:] != track.shape:
                raise wrong_shape(track, array.shape[1:])
            arrays[name] = cast(track, array)
        return arrays, {name: value for name, value in metas.items() if name not in INTERNAL}

    def meta_values(self, values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return meta values of one episode."""
        arrays = {}
        for name, value in values.items():
            track = self.meta_track(name)
            arrays[name] = exact(track, value)
        return {name: value for name, value in arrays.items() if name not in INTERNAL}

    def steps_of(self, track: DeclaredField, value: Any, n: int, is_one: bool) -> NDArray[Any]:
        """Return the values of the first steps of n slots, of shape (n, T, *shape)."""
        array = as_array(track.name, value)
        if array.ndim == 0:
            return spread(track, array, (n, 1))
        array = squeezed(track, array, 1)[None] if is_one else squeezed(track, array, 2)
        if array.ndim < 2:
            raise MemmapError(
                f"field {track.name} - expected shape (episodes, steps, "
                f"{', '.join(map(str, track.shape))}), got {array.shape}"
            )
        if array.shape[1] > self.max_timesteps:
            raise MemmapError(
                f"You exceeded the `max_timesteps` ({self.max_timesteps}) set on the replay "
                f"buffer. Please increase it on init."
            )
        return spread(track, array, (n, array.shape[1]))

    def slot_numbers(self, indices: Any) -> Ints:
        """Return slots as numbers from 0 on.

        Raises:
            MemmapIndexError: There is no such slot.
            MemmapTypeError: They are not numbers.
        """
        n = self.max_episodes
        if isinstance(indices, slice):
            return np.arange(n)[indices]
        slots = as_array("indices", indices) if len(indices) else np.empty(0, np.int64)
        if slots.dtype.kind == "b" or slots.dtype.kind not in "iu" or slots.ndim != 1:
            raise MemmapTypeError(
                f"indices are a number, a slice, or a list or array of numbers of shape (n,), got "
                f"{indices!r:.100}; np.flatnonzero(mask) makes them of a mask"
            )
        for index in slots.tolist():
            if not -n <= index < n:
                raise MemmapIndexError(f"index {index} is out of bounds for {n} episodes")
        return np.asarray(slots.astype(np.int64) % n)

    def step_number(self, index: Any) -> int:
        """Return the number of a step given as numpy takes an index."""
        n = self.max_timesteps
        if not is_integer(index):
            return checked_index(index, n, "timestep_index")
        if not -n <= index < n:
            raise MemmapIndexError(f"timestep_index {index} is out of bounds for {n} steps")
        return int(index % n)

    def track(self, name: Any) -> DeclaredField:
        if name not in self.tracks:
            raise MemmapError(f"invalid field name {name} - must be one of {self._shown_fields()}")
        return self.tracks[name]

    def meta_track(self, name: Any) -> DeclaredField:
        if name not in self.meta_tracks:
            raise MemmapError(
                f"invalid field name {name} - must be one of {', '.join(self.meta_tracks)}"
            )
        return self.meta_tracks[name]

    def _shown_fields(self) -> str:
        return ", ".join(self.tracks) or "none"


def assign(rows: NDArray[Any], key: str, track: DeclaredField, array: NDArray[Any]) -> None:
    """Assign values to rows as numpy broadcasts them."""
    try:
        rows[key][...] = cast(track, array)
    except ValueError as error:
        raise MemmapError(f"field {track.name} - {error}") from None


def checked_size(batch_size: Any, most: int) -> int:
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool):
        raise MemmapTypeError(f"batch_size is a number of episodes, got {batch_size!r}")
    if not 1 <= batch_size <= most:
        raise MemmapError(f"batch_size is a number from 1 to {most}, got {batch_size}")
    return int(batch_size)


def spread(track: DeclaredField, value: Any, leading: tuple[int, ...]) -> NDArray[Any]:
    """Return values broadcast to (*leading, *shape of the field)."""
    try:
        array = np.broadcast_to(cast(track, value), (*leading, *track.shape))
    except ValueError as error:
        raise MemmapError(f"field {track.name} - {error}") from None
    return array


def is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def listed_names(parameter: str, names: Any) -> list[str]:
    if names is None:
        return []
    if isinstance(names, list):
        names = tuple(names)
    return list(check_names(parameter, names) or ())


def checked_index(value: Any, n: int, name: str) -> int:
    """Return a number from 0 to n - 1.

    Raises:
        MemmapTypeError: It is not a number.
        MemmapError: It is out of range.
    """
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise MemmapTypeError(f"{name} is a number, got {value!r}")
    index = int(value.__index__())
    if not 0 <= index < n:
        raise MemmapError(f"{name} {index} out of range - must be in [0, {n})")
    return index
