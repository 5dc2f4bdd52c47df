"""Encodes the fields of steps and episodes as bytes and columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.compat.memmap.config.database_fields import core_names, own_columns
from sqlbuffer.compat.memmap.config.declared_fields import INTERNAL, DeclaredField
from sqlbuffer.compat.memmap.errors import MemmapTypeError
from sqlbuffer.compat.memmap.rows.casting import exact, full, is_scalar
from sqlbuffer.compat.memmap.rows.tensors import is_tensor
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.packed_chunk import PackedChunk, stored_values
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import encode_real
from sqlbuffer.storage.rows.pieces import Columns

# JSON has these as they are.
_MAX_PLAIN = 1e15
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
        self._own = {column: self.names[name] for column, name in own_columns(tracks).items()}
        self.scalars = sorted(self.names[n] for n, track in tracks.items() if track.shape == ())
        self.blank = np.zeros((), layout.record)
        for name, track in tracks.items():
            self.blank[self.names[name]] = track.fill
        self.size = layout.size_bytes

    def blanks(self, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """Return rows in which nothing was written."""
        return np.full(shape, self.blank)

    def columns(self, rows: NDArray[Any]) -> Columns:
        """Return what the database has of rows.

        Args:
            rows: Structured array of shape (n,).
        """
        raw, size, n = rows.tobytes(), self.size, len(rows)
        blobs = [raw[i * size : (i + 1) * size] for i in range(n)]
        scalars = {name: rows[name].tolist() for name in self.scalars}
        texts: Sequence[str | None] = [None] * n
        if scalars:
            encode = _dumps if all(map(self._is_plain, map(rows.__getitem__, scalars))) else _tagged
            names = tuple(scalars)
            texts = [
                encode(dict(zip(names, values, strict=True)))
                for values in zip(*scalars.values(), strict=True)
            ]
        rewards, terminated, truncated = (
            [None] * n if found is None else found for found in self.own_columns(scalars)
        )
        return Columns(blobs, texts, [_real(each) for each in rewards], terminated, truncated)

    def chunks(self, rows: NDArray[Any], key: str) -> list[PackedChunk]:
        """Return the steps of a whole episode as chunks.

        Args:
            rows: Structured array of shape (n,).
            key: Id of the episode.
        """
        columns: dict[str, Any] = {name: rows[name] for name in self.names.values()}
        rewards, *flags = self.own_columns(columns)
        columns |= dict(zip(("terminated", "truncated"), flags, strict=True))
        packed = pack_columns(self.layout, {**columns, "task_id": key}, episode=key).chunks
        if rewards is None:
            return packed
        values = reals(rewards)
        # Not by `pack_columns`: it tags NaN and -0.0, and a tag stays when the step is replaced.
        return [
            replace(chunk, reward=stored_values(values[chunk.t : chunk.t + chunk.n_steps], "f8"))
            for chunk in packed
            if chunk.t is not None
        ]

    def own_columns(self, scalars: Mapping[str, Any]) -> list[Any]:
        """Return reward, terminated and truncated of fields by name; None where none is that."""
        return [
            scalars[self._own[name]] if name in self._own else None
            for name in ("reward", "terminated", "truncated")
        ]

    @staticmethod
    def _is_plain(values: NDArray[Any]) -> bool:
        """Return True if JSON keeps all of the numbers exactly."""
        if values.dtype.kind != "f":
            return True
        # In range; and zeros are positive.
        return bool(
            (np.abs(values) < _MAX_PLAIN).all() and not np.signbit(values[values == 0]).any()
        )


def _is_plain(value: Any) -> bool:
    """Return True if JSON keeps a number exactly: in range, and not negative zero."""
    if type(value) is not float:
        return True
    return -_MAX_PLAIN < value < _MAX_PLAIN and (value != 0.0 or math.copysign(1.0, value) > 0)


def _dumps(values: dict[str, Any]) -> str:
    return orjson.dumps(values).decode()


def _tagged(values: dict[str, Any]) -> str | None:
    return Encoder().json(values, "fields")


def reals(values: NDArray[Any]) -> list[float | None]:
    """Return rewards as the database has them: no NaN, and no negative zero."""
    found: list[float | None] = (values.astype(np.float64) + 0.0).tolist()
    return [None if value != value else value for value in found]


def _real(value: Any) -> float | None:
    """Return what the column of rewards holds: no NaN, and no negative zero."""
    return None if value is None else encode_real(value, "reward_t", "reward", {})


class StepPacker:
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
        self._scalars = [(name, self._row[name]) for name in rows.scalars]

    def pack(self, data: Mapping[str, Any]) -> tuple[list[Any], Columns]:
        """Return the value to report for each field, and the columns of the row.

        Args:
            data: Values by name; None or missing is the default. Other names are left alone.

        Raises:
            MemmapError: A value of another shape.
            OverflowError: An integer that the field cannot hold.
        """
        stored = []
        for name, track, default, place in self._puts:
            value = data.get(name)
            if isinstance(value, np.ndarray):
                if value.dtype != track.dtype or value.shape != track.shape:
                    place[0] = exact(track, value)
                else:
                    place[0] = value
                stored.append(value)
                continue
            given, own = (default.copy(), default) if value is None else _step(track, value)
            place[0] = own
            stored.append(given)
        return stored, self._columns()

    def _columns(self) -> Columns:
        """Return what the database has of the row: `RowCoder.columns`, in a third of its time."""
        scalars = {name: place.item() for name, place in self._scalars}
        text = None
        if scalars:
            is_plain = all(map(_is_plain, scalars.values()))
            text = _dumps(scalars) if is_plain else _tagged(scalars)
        reward, terminated, truncated = self._rows.own_columns(scalars)
        return Columns([self._row.tobytes()], [text], [_real(reward)], [terminated], [truncated])


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

    def to_json(self, row: NDArray[Any]) -> str | None:
        """Return the values as JSON for the view of episodes, without large ones."""
        values = {
            name: row[self.keys[name]].tolist()
            for name, track in self.tracks.items()
            if np.prod(track.shape, dtype=int) <= MAX_JSON_ITEMS
        }
        return Encoder().json(values, "meta") if values else None
