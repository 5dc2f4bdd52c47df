"""What callers give as values, as arrays; and rows of fields as bytes."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec import Encoder
from sqlbuffer.compat.memmap.config import core_names, own_columns
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.compat.memmap.tracks import INTERNAL, Track
from sqlbuffer.packing import Layout
from sqlbuffer.storage.records import encode_real

# Larger values of an episode are kept as bytes only.
MAX_SAID_ITEMS = 256


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return what was given for a field as an array.

    Raises:
        MemmapTypeError: It is no number, and no array or list of them.
    """
    if type(value) is np.ndarray:
        array = value
    elif is_tensor(value):
        value = value.detach().cpu()
        array = np.asarray(value if value.dtype.itemsize != 2 else value.double())
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise MemmapError(f"field {name} - {error}") from None
        if array.dtype == object and isinstance(value, (list, tuple)):
            array = np.asarray([as_array(name, item) for item in value])
    if array.dtype.kind not in "biuf":
        raise MemmapTypeError(
            f"field {name} - expected numbers, booleans, or an array, tensor or list of them, got "
            f"{value!r:.200}"
        )
    return array


def is_tensor(value: Any) -> bool:
    """Tell whether it is a tensor of torch, which nobody has who never imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_scalar(value: Any) -> bool:
    """Tell whether it is a number of Python or numpy."""
    return isinstance(value, (int, float, np.generic))


def cast(track: Track, value: Any) -> NDArray[Any]:
    """Return values as their field holds them, as numpy assigns: it cuts and wraps silently."""
    with np.errstate(invalid="ignore", over="ignore"):
        return as_array(track.name, value).astype(track.dtype)


def full(track: Track, value: Any) -> NDArray[Any]:
    """Return a scalar as an array of the shape of its field.

    Raises:
        OverflowError: An integer that the field cannot hold.
    """
    if isinstance(value, float):
        value = np.float64(value)
    with np.errstate(invalid="ignore", over="ignore"):
        found: NDArray[Any] = np.full(track.shape, value, track.dtype)
    return found


def exact(track: Track, value: Any) -> NDArray[Any]:
    """Return a value as its field holds it.

    Raises:
        MemmapError: It has another shape.
    """
    array = as_array(track.name, value)
    if array.shape != track.shape:
        raise wrong_shape(track, array.shape)
    return cast(track, array)


def squeezed(track: Track, array: NDArray[Any], n_leading: int) -> NDArray[Any]:
    """Return an array of values with `()` and `(1,)` converted into each other.

    Args:
        track: The field.
        array: Shape (*leading, *shape of one value).
        n_leading: How many leading axes.
    """
    own = array.shape[n_leading:]
    if own == (1,) and track.shape == ():
        return array.reshape(array.shape[:n_leading])
    if own == () and track.shape == (1,) and array.ndim == n_leading:
        return array[..., None]
    return array


def wrong_shape(track: Track, shape: tuple[int, ...]) -> MemmapError:
    """Return the error of a value of another shape."""
    return MemmapError(f"field {track.name} - invalid shape {shape} - shape must be {track.shape}")


class Columns(NamedTuple):
    """What the database has of a row beside its keys."""

    arrays: bytes
    fields: str | None
    reward: float | None
    terminated: bool | None
    truncated: bool | None


class RowCoder:
    """Rows of fields as the database has them.

    Args:
        tracks: The fields.
        layout: How the database lays out their bytes.
    """

    def __init__(self, tracks: Mapping[str, Track], layout: Layout) -> None:
        self.tracks, self.layout = dict(tracks), layout
        self.names = core_names(tracks)
        self._own = {column: self.names[name] for column, name in own_columns(tracks).items()}
        self._scalars = [self.names[n] for n, track in tracks.items() if track.shape == ()]
        self.blank = np.zeros((), layout.record)
        for name, track in tracks.items():
            self.blank[self.names[name]] = track.fill
        self.size = layout.size_bytes

    def blanks(self, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """Return rows in which nothing was written."""
        return np.full(shape, self.blank)

    def columns(self, rows: NDArray[Any]) -> list[Columns]:
        """Return what the database has of rows.

        Args:
            rows: Structured array of shape (n,).
        """
        raw, size, n = rows.tobytes(), self.size, len(rows)
        blobs = [raw[i * size : (i + 1) * size] for i in range(n)]
        scalars = {name: rows[name].tolist() for name in self._scalars}
        encoder = Encoder()
        texts: Sequence[str | None] = [None] * n
        if scalars:
            texts = [
                encoder.json(dict(zip(scalars, values, strict=True)), "fields")
                for values in zip(*scalars.values(), strict=True)
            ]
        own = [
            scalars[self._own[name]] if name in self._own else [None] * n
            for name in ("reward", "terminated", "truncated")
        ]
        rewards = [_real(reward) for reward in own[0]]
        return [Columns(*row) for row in zip(blobs, texts, rewards, own[1], own[2], strict=True)]


def _real(value: Any) -> float | None:
    """Return what the column of rewards holds: no NaN, and no negative zero."""
    return None if value is None else encode_real(value, "reward_t", "reward", {})


class MetaCoder:
    """What is kept of an episode, as bytes.

    Args:
        tracks: The fields, those among them that are not kept so left out.
    """

    def __init__(self, tracks: Mapping[str, Track]) -> None:
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

    def said(self, row: NDArray[Any]) -> str | None:
        """Return the values as JSON, for the list of episodes: those that are not large."""
        values = {
            name: row[self.keys[name]].tolist()
            for name, track in self.tracks.items()
            if np.prod(track.shape, dtype=int) <= MAX_SAID_ITEMS
        }
        return Encoder().json(values, "meta") if values else None
