"""What memmap-replay-buffer does, in plain numpy, with its defects D1 to D10 mended.

Arrays are in memory and whole: (max_episodes, max_timesteps, *shape) a field. It is read as the
real buffer is, so that loaders can be tried on it, and compared with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

DTYPES = {"int": np.int32, "float": np.float32, "bool": np.bool_, "uint8": np.uint8}
INTERNAL = {"episode_lens": "int", "_initted": "bool"}


class Track(NamedTuple):
    name: str
    dtype: Any
    shape: tuple[int, ...]
    default: Any


def track_of(name: str, info: Any) -> Track:
    kind, *rest = (info,) if isinstance(info, str) else info
    shape = rest[0] if rest else ()
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return Track(name, np.dtype(DTYPES[kind]), shape, rest[1] if len(rest) > 1 else 0)


class Model:
    def __init__(
        self,
        max_episodes: int,
        max_timesteps: int,
        fields: Mapping[str, Any],
        meta_fields: Mapping[str, Any] | None = None,
        circular: bool = False,
    ) -> None:
        self.max_episodes, self.max_timesteps = max_episodes, max_timesteps
        self.circular = circular
        self.tracks = {name: track_of(name, info) for name, info in fields.items()}
        metas = {**(meta_fields or {}), **INTERNAL}
        self.meta_tracks = {name: track_of(name, info) for name, info in metas.items()}
        self.data = {
            name: np.full((max_episodes, max_timesteps, *track.shape), track.default, track.dtype)
            for name, track in self.tracks.items()
        }
        self.meta_data = {
            name: np.full((max_episodes, *track.shape), track.default, track.dtype)
            for name, track in self.meta_tracks.items()
        }
        self.num_episodes = self.episode_index = self.timestep_index = 0
        self.begun = np.full(max_episodes, -1)
        self._next = 1

    def __len__(self) -> int:
        return int((self._lengths() > 0).sum())

    @property
    def episode_lens(self) -> Any:
        return self.meta_data["episode_lens"]

    def store(self, **values: Any) -> None:
        self._check_room(1)
        self._check_step()
        if self.timestep_index == 0:
            self._begin(self.episode_index)
        slot, t = self.episode_index, self.timestep_index
        for name, track in self.tracks.items():
            value = values.get(name)
            self.data[name][slot, t] = track.default if value is None else value
        self.timestep_index += 1
        self.meta_data["episode_lens"][slot] = self.timestep_index

    def store_batch(self, **values: Any) -> None:
        slots = self._ahead(len(next(iter(values.values()))))
        self._check_step()
        for slot in slots:
            if self.timestep_index == 0:
                self._begin(slot)
            self.meta_data["episode_lens"][slot] = self.timestep_index + 1
        for name, value in values.items():
            self.data[name][slots, self.timestep_index] = np.asarray(value)[: len(slots)]
        self.timestep_index += 1

    def store_episode(self, **values: Any) -> None:
        steps = {name: np.asarray(v) for name, v in values.items() if name in self.tracks}
        length = len(next(iter(steps.values())))
        if length == 0:
            return
        self._check_room(1)
        if length > self.max_timesteps:
            raise ValueError("max_timesteps")
        slot = self.episode_index
        self._begin(slot)
        for name, value in steps.items():
            self.data[name][slot, :length] = value
        for name in values.keys() - steps.keys():
            self.meta_data[name][slot] = values[name]
        self.timestep_index = length
        self.advance_episode()

    @contextmanager
    def one_episode(self, **meta: Any) -> Iterator[dict[str, Any]]:
        self._check_room(1)
        slot, last = self.episode_index, {}
        try:
            yield last
        except Exception:
            if self.timestep_index:
                self._empty(slot)
            self.timestep_index = 0
            raise
        for name, value in {**meta, **last}.items():
            if self.timestep_index:
                self.meta_data[name][slot] = value
        self.advance_episode()

    @contextmanager
    def batched_episode(self, batch_size: int, **meta: Any) -> Iterator[None]:
        self._check_room(batch_size)
        slots = (self.episode_index + np.arange(batch_size)) % self.max_episodes
        try:
            yield
        except Exception:
            for slot in slots if self.timestep_index else ():
                self._empty(slot)
            self.timestep_index = 0
            raise
        if self.timestep_index == 0:
            if batch_size == 1:
                return
            for slot in slots:
                self._begin(slot)
        for name, value in meta.items():
            self.meta_data[name][slots] = value
        self.advance_episode(batch_size)

    def advance_episode(self, batch_size: int = 1) -> None:
        if self.timestep_index == 0 and batch_size == 1:
            return
        self._check_room(batch_size)
        slots = (self.episode_index + np.arange(batch_size)) % self.max_episodes
        self.meta_data["episode_lens"][slots] = self.timestep_index
        self.episode_index = (self.episode_index + batch_size) % self.max_episodes
        self.timestep_index = 0
        self.num_episodes += batch_size
        if self.circular:
            self.num_episodes = min(self.num_episodes, self.max_episodes)

    def update(self, slots: Sequence[int], **values: Any) -> None:
        for name, value in values.items():
            if name in self.meta_data:
                self.meta_data[name][slots] = value
            else:
                self.data[name][slots, : np.shape(value)[1]] = value

    def clear(self) -> None:
        for slot in range(self.max_episodes):
            self._empty(slot)
        self.num_episodes = self.episode_index = self.timestep_index = 0

    def _flush(self) -> None: ...

    def _lengths(self) -> Any:
        return self.meta_data["episode_lens"].astype(np.int64)

    def _at_one_moment(self, read: Any, slots: Any = None) -> Any:
        return read(None)

    def _state(self, slots: Any = None) -> Any:
        slots = slice(None) if slots is None else slots
        return self._lengths()[slots], self.begun[slots].copy()

    def _cells(self, names: Sequence[str], slots: Any, ts: Any) -> dict[str, Any]:
        return {name: self.data[name][slots, ts] for name in names}

    def _starts(self, names: Sequence[str], slots: Any, counts: Any) -> dict[str, Any]:
        places = [(slot, t) for slot, n in zip(slots, counts, strict=True) for t in range(n)]
        return self._cells(names, *np.array(places, int).reshape(-1, 2).T)

    def _meta(self, names: Sequence[str], slots: Any) -> dict[str, Any]:
        return {name: self.meta_data[name][slots] for name in names}

    def _begin(self, slot: int) -> None:
        self._empty(slot)
        self.meta_data["_initted"][slot] = True
        self.begun[slot], self._next = self._next, self._next + 1

    def _empty(self, slot: int) -> None:
        """Have nothing in a slot but defaults (D3, D4, D6)."""
        for tracks, arrays in ((self.tracks, self.data), (self.meta_tracks, self.meta_data)):
            for name, track in tracks.items():
                arrays[name][slot] = track.default
        self.begun[slot] = -1

    def _check_room(self, n: int) -> None:
        if not self.circular and self.num_episodes + n > self.max_episodes:
            raise ValueError("full")  # before anything is written (D1, D2)

    def _check_step(self) -> None:
        if self.timestep_index >= self.max_timesteps:
            raise ValueError("max_timesteps")

    def _ahead(self, n: int) -> Any:
        """Return the slots that a batch goes to; without a circle, only those that there are."""
        if not self.circular:
            n = min(n, self.max_episodes - self.num_episodes)
        if n == 0:
            raise ValueError("full")
        return (self.episode_index + np.arange(n)) % self.max_episodes
