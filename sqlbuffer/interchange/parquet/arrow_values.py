"""Columns of Arrow as arrays and lists."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FileImportError
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.interchange.parquet.arrow_schema import is_pair, items_of, load_pyarrow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def whole(column: Any) -> Any:
    """Return a column of a table as one array."""
    pa = load_pyarrow()
    found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(found, pa.ChunkedArray):
        found = found.chunk(0) if found.num_chunks else pa.array([], found.type)
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def nulls(column: Any) -> NDArray[np.bool_]:
    """Return where a column has no value."""
    found: NDArray[np.bool_] = whole(column).is_null().to_numpy(zero_copy_only=False)
    return found


def reals(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return numbers, and flags of missing ones."""
    pa, array = load_pyarrow(), whole(column)
    found = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.array(found, np.float64), nulls(array)


def integers(column: Any, missing: int = 0) -> NDArray[np.int64]:
    """Return integers, with another number for missing ones."""
    pa = load_pyarrow()
    return np.array(whole(column).cast(pa.int64()).fill_null(missing).to_numpy(), np.int64)


def texts(column: Any) -> list[Any]:
    """Return texts; None for missing ones."""
    found: list[Any] = whole(column).to_pylist()
    return found


def times(column: Any) -> list[Any]:
    """Return times; None for missing ones. Arrow itself would load pandas for its zones."""
    pa = load_pyarrow()
    since = whole(column).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if each is None else _EPOCH + timedelta(microseconds=each) for each in since]


def _numbers(array: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found if found.dtype == dtype else found.astype(dtype)


def items(spec: FieldSpec, array: Any) -> NDArray[Any]:
    """Return the items of a field, one after the other, shape (n,)."""
    pa, dtype = load_pyarrow(), spec.dtype
    if is_pair(dtype):
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.ascontiguousarray(_numbers(array, part)).view(dtype)
    if dtype.kind == "U":
        return np.array(["" if text is None else text for text in array.to_pylist()], dtype)
    if dtype.kind == "S":
        return np.array([b"" if text is None else text for text in array.to_pylist()], dtype)
    if pa.types.is_fixed_size_binary(array.type):
        zero = bytes(dtype.itemsize)
        raw = b"".join([zero if item is None else item for item in array.to_pylist()])
        return np.frombuffer(raw, dtype)
    if array.null_count:
        array = array.fill_null(False if dtype.kind == "b" else 0)
    return _numbers(array, dtype)


def field_values(spec: FieldSpec, column: Any) -> Any:
    """Return the values of a typed field: an array of shape (n, *shape), or n arrays of their own
    shapes. Null becomes zeros or an empty array.

    Args:
        spec: The field.
        column: A column with the type that `field_type` says.

    Raises:
        FileImportError: A value of another length.
    """
    array = whole(column)
    n, each = len(array), items_of(spec)
    if spec.is_variable:
        return _ragged(spec, array)
    if each is None:
        return items(spec, array)
    # `values` has the whole array that this is a part of, with null values.
    flat = array.values.slice(array.offset * each, n * each)
    return items(spec, flat).reshape(n, *spec.shape)


def _ragged(spec: FieldSpec, array: Any) -> list[NDArray[Any]]:
    import pyarrow.compute as pc

    factor = 2 if is_pair(spec.dtype) else 1
    sizes = np.array(pc.list_value_length(array).fill_null(0).to_numpy(), np.int64) // factor
    ends = np.cumsum(sizes).tolist()
    flat = items(spec, array.flatten())  # without null values
    starts = [0, *ends[:-1]]
    try:
        return [
            flat[start:end].reshape(_shape(spec, end - start))
            for start, end in zip(starts, ends, strict=True)
        ]
    except ValueError as error:
        raise FileImportError(f"column {spec.name!r}: {error}; expected {spec}") from None


def _shape(spec: FieldSpec, n_items: int) -> tuple[int, ...]:
    return spec.shape if n_items else tuple(0 if n == -1 else n for n in spec.shape)
