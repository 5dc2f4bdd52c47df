"""Encodes the fields of steps and episodes as bytes and columns."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.compat.memmap.config.database_fields import core_names, own_columns
from sqlbuffer.compat.memmap.config.declared_fields import INTERNAL, DeclaredField
from sqlbuffer.compat.memmap.errors import MemmapTypeError
from sqlbuffer.compat.memmap.rows.casting import exact, full, is_scalar
from sqlbuffer.compat.memmap.rows.tensors import is_tensor
from sqlbuffer.encoding.chunks import PackedChunk, comparable_values, stored_values
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import encode_real
from sqlbuffer.storage.chunks.numbered_chunk import values_json
from sqlbuffer.storage.rows.pieces import Columns

# Larger values of an episode are kept as bytes only.
MAX_JSON_ITEMS = 256


# Episodes are mostly read whole. SQLite stores a thousand steps of 100 bytes in two thirds of the
# time that chunks of two pages take.
EPISODE_CHUNK_BYTES = 2**15


class PackedRow(NamedTuple):
    """A step as it waits for the database.

    Attributes:
        raw: Its fields.
        reward: Its reward, if a field is that.
        terminated: Whether the episode ended there, if a field is that.
        truncated: Whether it was cut there, if a field is that.
    """

    raw: bytes
    reward: float | None
    terminated: bool | None
    truncated: bool | None


class RowCoder:
    """Encodes rows of fields as the database stores them.

    Args:
        tracks: The fields.
        layout: How the database lays out their bytes.
    """

    def __init__(self, tracks: Mapping[str, DeclaredField], layout: Layout) -> None:
        self.tracks, self.layout = dict(tracks), layout
        n_bytes = max(layout.chunk_bytes, EPISODE_CHUNK_BYTES)
        self._episode_layout = Layout(layout.specs, layout.compression, n_bytes)
        self.names = core_names(tracks)
        self.own = {column: self.names[name] for column, name in own_columns(tracks).items()}
        self.scalars = sorted(self.names[n] for n, track in tracks.items() if track.shape == ())
        self.blank = np.zeros((), layout.record)
        for name, track in tracks.items():
            self.blank[self.names[name]] = track.fill
        self.size = layout.size_bytes

    def blanks(self, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """Return rows in which nothing was written."""
        return np.full(shape, self.blank)

    def columns(self, rows: NDArray[Any]) -> Columns:
        """Return the database's values of rows.

        Args:
            rows: Structured array of shape (n,).
        """
        raw, size, n = rows.tobytes(), self.size, len(rows)
        blobs = [raw[i * size : (i + 1) * size] for i in range(n)]
        lists = [_texts(rows[name]) for name in self.scalars]
        keys = [f'"{name}":' for name in self.scalars]
        texts = [
            f"{{{','.join(map(str.__add__, keys, values))}}}" for values in zip(*lists, strict=True)
        ]
        own = self.own_columns(rows)
        rewards, *flags = ([None] * n if values is None else values for values in own)
        return Columns(blobs, texts or [None] * n, rewards, *flags)

    def steps(self, rows: NDArray[Any]) -> list[PackedRow]:
        """Return rows one by one, encoded."""
        raw, size, n = rows.tobytes(), self.size, len(rows)
        own = [[None] * n if values is None else values for values in self.own_columns(rows)]
        blobs = (raw[i * size : (i + 1) * size] for i in range(n))
        return list(map(PackedRow, blobs, *own))

    def chunks(self, rows: NDArray[Any], key: str) -> list[PackedChunk]:
        """Return the steps of a whole episode as chunks.

        Args:
            rows: Structured array of shape (n,).
            key: Id of the episode.
        """
        columns: dict[str, Any] = {name: rows[name] for name in self.names.values()}
        reward, *flags = (self.own.get(name) for name in ("reward", "terminated", "truncated"))
        for name, own in zip(("terminated", "truncated"), flags, strict=True):
            columns[name] = None if own is None else rows[own]
        packed = pack_columns(self._episode_layout, {**columns, "task_id": key}, episode=key).chunks
        if reward is None:
            return packed
        values = _reals(rows[reward])
        # Not by `pack_columns`: it tags NaN and -0.0, and a tag stays when the step is replaced.
        return [
            replace(chunk, reward=stored_values(values[chunk.t : chunk.t + chunk.n_steps], "f8"))
            for chunk in packed
            if chunk.t is not None
        ]

    def own_columns(self, rows: NDArray[Any]) -> list[list[Any] | None]:
        """Return reward, terminated and truncated of rows; None where no field is that."""
        reward, *flags = (self.own.get(name) for name in ("reward", "terminated", "truncated"))
        return [
            None if reward is None else _reals(rows[reward]),
            *(None if name is None else rows[name].tolist() for name in flags),
        ]


def _reals(values: NDArray[Any]) -> list[float | None]:
    """Return rewards as the database has them: no NaN, and no negative zero."""
    found: list[float | None] = (values.astype(np.float64) + 0.0).tolist()
    return [None if value != value else value for value in found]


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
        self._own = [
            None if name is None else self._row[name]
            for name in map(rows.own.get, ("reward", "terminated", "truncated"))
        ]

    def pack(self, data: Mapping[str, Any]) -> tuple[list[Any], PackedRow]:
        """Return the value to report for each field, and the step.

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
        reward, *flags = (None if own is None else own.item() for own in self._own)
        if reward is not None:
            reward = encode_real(reward, "reward_t", "reward", {})
        return stored, PackedRow(self._row.tobytes(), reward, *flags)


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


def _texts(values: NDArray[Any]) -> list[str]:
    """Return the JSON of each number, as a chunk has it."""
    own = comparable_values(values)
    if isinstance(own, list):
        return [orjson.dumps(value).decode() for value in own]
    listed = values_json(own)
    return listed[1:-1].split(",") if listed and len(own) else []
