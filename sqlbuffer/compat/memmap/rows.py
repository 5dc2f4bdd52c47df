"""Encodes the fields of steps and episodes as bytes and columns."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.errors import MemmapTypeError
from sqlbuffer.compat.memmap.fields import (
    INTERNAL,
    DeclaredField,
    core_names,
    exact,
    full,
    is_scalar,
    is_tensor,
    own_columns,
)
from sqlbuffer.encoding.field_copies import FieldCopies
from sqlbuffer.encoding.packing import Layout

# Larger values of an episode are kept as bytes only.
MAX_JSON_ITEMS = 256


class RowCoder:
    """Encodes rows of fields as the database stores them.

    Args:
        tracks: The fields.
        layout: How the database lays out their bytes.
    """

    def __init__(self, tracks: Mapping[str, DeclaredField], layout: Layout) -> None:
        self.tracks, self.layout = dict(tracks), layout
        self.names = core_names(tracks)
        self.own = {column: self.names[name] for column, name in own_columns(tracks).items()}
        self.blank = np.zeros((), layout.record)
        for name, track in tracks.items():
            self.blank[self.names[name]] = track.fill
        self.size, self._copies = layout.size_bytes, FieldCopies(layout.record)

    def blanks(self, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """Return rows in which nothing was written."""
        return np.full(shape, self.blank)

    def arrays(self, rows: NDArray[Any], reward: NDArray[Any] | None) -> dict[str, Any]:
        """Return rows as the columns of a call that stores them.

        Args:
            rows: Structured array of shape (n,).
            reward: Their rewards, if they have any.
        """
        columns: dict[str, Any] = {name: rows[name] for name in self.names.values()}
        columns |= {column: rows[name] for column, name in self.own.items() if column != "reward"}
        return columns if reward is None else {**columns, "reward": reward}

    def copied(self, rows: NDArray[Any], names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Return fields of rows of shape (n,), each as an array of its own."""
        named = {self.names[name]: name for name in names}
        fields = self._copies.of(rows.view(self._copies.plain), named)
        return {named[name]: values for name, values in fields.items()}

    def rewards(self, rows: NDArray[Any]) -> NDArray[np.float64] | None:
        """Return the rewards of rows, without negative zeros; None where no field is that.

        The database tags NaN and -0.0, and a tag stays when a step is replaced.
        """
        name = self.own.get("reward")
        return None if name is None else rows[name].astype(np.float64) + 0.0

    def own_columns(self, rows: NDArray[Any]) -> list[list[Any]]:
        """Return reward, terminated and truncated of rows; None where no field is that."""
        rewards, none = self.rewards(rows), [None] * len(rows)
        flags = (self.own.get(name) for name in ("terminated", "truncated"))
        listed = none if rewards is None else rewards.tolist()
        return [
            [None if value != value else value for value in listed],
            *(none if name is None else rows[name].tolist() for name in flags),
        ]


class SlotPacker:
    """Packs single steps, in a few microseconds each; not thread-safe.

    Args:
        rows: How a row is laid out.
    """

    def __init__(self, rows: RowCoder) -> None:
        self._rows = rows
        self._row = rows.blanks(1)
        self._puts = [
            (name, track, full(track, track.fill), self._row[rows.names[name]])
            for name, track in rows.tracks.items()
        ]

    def pack(self, data: Mapping[str, Any]) -> tuple[list[Any], bytes]:
        """Return the value to report for each field, and the packed step.

        Args:
            data: Values by name; None or missing is the default. Other names are left alone.

        Raises:
            MemmapError: A value of another shape.
            OverflowError: An integer that the field cannot hold.
        """
        reported = []
        for name, track, default, place in self._puts:
            value = data.get(name)
            if isinstance(value, np.ndarray):
                if value.dtype != track.dtype or value.shape != track.shape:
                    place[0] = exact(track, value)
                else:
                    place[0] = value
                reported.append(value)
                continue
            to_report, to_store = (
                (default.copy(), default) if value is None else _step(track, value)
            )
            place[0] = to_store
            reported.append(to_report)
        return reported, self._row.tobytes()


def _step(track: DeclaredField, value: Any) -> tuple[Any, NDArray[Any]]:
    """Return the value to report, and the value to store."""
    if is_scalar(value):
        value = full(track, value)
        return value, value
    if not isinstance(value, (list, tuple)) and not is_tensor(value):
        raise MemmapTypeError(
            f"field {track.name} - expected a number, an array, a tensor or a list, got {value!r}"
        )
    return value, exact(track, value)


class MetaCoder:
    """Encodes the meta fields of an episode as bytes.

    Args:
        tracks: The fields; internal ones are left out, since they are stored elsewhere.
    """

    def __init__(self, tracks: Mapping[str, DeclaredField]) -> None:
        self.tracks = {name: track for name, track in tracks.items() if name not in INTERNAL}
        # By number: these names may be any text.
        self.keys = {name: f"f{i}" for i, name in enumerate(self.tracks)}
        self.dtype = np.dtype(
            [(self.keys[name], track.dtype, track.shape) for name, track in self.tracks.items()]
        )
        self.blank = np.zeros((), self.dtype)
        for name, track in self.tracks.items():
            self.blank[self.keys[name]] = track.fill

    def unpack(self, raw: bytes | None) -> NDArray[Any]:
        """Return the values of an episode, of shape ()."""
        if not raw:
            return self.blank.copy()
        return np.frombuffer(bytearray(raw), self.dtype)[0:1].reshape(()).copy()

    def shown(self, row: NDArray[Any]) -> dict[str, Any]:
        """Return the values for the view of episodes, without large ones."""
        return {
            name: row[self.keys[name]].tolist()
            for name, track in self.tracks.items()
            if np.prod(track.shape, dtype=int) <= MAX_JSON_ITEMS
        }
