"""Converts the values that callers give to arrays of a field's dtype and shape."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.config.declared_fields import DeclaredField
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.compat.memmap.rows.tensors import is_tensor

# Values of these types always fit, except integers: numpy raises for one that does not fit.
_NATIVE = {"int": int, "uint8": int, "bool": bool, "float": float}
_MAX_FLOAT = 3e38


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return the value of a field as an array.

    Raises:
        MemmapTypeError: The value is not a number, an array of numbers or a list of numbers.
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


def is_scalar(value: Any) -> bool:
    """Return True for a number of Python or numpy."""
    return isinstance(value, (int, float, np.generic))


def cast(track: DeclaredField, value: Any) -> NDArray[Any]:
    """Return values as their field holds them, as numpy assigns: it cuts and wraps silently."""
    with np.errstate(invalid="ignore", over="ignore"):
        return as_array(track.name, value).astype(track.dtype)


def full(track: DeclaredField, value: Any) -> NDArray[Any]:
    """Return a scalar as an array of the shape of its field.

    Raises:
        OverflowError: An integer that the field cannot hold.
    """
    kind = type(value)
    if kind is _NATIVE[track.kind] and (kind is not float or abs(value) < _MAX_FLOAT):
        if not track.shape:
            return np.array(value, track.dtype)
        return np.full(track.shape, value, track.dtype)
    if isinstance(value, np.generic) and value.dtype == track.dtype and not track.shape:
        return np.array(value)
    if isinstance(value, float):
        value = np.float64(value)
    with np.errstate(invalid="ignore", over="ignore"):
        found: NDArray[Any] = np.full(track.shape, value, track.dtype)
    return found


def exact(track: DeclaredField, value: Any) -> NDArray[Any]:
    """Return a value as its field holds it.

    Raises:
        MemmapError: It has another shape.
    """
    array = as_array(track.name, value)
    if array.shape != track.shape:
        raise wrong_shape(track, array.shape)
    return cast(track, array)


def squeezed(track: DeclaredField, array: NDArray[Any], n_leading: int) -> NDArray[Any]:
    """Return an array of values with `()` and `(1,)` converted into each other.

    Args:
        track: The field.
        array: Shape (*leading, *shape of one value).
        n_leading: Number of leading axes.
    """
    own = array.shape[n_leading:]
    if own == (1,) and track.shape == ():
        return array.reshape(array.shape[:n_leading])
    if own == () and track.shape == (1,) and array.ndim == n_leading:
        return array[..., None]
    return array


def wrong_shape(track: DeclaredField, shape: tuple[int, ...]) -> MemmapError:
    """Return the error of a value of another shape."""
    return MemmapError(f"field {track.name} - invalid shape {shape} - shape must be {track.shape}")
