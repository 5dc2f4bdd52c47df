"""The fields of a buffer: how they are declared, and their values as arrays."""

from typing import Any

from sqlbuffer.compat.memmap.arrays.array_proxy import ArrayProxies, ArrayProxy, proxy_maker
from sqlbuffer.compat.memmap.config.declared_fields import INTERNAL, LENS
from sqlbuffer.compat.memmap.slots.slot_reader import SlotReader


class FieldArrays(SlotReader):
    """The properties of `ReplayBuffer` that describe its fields and return their values."""

    # Not attributes: they refer to the buffer, which is to be deleted with the last use of it.
    @property
    def data(self) -> ArrayProxies:
        """The fields of all slots, each like an array of shape (max_episodes, max_timesteps,
        *shape).
        """
        return ArrayProxies(self.tracks, self._data_proxy)

    @property
    def meta_data(self) -> ArrayProxies:
        """The meta fields of all slots, each like an array of shape (max_episodes, *shape)."""
        return ArrayProxies(self.meta_tracks, self._meta_proxy)

    def _data_proxy(self, name: str) -> ArrayProxy:
        def write(values: Any, slots: Any, ts: Any) -> None:
            self._write_cells(slots, ts, {name: values})

        return ArrayProxy(
            self.tracks[name],
            (self.max_episodes, self.max_timesteps),
            lambda slots, ts: self._cells([name], slots, ts)[name],
            write,
            self._flush,
            proxy_maker(self._data_proxy, name),
        )

    def _meta_proxy(self, name: str) -> ArrayProxy:
        def read(slots: Any) -> Any:
            found = self._meta([name], slots.ravel())[name]
            return found.reshape((*slots.shape, *self.meta_tracks[name].shape))

        def write(values: Any, slots: Any) -> None:
            self._write_meta(slots, {name: values})

        track = self.meta_tracks[name]
        again = proxy_maker(self._meta_proxy, name)
        return ArrayProxy(track, (self.max_episodes,), read, write, self._flush, again)

    @property
    def fieldnames(self) -> set[str]:
        """The names of the fields."""
        return set(self.tracks)

    @property
    def meta_fieldnames(self) -> set[str]:
        """The names of the meta fields, `episode_lens` and `_initted` included."""
        return set(self.meta_tracks)

    @property
    def internal_meta_fieldnames(self) -> set[str]:
        """The meta fields that every buffer has."""
        return set(INTERNAL)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a value of each field."""
        return {name: track.shape for name, track in self.tracks.items()}

    @property
    def dtypes(self) -> dict[str, Any]:
        """The numpy type of each field."""
        return {name: track.dtype.type for name, track in self.tracks.items()}

    @property
    def defaults(self) -> dict[str, Any]:
        """The declared default of each field; None if it has none."""
        return {name: track.default for name, track in self.tracks.items()}

    @property
    def meta_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a value of each meta field."""
        return {name: track.shape for name, track in self.meta_tracks.items()}

    @property
    def meta_dtypes(self) -> dict[str, Any]:
        """The numpy type of each meta field."""
        return {name: track.dtype.type for name, track in self.meta_tracks.items()}

    @property
    def meta_defaults(self) -> dict[str, Any]:
        """The declared default of each meta field; None if it has none."""
        return {name: track.default for name, track in self.meta_tracks.items()}

    @property
    def episode_lens(self) -> ArrayProxy:
        """The length of each slot, like an array of shape (max_episodes,)."""
        return self.meta_data[LENS]
