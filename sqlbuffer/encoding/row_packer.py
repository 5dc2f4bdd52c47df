"""One row's typed fields as bytes, for writers that have one row at a time."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import LENGTH, Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.declarations import VARIABLE
from sqlbuffer.fields.specs import Casting, FieldSpec

ToBytes = Callable[[Any], bytes]


class RowPacker:
    """Packs rows as `Layout.pack` does, at a microsecond or two each.

    Args:
        layout: Where each field lies.
        casting: See `FieldSpec.cast_rows`.

    Example:
        >>> layout = Layout({"x": FieldSpec.parse("x", ("float32", (2,)))})
        >>> len(RowPacker(layout).pack({"x": np.ones(2, np.float32)}))
        8
    """

    def __init__(self, layout: Layout, casting: Casting = "same_kind") -> None:
        self._casting = casting
        # One object for each dtype of numbers, so that `is` compares them.
        self._fields = [
            (name, np.dtype(spec.dtype.str), spec.shape, _to_bytes(spec, casting))
            for name, spec in layout.specs.items()
        ]
        self._variable = [
            (i, spec) for i, spec in enumerate(layout.specs.values()) if spec.is_variable
        ]

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of a row: a copy of its values.

        Args:
            values: A value for each field; others are left alone. A field with a default may be
                left out or None.

        Raises:
            FieldError: A missing field, another shape, or a value that the field cannot hold.
        """
        parts = []
        for name, dtype, shape, to_bytes in self._fields:
            value: Any = values.get(name)
            # Environments give what needs no cast; to check and cast takes ten times as long.
            is_cast = type(value) is np.ndarray and value.dtype is dtype and value.shape == shape
            parts.append(value.tobytes() if is_cast else to_bytes(value))
        for i, spec in self._variable:
            cast = spec.cast(_given(spec, values.get(spec.name)), casting=self._casting)
            length = cast.shape[spec.shape.index(VARIABLE)]
            parts[i] = length.to_bytes(LENGTH.itemsize, "little")
            parts.append(cast.tobytes())
        return b"".join(parts)


def _given(spec: FieldSpec, value: Any) -> Any:
    """Return a value, or the default of its field instead of None."""
    if value is None:
        value = spec.default_value
        if value is None:
            raise FieldError(f"field {spec.name!r} is missing: expected {spec}")
    return value


def _to_bytes(spec: FieldSpec, casting: Casting) -> ToBytes:
    """Return what casts the value of one row to bytes; to none where the length varies."""
    dtype, shape, size = spec.dtype, spec.shape, spec.dtype.itemsize
    is_integer, is_signed = dtype.kind in "iu" and not shape, dtype.kind == "i"

    def to_bytes(value: Any) -> bytes:
        if type(value) is int and is_integer:
            try:
                return value.to_bytes(size, "little", signed=is_signed)
            except OverflowError:
                pass  # the cast says so
        elif isinstance(value, (np.ndarray, np.generic)) and _is_cast(value, dtype, shape):
            return value.tobytes()
        cast: NDArray[Any] = spec.cast(_given(spec, value), casting=casting)
        return cast.tobytes()

    return (lambda _: b"") if spec.is_variable else to_bytes


def _is_cast(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    # Scalars of text have lost their padding; masked arrays are refused by the cast.
    return (
        value.dtype == dtype
        and value.shape == shape
        and dtype.kind not in "SU"
        and not isinstance(value, np.ma.MaskedArray)
    )
