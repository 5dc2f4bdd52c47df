"""Columns of steps as Arrow: schemas, tables and values."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from orjson import loads

from sqlbuffer.codec.plain_values import dumps
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError, FileImportError, MissingExtraError, install
from sqlbuffer.fields import FieldSpec
from sqlbuffer.interchange.output import named_damage
from sqlbuffer.steps import ColumnBatch, RaggedValues, StepIds
from sqlbuffer.storage.copies.parts import TableRows, time_text
from sqlbuffer.storage.copies.source import typed_columns
from sqlbuffer.storage.schema.expressions import utc_time
from sqlbuffer.storage.scratch_lists import ScratchLists

METADATA_KEY = b"sqlbuffer"
FORMAT_VERSION = 1


def load_pyarrow() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(f"Parquet needs pyarrow; run {install('arrow')}") from None
    return pyarrow


def built_in_types() -> dict[str, Any]:
    """Return the Arrow type of each built-in column of steps."""
    pa = load_pyarrow()
    time = pa.timestamp("us", tz="UTC")
    kinds = {
        pa.int64(): ("seq", "first_seq", "t", "step", "model_version", "uses"),
        pa.string(): (
            "id", "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "group_id",
            "parent_id", "session_id", "quarantine_reason", "state", "actions", "messages", "extra",
        ),
        pa.float64(): ("execute_time", "reward", "advantage", "value", "priority"),
        pa.bool_(): ("terminated", "truncated"),
        time: ("inserted_at", "quarantined_at"),
        pa.binary(): ("arrays",),
    }  # fmt: skip
    return {name: kind for kind, names in kinds.items() for name in names}


def item_type(dtype: np.dtype[Any]) -> Any:
    """Return the Arrow type of one item of a field; of a complex number, of its two parts."""
    pa = load_pyarrow()
    if dtype.kind == "U":
        return pa.string()
    if dtype.kind == "S":
        return pa.binary()
    if is_pair(dtype):
        return pa.float32() if dtype.itemsize == 8 else pa.float64()
    if dtype.itemsize <= 8:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    return pa.binary(dtype.itemsize)  # a float of more than 64 bits: its bytes


def is_pair(dtype: np.dtype[Any]) -> bool:
    """Return True if an item is two numbers: a complex one of 64 or 128 bits."""
    return dtype.kind == "c" and dtype.itemsize <= 16


def items_of(spec: FieldSpec) -> int | None:
    """Return how many Arrow items a value of a field has; None: that varies, or it is a scalar."""
    if spec.is_variable or (not spec.shape and not is_pair(spec.dtype)):
        return None
    return math.prod(spec.shape) * (2 if is_pair(spec.dtype) else 1)


def field_type(spec: FieldSpec) -> Any:
    """Return the Arrow type of a field: a list of fixed size, a list, or a scalar."""
    pa, items = load_pyarrow(), items_of(spec)
    # No item is missing: a quarter less time to write.
    item = pa.field("element", item_type(spec.dtype), nullable=False)
    if spec.is_variable:
        return pa.list_(item)
    return item.type if items is None else pa.list_(item, items)


@dataclass(frozen=True)
class StepSchema:
    """The columns of steps in files.

    Attributes:
        built_in: The built-in columns, by the names that they have in the file: another one where
            a typed field has the same name.
        specs: The typed fields.
    """

    built_in: dict[str, str]
    specs: dict[str, FieldSpec]

    @classmethod
    def of(cls, built_in: Sequence[str], specs: Mapping[str, FieldSpec]) -> "StepSchema":
        """Return the schema of columns.

        Args:
            built_in: Built-in columns.
            specs: The typed fields by name.
        """
        return cls({f"{n}_" if n in specs else n: n for n in built_in}, dict(specs))

    def arrow(self, metadata: Mapping[str, Any] | None = None) -> Any:
        """Return the Arrow schema, with metadata of the buffer."""
        pa, types = load_pyarrow(), built_in_types()
        columns = [pa.field(name, types[built_in]) for name, built_in in self.built_in.items()]
        for name, spec in self.specs.items():
            field_metadata = {"spec": json.dumps(spec.to_json())}
            columns.append(pa.field(name, field_type(spec), metadata=field_metadata))
        texts = None if metadata is None else {METADATA_KEY: json.dumps(metadata)}
        return pa.schema(columns, metadata=texts)


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
    for name, built_in in schema.built_in.items():
        try:
            columns.append(_built_in(batch, built_in, types[built_in], run_of))
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
    made_ids = pc.binary_join_element_wise(prefixes, numbers, "/")
    if not ids.given:
        return made_ids
    is_given = np.zeros(len(ids), bool)
    is_given[list(ids.given)] = True
    given_ids = pa.array(list(map(ids.given.get, range(len(ids)))), pa.string())
    return pc.if_else(pa.array(is_given), given_ids, made_ids)


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
        lists = pa.ListArray.from_arrays(offsets, _items(spec, values.values), type=kind)
        return lists if mask is None else _masked(lists, mask)
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


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def whole(column: Any) -> Any:
    """Return a column of a table as one array."""
    pa = load_pyarrow()
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def nulls(column: Any) -> NDArray[np.bool_]:
    """Return where a column has no value."""
    is_null: NDArray[np.bool_] = whole(column).is_null().to_numpy(zero_copy_only=False)
    return is_null


def reals(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return numbers, and flags of missing ones."""
    pa, array = load_pyarrow(), whole(column)
    values = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.array(values, np.float64), nulls(array)


