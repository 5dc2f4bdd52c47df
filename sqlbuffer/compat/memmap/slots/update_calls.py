"""The calls of `ReplayBuffer` that change stored values by slot and step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.config.declared_fields import DeclaredField
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapIndexError, MemmapTypeError
from sqlbuffer.compat.memmap.rows.casting import as_array, cast, exact, squeezed
from sqlbuffer.compat.memmap.slots.slot_reader import SlotReader, checked_index

Ints = NDArray[np.int64]


class UpdateCalls(SlotReader):
    """The methods of `ReplayBuffer` that change stored episodes."""

    def store_datapoint(
        self, episode_index: int, timestep_index: int, name: str, datapoint: Any
    ) -> None:
        """Set the value of a field in one step; lengths stay.

        Args:
            episode_index: The slot.
            timestep_index: The step.
            name: The field.
            datapoint: Its value, of the field's shape.

        Raises:
            MemmapError: No such slot, step or field, or another shape.
        """
        self._check_writable("store_datapoint")
        slot = checked_index(episode_index, self.max_episodes, "episode_index")
        t = checked_index(timestep_index, self.max_timesteps, "timestep_index")
        track = self._track(name)
        value = exact(track, datapoint)
        self._write_cells(np.array([slot]), np.array([t]), {name: value[None]})

    def store_meta_datapoint(self, episode_index: int, name: str, datapoint: Any) -> None:
        """Set the value of a meta field of a slot.

        Raises:
            MemmapError: No such slot or field, or another shape.
        """
        self._check_writable("store_meta_datapoint")
        slot = checked_index(episode_index, self.max_episodes, "episode_index")
        track = self._meta_track(name)
        value = exact(track, datapoint)
        self._write_meta(np.array([slot]), {name: value[None]})

    def store_batch_datapoint(
        self, episode_indices: Any, timestep_index: int, name: str, datapoints: Any
    ) -> None:
        """Set the value of a field in the same step of several slots.

        Args:
            episode_indices: The slots, of shape (n,).
            timestep_index: The step; a negative one is counted from the last of `max_timesteps`.
            name: The field.
            datapoints: Their values, of shape (n, *shape).

        Raises:
            MemmapError: No such field, or another shape.
            MemmapIndexError: No such slot or step.
        """
        self._check_writable("store_batch_datapoint")
        track = self._track(name)
        t = self._step_number(timestep_index)
        slots = self._slot_numbers(episode_indices)
        values = _spread(track, datapoints, (len(slots),))
        self._write_cells(slots, np.full(len(slots), t), {name: values})

    def store_batch_meta_datapoint(self, episode_indices: Any, name: str, datapoints: Any) -> None:
        """Set the value of a meta field of several slots.

        Args:
            episode_indices: The slots, of shape (n,).
            name: The field.
            datapoints: Their values, of shape (n, *shape).

        Raises:
            MemmapError: No such field, or another shape.
            MemmapIndexError: There is no such slot.
        """
        self._check_writable("store_batch_meta_datapoint")
        track = self._meta_track(name)
        slots = self._slot_numbers(episode_indices)
        self._write_meta(slots, {name: _spread(track, datapoints, (len(slots),))})

    def update(self, indices: Any = None, **data: Any) -> None:
        """Change stored episodes; their lengths stay.

        Args:
            indices: A slot, a list, an array or a slice of slots, negative ones counted from the
                end; all episodes with steps by default.
            **data: For fields an array of shape (E, T, *shape), or (T, *shape) for one slot: the
                first T steps, which may be more than the episode has; a scalar for the first step.
                For meta fields an array of shape (E, *shape). `()` and `(1,)` are converted into
                each other, and arrays are broadcast.

        Raises:
            MemmapError: Nothing, an unknown field, another shape, or more than `max_timesteps`;
                nothing is changed.
            MemmapIndexError: There is no such slot.
        """
        self._check_writable("update")
        if not data:
            raise MemmapError("No data provided to `update`")
        for name in data:
            if name not in self.tracks and name not in self.meta_tracks:
                raise MemmapError(f"invalid field name `{name}`")
        is_one = indices is not None and _is_integer(indices)
        slots = self._slot_numbers(
            [indices] if is_one else self._all() if indices is None else indices
        )
        cells, metas = {}, {}
        for name, value in data.items():
            if name in self.tracks:
                cells[name] = self._steps_of(self.tracks[name], value, len(slots), is_one)
            else:
                track = self.meta_tracks[name]
                array = as_array(name, value)
                array = squeezed(track, array, 0 if is_one else 1)
                metas[name] = _spread(track, array, (len(slots),))
        for n_steps in sorted({array.shape[1] for array in cells.values()}):
            same = {name: array for name, array in cells.items() if array.shape[1] == n_steps}
            self._write_steps(slots, n_steps, same)
        if metas and len(slots):
            self._write_meta(slots, metas)

    def _steps_of(self, track: DeclaredField, value: Any, n: int, is_one: bool) -> NDArray[Any]:
        """Return the values of the first steps of n slots, of shape (n, T, *shape)."""
        array = as_array(track.name, value)
        if array.ndim == 0:
            return _spread(track, array, (n, 1))
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
        return _spread(track, array, (n, array.shape[1]))

    def _write_steps(self, slots: Ints, n_steps: int, values: dict[str, NDArray[Any]]) -> None:
        at = np.broadcast_to(slots[:, None], (len(slots), n_steps)).ravel()
        ts = np.broadcast_to(np.arange(n_steps), (len(slots), n_steps)).ravel()
        flat = {name: array.reshape(-1, *self.tracks[name].shape) for name, array in values.items()}
        self._write_cells(at, ts, flat)

    def _all(self) -> Ints:
        return np.flatnonzero(self._lengths() > 0)

    def _slot_numbers(self, indices: Any) -> Ints:
        """Return slots as numbers from 0 on.

        Raises:
            MemmapIndexError: There is no such slot.
            MemmapTypeError: They are not numbers.
        """
        n = self.max_episodes
        if isinstance(indices, slice):
            return np.arange(n)[indices]
        given = as_array("indices", indices) if len(indices) else np.empty(0, np.int64)
        if given.dtype.kind == "b" or given.dtype.kind not in "iu" or given.ndim != 1:
            raise MemmapTypeError(
                f"indices are a number, a slice, or a list or array of numbers of shape (n,), got "
                f"{indices!r:.100}; np.flatnonzero(mask) makes them of a mask"
            )
        for index in given.tolist():
            if not -n <= index < n:
                raise MemmapIndexError(f"index {index} is out of bounds for {n} episodes")
        return np.asarray(given.astype(np.int64) % n)

    def _step_number(self, index: Any) -> int:
        """Return the number of a step given as numpy takes an index."""
        n = self.max_timesteps
        if not _is_integer(index):
            return checked_index(index, n, "timestep_index")
        if not -n <= index < n:
            raise MemmapIndexError(f"timestep_index {index} is out of bounds for {n} steps")
        return int(index % n)


def _spread(track: DeclaredField, value: Any, leading: tuple[int, ...]) -> NDArray[Any]:
    """Return values broadcast to (*leading, *shape of the field)."""
    try:
        found = np.broadcast_to(cast(track, value), (*leading, *track.shape))
    except ValueError as error:
        raise MemmapError(f"field {track.name} - {error}") from None
    return found


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
