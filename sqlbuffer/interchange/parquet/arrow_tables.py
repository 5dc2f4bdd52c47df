"""Batches of columns as Arrow tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sqlbuffer.errors import FieldError
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.interchange.parquet.arrow_schema import (
    StepSchema,
    built_in_types,
    field_type,
    is_pair,
    item_type,
    load_pyarrow,
)
from sqlbuffer.steps.column_batch import ColumnBatch, RaggedValues, StepIds


def step_table(batch: ColumnBatch, schema: StepSchema, arrow: Any) -> Any:
    """Return a batch as an Arrow table.

    Args:
        batch: The steps.
        schema: Its columns.
        arrow: The same, as Arrow has it.

    Raises:
        FieldError: A text that is not Unicode; the message names the column.
    """
    pa, types = load_pyarrow(), built_in_types()
    run_of = pa.array(batch.run_of)
    columns = []
    for name, own in schema.built_in.items():
        try:
            columns.append(_built_in(batch, own, types[own], run_of))
        except UnicodeEncodeError as error:
            raise _not_text(name, error) from None
    for name, spec in schema.specs.items():
        try:
            columns.append(field_array(spec, batch.fields[name]))
        except UnicodeEncodeError as error:
            raise _not_text(name, error) from None
    return pa.Table.from_arrays(columns, schema=arrow)


def _not_text(name: str, error: UnicodeEncodeError) -> FieldError:
    return FieldError(
        f"column {name!r} has {error.object!r}, a lone surrogate, which files cannot hold; leave "
        f"the column out with columns=[...]"
    )


def _built_in(batch: ColumnBatch, name: str, kind: Any, run_of: Any) -> Any:
    pa = load_pyarrow()
    if name == "seq":
        return pa.array(batch.seq)
    if name in batch.shared:
        return pa.array(batch.shared[name], kind).take(run_of)
    values = batch.own.get(name)
    if values is None:
        if name == "uses":
            return pa.array(np.zeros(len(batch), np.int64))
        return pa.nulls(len(batch), kind)
    if isinstance(values, StepIds):
        return _id_array(values)
    return pa.array(values, kind, mask=batch.is_null.get(name), from_pandas=False)


def _id_array(ids: StepIds) -> Any:
    import pyarrow.compute as pc

    pa = load_pyarrow()
    prefixes = pa.array(ids.prefixes, pa.string()).take(pa.array(ids.run_of))
    numbers = pa.array(ids.numbers).cast(pa.string())
    found = pc.binary_join_element_wise(prefixes, numbers, "/")
    if not ids.given:
        return found
    is_given = np.zeros(len(ids), bool)
    is_given[list(ids.given)] = True
    own = pa.array(list(map(ids.given.get, range(len(ids)))), pa.string())
    return pc.if_else(pa.array(is_given), own, found)


def field_array(spec: FieldSpec, values: Any, nulls: Any = None) -> Any:
    """Return the values of a typed field as an Arrow array.

    Args:
        spec: The field.
        values: An array of shape (n, *shape), or `RaggedValues`.
        nulls: Where there is no value.
    """
    pa, kind = load_pyarrow(), field_type(spec)
    mask = None if nulls is None or not nulls.any() else pa.array(nulls)
    if isinstance(values, RaggedValues):
        factor = 2 if is_pair(spec.dtype) else 1
        offsets = pa.array((values.offsets * factor).astype(np.int32))
        found = pa.ListArray.from_arrays(offsets, _items(spec, values.values), type=kind)
        return found if mask is None else _masked(found, mask)
    items = _items(spec, values.reshape(-1))
    if not pa.types.is_fixed_size_list(kind):
        return items if mask is None else _masked(items, mask)
    return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=mask)


def _masked(array: Any, mask: Any) -> Any:
    import pyarrow.compute as pc

    return pc.if_else(mask, load_pyarrow().scalar(None, array.type), array)


def _items(spec: FieldSpec, flat: Any) -> Any:
    pa, kind = load_pyarrow(), item_type(spec.dtype)
    if is_pair(spec.dtype):
        return pa.array(np.ascontiguousarray(flat).view(f"f{spec.dtype.itemsize // 2}"))
    if spec.dtype.kind in "biuf" and spec.dtype.itemsize <= 8:
        return pa.array(flat)
    if spec.dtype.kind in "US":
        return pa.array(flat.tolist(), kind)
    return pa.array([item.tobytes() for item in flat], kind)


def concatenated(tables: Sequence[Any]) -> Any:
    """Return tables as one, each column in one piece."""
    return load_pyarrow().concat_tables(tables).combine_chunks()