def integers(column: Any, missing: int = 0) -> NDArray[np.int64]:
    """Return integers, with another number for missing ones."""
    pa = load_pyarrow()
    return np.array(whole(column).cast(pa.int64()).fill_null(missing).to_numpy(), np.int64)


def texts(column: Any) -> list[Any]:
    """Return texts; None for missing ones."""
    values: list[Any] = whole(column).to_pylist()
    return values


def times(column: Any) -> list[Any]:
    """Return times; None for missing ones. Arrow itself would load pandas for its zones."""
    pa = load_pyarrow()
    since = whole(column).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [
        None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
        for microseconds in since
    ]


def _numbers(array: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers if numbers.dtype == dtype else numbers.astype(dtype)


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
    n, n_items = len(array), items_of(spec)
    if spec.is_variable:
        return _ragged(spec, array)
    if n_items is None:
        return items(spec, array)
    # `values` has the whole array that this is a part of, with null values.
    flat = array.values.slice(array.offset * n_items, n * n_items)
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


EPISODES_AT_ONCE = 2_000
# The columns by their names in the table of episodes.
_NAMES = {
    "key": "episode_id", "task_id": "task_id", "agent_id": "agent_id", "group_id": "group_id",
    "parent_id": "parent_id", "status": "status",
    "length": "length", "return": "episode_return", "reward": "reward", "first_seq": "first_seq",
    "last_seq": "last_seq", "model_version": "model_version", "meta": "meta",
    "started_at": "started_at", "ended_at": "ended_at", "next_t": "next_t",
    "attempt": "attempt", "writers": "writers", "verdicts": "verdicts",
    "is_implied": "is_implied", "was_used": "was_used", "by_arrival": "by_arrival",
}  # fmt: skip


def episode_schema(observations: Mapping[str, FieldSpec], metadata: Mapping[str, Any]) -> Any:
    """Return the Arrow schema of episodes.

    Args:
        observations: Fields of an observation. The final observation of an episode is in columns
            `final_<field>`.
        metadata: Metadata of the buffer.
    """
    pa = load_pyarrow()
    time = pa.timestamp("us", tz="UTC")
    kinds = {
        **dict.fromkeys(("length", "first_seq", "last_seq", "model_version"), pa.int64()),
        **dict.fromkeys(("next_t", "attempt"), pa.int64()),
        **dict.fromkeys(("is_implied", "was_used", "by_arrival"), pa.bool_()),
        **dict.fromkeys(("episode_return", "reward"), pa.float64()),
        **dict.fromkeys(("started_at", "ended_at"), time),
    }
    columns = [pa.field(name, kinds.get(name, pa.string())) for name in _NAMES.values()]
    columns += [
        pa.field(f"final_{n}", field_type(s), metadata={"spec": json.dumps(s.to_json())})
        for n, s in observations.items()
    ]
    return pa.schema(columns, metadata={METADATA_KEY: json.dumps(metadata)})


def episode_tables(
    page: TableRows, observations: Layout, schema: Any, seen: ScratchLists | None
) -> Any:
    """Return a page of episodes as an Arrow table.

    Args:
        page: Rows of the table of episodes.
        observations: How the final observation is packed.
        schema: Of `episode_schema`.
        seen: The id and the task of those that are wanted; None: all are.
    """
    pa = load_pyarrow()
    if seen is not None:
        keys = zip(page.values["key"], page.values["task_id"], strict=True)
        page = page.where([key in seen for key in keys])
    facts = page.values
    n = len(page)
    # For an open episode, changes by annotations are already in the rewards of its steps.
    returns = [
        None if status == "open" else value
        for status, value in zip(facts["status"], facts["return"], strict=True)
    ]
    values: dict[str, Any] = {
        **{shown: facts[name] for name, shown in _NAMES.items()},
        "episode_return": returns,
        **{
            name: [t and dumps(loads(t)) for t in facts[name]]
            for name in ("meta", "writers", "verdicts")
        },
        **{name: list(map(bool, facts[name])) for name in ("is_implied", "was_used", "by_arrival")},
        "started_at": list(map(utc_time, facts["started_at"])),
        "ended_at": list(map(utc_time, facts["ended_at"])),
    }
    columns = [pa.array(values[name], schema.field(name).type) for name in _NAMES.values()]
    if observations.specs:
        raw = observations.expand(facts["final_arrays"])
        size = observations.size_bytes
        heads = bytearray(b"").join([bytes(size) if r is None else r[:size] for r in raw])
        records = (
            np.frombuffer(heads, observations.record) if n else np.empty(0, observations.record)
        )
        tails = [b"" if r is None else bytes(r[size:]) for r in raw]
        nulls = np.array([r is None for r in raw], bool)
        finals = typed_columns(observations, records, tails, list(observations.specs))
        columns += [field_array(observations.specs[name], finals[name], nulls) for name in finals]
    return pa.Table.from_arrays(columns, schema=schema)


def stored_episodes(
    path: Path, observations: Layout, *, has_counts: bool
) -> Iterator[dict[str, list[Any]]]:
    """Yield pages of the columns of the table of episodes, in the forms of SQLite.

    Args:
        path: The file that `episode_tables` filled.
        observations: How the final observation is packed.
        has_counts: The buffer counts the steps that are left of each episode.
    """
    import pyarrow.parquet as pq

    with named_damage(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(batch_size=EPISODES_AT_ONCE):
            table = load_pyarrow().Table.from_batches([batch])
            page: dict[str, list[Any]] = {
                name: table[shown].to_pylist()
                for name, shown in _NAMES.items()
                if not name.endswith("_at")
            }
            for name in ("started_at", "ended_at"):
                moments = times(table[_NAMES[name]])
                page[name] = [None if time is None else time_text(time) for time in moments]
            page["n_rows"] = [0 if has_counts else None] * len(table)
            page["final_arrays"] = _packed(table, observations)
            yield page


def _packed(table: Any, observations: Layout) -> list[Any]:
    specs = observations.specs
    if not specs:
        return [None] * len(table)
    values = {name: field_values(spec, table[f"final_{name}"]) for name, spec in specs.items()}
    missing = nulls(table[f"final_{next(iter(specs))}"]).tolist()
    rows = observations.compress(observations.pack(values, len(table)))
    return [
        None if is_none or row is None else bytes(row)
        for is_none, row in zip(missing, rows, strict=True)
    ]
