"""One row's typed fields as bytes, for writers that have one row at a time."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.declarations import VARIABLE
from sqlbuffer.fields.specs import FieldSpec

Cast = Callable[[Any], Any]


class RowPacker:
    """Packs rows as `Layout.pack` does, at a few microseconds each; not for several threads.

    Args:
        layout: Where each field lies.
        casting: See `FieldSpec.cast_rows`.

    Example:
        >>> layout = Layout({"x": FieldSpec.parse("x", ("float32", (2,)))})
        >>> len(RowPacker(layout).pack({"x": np.ones(2, np.float32)}))
        8
    """

    def __init__(self, layout: Layout, casting: str = "same_kind") -> None:
        self._row: NDArray[Any] = np.zeros(1, layout.record)
        casts = [(spec, value_cast(spec, casting)) for spec in layout.specs.values()]
        self._plain = [
            (spec.name, self._row[spec.name], cast) for spec, cast in casts if not spec.is_variable
        ]
        self._variable = [(spec, cast) for spec, cast in casts if spec.is_variable]

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of a row: a copy of its values.

        Args:
            values: A value for each field; others are left alone. A field with a default may be
                left out or None.

        Raises:
            FieldError: A missing field, another shape, or a value that the field cannot hold.
        """
        for name, place, cast in self._plain:
            place[0] = cast(values.get(name))
        tails = [self._tail(spec, cast(values.get(spec.name))) for spec, cast in self._variable]
        return b"".join([self._row.tobytes(), *tails]) if tails else self._row.tobytes()

    def scalars(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what the row that was packed last has in fields without a shape."""
        return {name: self._row[name][0].item() for name in names}

    def _tail(self, spec: FieldSpec, value: NDArray[Any]) -> bytes:
        self._row[spec.name][0] = value.shape[spec.shape.index(VARIABLE)]
        return value.tobytes()


def value_cast(spec: FieldSpec, casting: str) -> Cast:
    """Return what casts the value of one row, None standing for the default; maybe not a copy.

    Values that need no cast, which is what environments give, are spared the checks: they take ten
    times as long as the copy.
    """
    dtype, shape = spec.dtype, spec.shape
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low, high = (int(limits.min), int(limits.max)) if limits is not None and not shape else (0, -1)

    def cast(value: Any) -> Any:
        if value is None:
            value = spec.default_value
            if value is None:
                raise FieldError(f"field {spec.name!r} is missing: expected {spec}")
        kind = type(value)
        if kind is int:
            if low <= value <= high:
                return value
        elif (kind is np.ndarray or isinstance(value, np.generic)) and (
            value.dtype == dtype and value.shape == shape
        ):
            return value
        return spec.cast(value, casting=casting)

    return cast
