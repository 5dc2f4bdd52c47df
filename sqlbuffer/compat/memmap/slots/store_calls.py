"""The calls of `ReplayBuffer` that store steps and episodes."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.config.declared_fields import INTERNAL, DeclaredField
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.compat.memmap.rows.casting import as_array, cast, exact, squeezed, wrong_shape
from sqlbuffer.compat.memmap.slots.episode_writer import EpisodeWriter, OpenEpisode
from sqlbuffer.compat.memmap.slots.slot_reader import SlotReader
from sqlbuffer.errors import SQLBufferError

logger = logging.getLogger("sqlbuffer")


class StoreCalls(SlotReader):
    """The methods of `ReplayBuffer` that store steps and episodes."""

    def store(self, **data: Any) -> Any:
        """Store one step of the open episode; begin an episode if none is open.

        This process sees the step immediately. It is stored, for other processes and after a crash,
        within a second (`flush_every_store_step`).

        Args:
            **data: A value for each field, of its shape or a scalar for all of it. A missing field,
                or None, gets the default. Other names are ignored.

        Returns:
            A namedtuple `Memory` of the stored values, in the order of declaration.

        Raises:
            MemmapError: A value has another shape; or the episode has `max_timesteps` already; or
                the buffer is full and not circular. Nothing is stored.
        """
        writer = self._check_writable("store")
        self._check_room_in_time(1)
        stored, row = self._packer.pack(data)
        open_ = writer.open[0] if writer.open else writer.claim(1)[0]
        writer.add(open_, self._t, row)
        self._t += 1
        self.store_step += 1
        return self.memory_namedtuple(*stored)

    def store_batch(self, **data: Any) -> None:
        """Store the same step of B episodes in one call.

        Args:
            **data: An array of shape (B, *shape) for each field; other fields get their default.

        Raises:
            MemmapError: No field is given, a field is unknown, or batches have different sizes; or
                the episodes have `max_timesteps` already; or no slot is left in a buffer that is
                not circular. With fewer than B slots left, the first of the steps are stored, as
                upstream.
        """
        writer = self._check_writable("store_batch")
        arrays = self._batch(data, self.tracks, "store_batch", "")
        self._check_room_in_time(1)
        n = len(next(iter(arrays.values())))
        rows = self._rows.blanks(n)
        for name, array in arrays.items():
            _assign(rows, self._rows.names[name], self.tracks[name], array)
        opened = self._opened(writer, n)
        steps = self._rows.steps(rows[self._which(n, len(opened))])
        for open_, row in zip(opened, steps, strict=True):
            writer.add(open_, self._t, row)
        self._t += 1

    def store_meta_batch(self, **data: Any) -> None:
        """Set meta values of B open episodes, from the first on; begin those that are not open.

        Args:
            **data: For each field an array of shape (B, *shape).

        Raises:
            MemmapError: Nothing, an unknown field, or batches of different sizes.
        """
        writer = self._check_writable("store_meta_batch")
        arrays = self._batch(data, self.meta_tracks, "store_meta_batch", "meta ")
        n = len(next(iter(arrays.values())))
        opened = self._opened(writer, n)
        self._set_open_metas(opened, arrays, self._which(n, len(opened)))

    def store_episode(self, **data: Any) -> None:
        """Store a whole episode in one transaction.

        Args:
            **data: An array of shape (T, *shape) for each field, and one value for each meta field;
                `()` and `(1,)` are converted into each other. Omitted ones get their default. If T
                is 0, nothing is stored.

        Raises:
            MemmapError: No field is given; a field is unknown, or has a different T or another
                shape; T is above `max_timesteps`; or the buffer is full and not circular. Nothing
                is stored.
        """
        writer = self._check_writable("store_episode")
        arrays, metas = self._episode(data)
        n = len(next(iter(arrays.values())))
        if n == 0:
            return
        self._check_room_in_time(n, from_start=True)
        if self._t:
            logger.warning("store_episode overwrites an open episode of %d steps", self._t)
        meta = (writer.open[0].meta if writer.open else self._metas.blank).copy()
        writer.drop()
        self._t = 0
        for name, value in metas.items():
            meta[self._metas.keys[name]] = value
        rows = self._rows.blanks(n)
        for name, array in arrays.items():
            rows[self._rows.names[name]] = array
        writer.store_whole(rows, meta)

    @contextmanager
    def one_episode(self, **meta_data: Any) -> Iterator[dict[str, Any]]:
        """Store an episode: the body of the block calls `store`.

        Yields a dict; what is put there is stored as meta at the end. A block that raises stores
        nothing.

        Args:
            **meta_data: The values of meta fields that are known.

        Raises:
            MemmapError: An unknown meta field, a value of another shape, or a buffer that is full
                and not circular.
        """
        writer = self._check_writable("one_episode")
        known = self._meta_values(meta_data)
        opened = self._opened(writer, 1)
        self._set_open_metas(opened, {name: value[None] for name, value in known.items()})
        at_end: dict[str, Any] = {}
        with self._dropped_on_error(writer):
            yield at_end
            late = self._meta_values(at_end)
            if not self._t:
                writer.drop()
                return
            self._set_open_metas(
                writer.open[:1], {name: value[None] for name, value in late.items()}
            )
        self.advance_episode()

    @contextmanager
    def batched_episode(self, batch_size: int, **meta_batch: Any) -> Iterator[None]:
        """Store B episodes together: the body of the block calls `store_batch`.

        Args:
            batch_size: Number B of episodes.
            **meta_batch: An array of shape (B, *shape) for each meta field.

        Raises:
            MemmapError: Fewer than B slots are left in a buffer that is not circular, or meta
                values do not fit.
        """
        writer = self._check_writable("batched_episode")
        batch_size = _checked_size(batch_size, self.max_episodes)
        arrays: dict[str, NDArray[Any]] = {}
        if meta_batch:
            arrays = self._batch(meta_batch, self.meta_tracks, "batched_episode", "meta ")
            n = len(next(iter(arrays.values())))
            if n != batch_size:
                raise MemmapError(f"expected meta values of {batch_size} episodes, got {n}")
        if batch_size > len(writer.open):
            writer.claim(batch_size - len(writer.open))
        self._set_open_metas(writer.open[:batch_size], arrays)
        with self._dropped_on_error(writer):
            yield
            if not self._t and batch_size == 1:
                writer.drop()
        self.advance_episode(batch_size)

    def advance_episode(self, batch_size: int = 1) -> None:
        """End the open episodes, store all of them and continue with the next slots.

        Args:
            batch_size: Number of episodes; all of them have the steps so far. Without a step, one
                episode is not ended, and several are ended empty.

        Raises:
            MemmapError: The buffer is full and not circular.
        """
        writer = self._check_writable("advance_episode")
        batch_size = _checked_size(batch_size, self.max_episodes)
        if not self._t and batch_size == 1:
            return
        length, self._t = self._t, 0
        writer.finish([length] * batch_size)

    @contextmanager
    def _dropped_on_error(self, writer: EpisodeWriter) -> Iterator[None]:
        """Drop the open episodes where a block raises."""
        try:
            yield
        except BaseException:
            self._t = 0
            try:
                writer.drop()
            except SQLBufferError as error:  # the caller must see the first error
                logger.warning("an episode could not be undone: %s", error)
            raise

    def _opened(self, writer: EpisodeWriter, n: int) -> list[OpenEpisode]:
        """Return n open episodes, as far as a buffer has room that is not circular."""
        n = min(n, self.max_episodes)
        missing = n - len(writer.open)
        if missing > 0:
            if not self.circular and missing > 1:
                missing = min(missing, max(writer.claims.n_left(), 0 if writer.open else 1))
            if missing:
                writer.claim(missing)
        return writer.open[:n]

    def _which(self, n: int, n_slots: int) -> NDArray[np.int64]:
        """Return which of n values each slot gets: the first ones, where the others have no room;
        the last ones, where they wrap around.
        """
        if not self.circular:
            return np.arange(min(n, n_slots))
        return np.array([i + (n - 1 - i) // n_slots * n_slots for i in range(min(n, n_slots))])

    def _check_room_in_time(self, n: int, *, from_start: bool = False) -> None:
        if (0 if from_start else self._t) + n > self.max_timesteps:
            raise MemmapError(
                f"You exceeded the `max_timesteps` ({self.max_timesteps}) set on the replay "
                f"buffer. Please increase it on init."
            )

    def _batch(
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

    def _episode(
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

    def _meta_values(self, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return meta values of one episode."""
        found = {}
        for name, value in given.items():
            track = self._meta_track(name)
            found[name] = exact(track, value)
        return {name: value for name, value in found.items() if name not in INTERNAL}

    def _set_open_metas(
        self,
        opened: list[OpenEpisode],
        arrays: Mapping[str, NDArray[Any]],
        last: NDArray[np.int64] | None = None,
    ) -> None:
        """Set meta values of open episodes."""
        for name, array in arrays.items():
            if name in INTERNAL:
                continue
            track = self.meta_tracks[name]
            values = cast(track, array if last is None else array[last])
            for open_, value in zip(opened, values, strict=False):
                try:
                    open_.meta[self._metas.keys[name]] = value
                except ValueError as error:
                    raise MemmapError(f"field {name} - {error}") from None
                open_.is_dirty = True


def _assign(rows: NDArray[Any], key: str, track: DeclaredField, array: NDArray[Any]) -> None:
    """Assign values to rows as numpy broadcasts them."""
    try:
        rows[key][...] = cast(track, array)
    except ValueError as error:
        raise MemmapError(f"field {track.name} - {error}") from None


def _checked_size(batch_size: Any, most: int) -> int:
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool):
        raise MemmapTypeError(f"batch_size is a number of episodes, got {batch_size!r}")
    if not 1 <= batch_size <= most:
        raise MemmapError(f"batch_size is a number from 1 to {most}, got {batch_size}")
    return int(batch_size)
