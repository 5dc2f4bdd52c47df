"""Append the steps of Parquet files to a buffer as new ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from orjson import JSONDecodeError, loads

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.codec.decoder import decode
from sqlbuffer.copying.buffer_copy import OnProgress
from sqlbuffer.errors import EpisodeExistsError, FieldError, FileImportError
from sqlbuffer.fields.declarations import VARIABLE
from sqlbuffer.fields.near_names import near_name
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.front.step_encodings import Batch
from sqlbuffer.front.step_writer import StepWriter
from sqlbuffer.interchange.import_report import ImportCounts
from sqlbuffer.interchange.manifest import named_damage
from sqlbuffer.interchange.parquet.arrow_schema import built_in_types, load_pyarrow
from sqlbuffer.interchange.parquet.arrow_values import nulls, whole
from sqlbuffer.interchange.parquet.parquet_files import ParquetFiles
from sqlbuffer.steps.data_rows import DataRow, Experience, ExpMeta

_OTHER_NAMES = {"reward_t": "reward", "adv_t": "advantage", "v_t": "value", "action": "actions"}
_PAYLOADS = ("state", "actions", "messages", "extra")
_META = (
    "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "session_id", "model_version",
    "execute_time",
)  # fmt: skip
_TEXTS = ("id", "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "session_id")
# Columns that belong to a step in its own buffer, and are not appended.
_LEFT_OUT = ("seq", "first_seq", "t", "inserted_at", "uses", "quarantined_at", "quarantine_reason")


@dataclass(frozen=True)
class ColumnPlan:
    """Meaning of the columns of files.

    Attributes:
        built_in: Names of the files' columns by the names of built-in columns.
        fields: Names of the files' columns by the names of typed fields.
        specs: The typed fields of the buffer.
        is_own: True if payloads are the JSON of an export.
    """

    built_in: dict[str, str]
    fields: dict[str, str]
    specs: Mapping[str, FieldSpec]
    is_own: bool


def _meanings(files: ParquetFiles, columns: Mapping[str, Any], specs: Any) -> dict[str, str]:
    """Return what each column is; those that are left out are not in it."""
    noted = {} if files.metadata is None else files.metadata["built_in"]
    names = files.schema.names
    for name in columns:
        if name not in names:
            raise FileImportError(
                f"columns names {name!r}, which {files.path} does not have; it has "
                f"{', '.join(names)}"
            )
    found = {}
    for name in names:
        meaning = columns.get(name, noted.get(name, name))
        if meaning not in specs and meaning in _OTHER_NAMES:
            meaning = _OTHER_NAMES[meaning]
        if meaning and (meaning not in _LEFT_OUT or meaning in specs):
            found[name] = meaning
    if len(set(found.values())) < len(found):
        twice = sorted(v for v in found.values() if list(found.values()).count(v) > 1)
        raise FileImportError(f"two columns are {twice[0]!r}; name another in columns={{...}}")
    return found


def _plan(files: ParquetFiles, buffer: ReplayBuffer, columns: Mapping[str, Any]) -> ColumnPlan:
    specs, types = buffer.fields, built_in_types()
    built_in, fields = {}, {}
    for name, meaning in _meanings(files, columns, specs).items():
        if meaning in specs:
            fields[meaning] = name
        elif meaning in types and meaning != "arrays":
            built_in[meaning] = name
        elif meaning == "arrays":
            built_in["arrays"] = name
        else:
            known = [*specs, *types]
            nearest = near_name(meaning, known)
            hint = f" (did you mean {nearest}?)" if nearest else ""
            raise FileImportError(
                f"column {name!r}: buffer {buffer.name!r} has no field {meaning!r}{hint}; it has "
                f"{', '.join(specs) or 'none'}; say what the column is with "
                f"columns={{{name!r}: FIELD}} (--column {name}=FIELD), or leave it out with "
                f"columns={{{name!r}: None}} (--column {name}=)"
            )
    for name, spec in specs.items():
        if name not in fields and spec.default is None:
            raise FileImportError(
                f"{files.path} has no column {name!r}, a field of buffer {buffer.name!r} "
                f"({spec}); it has {', '.join(files.schema.names)}; say which one it is with "
                f"columns={{COLUMN: {name!r}}} (--column COLUMN={name})"
            )
    if not buffer.config.priorities.enabled:
        built_in.pop("priority", None)
    return ColumnPlan(built_in, fields, specs, files.metadata is not None)


def new_fields(files: ParquetFiles, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a new buffer for the steps of files; they follow from the columns.

    Raises:
        FileImportError: A column of which no field can be made.
    """
    types = built_in_types()
    first = next((table for _, _, table in files.batches()), files.schema.empty_table())
    return {
        meaning: _exported(files.schema.field(column)) or _declared(column, first[column])
        for column, meaning in _meanings(files, columns, ()).items()
        if meaning not in types
    }


def _exported(field: Any) -> FieldSpec | None:
    """Return the field of a buffer that a column was exported from; None of other columns."""
    spec = (field.metadata or {}).get(b"spec")
    return None if spec is None else FieldSpec.from_json(field.name, loads(spec))


def _declared(name: str, column: Any) -> Any:
    """Return the declaration of a field that can hold a column."""
    pa, kind, shape = load_pyarrow(), column.type, []
    array = whole(column)
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind, array = kind.value_type, array.flatten()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        import pyarrow.compute as pc

        sizes = set(pc.list_value_length(array).drop_null().to_pylist())
        shape.append(sizes.pop() if len(sizes) == 1 else VARIABLE)
        kind = kind.value_type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not is_number:
        raise FileImportError(
            f"column {name!r}: no typed field can be made of {column.type}; say what it is with "
            f"columns={{{name!r}: 'extra'}} (--column {name}=extra) or another built-in "
            f"column, declare the fields with fields={{...}}, or leave it out with "
            f"columns={{{name!r}: None}} (--column {name}=)"
        )
    return str(np.dtype(kind.to_pandas_dtype())), tuple(shape)


def check_files(files: ParquetFiles, buffer: ReplayBuffer, columns: Mapping[str, Any]) -> None:
    """Raise unless all steps of files can be appended to a buffer.

    Raises:
        FieldError: A value that a field cannot hold.
        FileImportError: A column does not fit, or a file is damaged; the message names it.
    """
    for _ in _encoded_parts(files, buffer, columns):
        pass


def append_files(
    files: ParquetFiles,
    buffer: ReplayBuffer,
    columns: Mapping[str, Any],
    counts: ImportCounts,
    on_progress: OnProgress | None,
) -> None:
    """Store the steps of files as new ones; `check_files` has found that they fit.

    Args:
        files: The files.
        buffer: The buffer.
        columns: See `import_parquet`.
        counts: Receives what was stored.
        on_progress: Function that is called after each part.
    """
    for place, n_steps, batch in _encoded_parts(files, buffer, columns):
        try:
            stored = buffer._writer.store(batch)
        except EpisodeExistsError as error:
            raise FileImportError(
                f"{place}: {error}; {counts.n_stored:,} steps of earlier rows are stored"
            ) from error
        counts.n_steps += n_steps
        counts.n_stored += stored.inserted
        counts.n_duplicates += stored.duplicates
        counts.n_conflicts += stored.conflicts
        if on_progress is not None:
            on_progress(counts.n_stored, counts.n_steps, range(files.n_rows))


def _encoded_parts(
    files: ParquetFiles, buffer: ReplayBuffer, columns: Mapping[str, Any]
) -> Iterator[tuple[str, int, Batch]]:
    """Yield the place of each part, its number of steps, and them as the buffer stores them."""
    plan, marks = _plan(files, buffer, columns), {path: files.mark(path) for path in files.paths}
    for path, first, table in files.batches():
        ids = [f"{marks[path]}/{first + i}" for i in range(len(table))]
        place = f"{path}, rows from {first:,} on"
        try:
            with named_damage(path):
                batch = _Part(plan, table, ids, first).encoded(buffer._writer)
        except FieldError as error:
            raise FieldError(f"{place}: {error}") from error
        yield place, len(table), batch


class _Part:
    """Some rows of a file."""

    def __init__(self, plan: ColumnPlan, table: Any, ids: list[str], first: int) -> None:
        self._plan, self._table, self._ids, self._first = plan, table, ids, first
        self._n = len(table)

    def encoded(self, writer: StepWriter) -> Batch:
        """Return them as they are stored."""
        is_rich = any(self._has(n) for n in (*_RICH, *_PAYLOADS)) or not self._plan.specs
        if not is_rich and not self._has_nulls(("reward", "terminated", "truncated")):
            keys = {"id": self._own_ids(), **self._keys()}
            return writer.encoded_columns(self._columns(), "same_kind", keys)
        priority = self._column("priority") if self._has("priority") else None
        return writer.encoded_rows(self._rows(), priority=priority)

    def _has(self, name: str) -> bool:
        own = self._plan.built_in.get(name)
        return own is not None and self._table[own].null_count < self._n

    def _has_nulls(self, names: tuple[str, ...]) -> bool:
        return any(self._has(n) and self._table[self._plan.built_in[n]].null_count for n in names)

    def _column(self, name: str) -> list[Any]:
        """Return a built-in column as a list, with None for a missing value."""
        pa = load_pyarrow()
        if not self._has(name):
            return [None] * self._n
        column = self._table[self._plan.built_in[name]]
        try:
            if name in _TEXTS:
                column = column.cast(pa.string())
            elif name == "execute_time" and pa.types.is_timestamp(column.type):
                column = column.cast(pa.timestamp("us", tz="UTC"))
                return [None if t is None else t.timestamp() for t in column.to_pylist()]
            elif name not in _PAYLOADS and name != "arrays":
                column = column.cast(built_in_types()[name])
        except pa.ArrowInvalid as error:
            raise FileImportError(
                f"column {self._plan.built_in[name]!r}: expected {name} as "
                f"{built_in_types()[name]}, got {column.type} ({error})"
            ) from None
        except pa.ArrowNotImplementedError as error:
            raise FileImportError(
                f"column {self._plan.built_in[name]!r}: expected {name} as "
                f"{built_in_types()[name]}, got {column.type} ({error})"
            ) from None
        found: list[Any] = column.to_pylist()
        return found

    def _own_ids(self) -> list[str]:
        given = self._column("id")
        return [made if own is None else own for own, made in zip(given, self._ids, strict=True)]

    def _steps(self) -> list[int]:
        given = self._column("step")
        return [self._first + i if own is None else own for i, own in enumerate(given)]

    def _fields(self) -> dict[str, Any]:
        """Return the values of typed fields, as `extend` takes them."""
        found = {}
        for name, column in self._plan.fields.items():
            found[name] = _given_values(self._plan.specs[name], column, self._table[column])
        return found

    def _columns(self) -> dict[str, Any]:
        own = {n: np.array(self._column(n)) for n in ("reward", "terminated", "truncated")
               if self._has(n)}  # fmt: skip
        return {**self._fields(), **own}

    def _keys(self) -> dict[str, Any]:
        found: dict[str, Any] = {"step": self._steps()}
        for name in ("task_id", "agent_id", "episode_id", "session_id", "model_version"):
            values = self._column(name)
            if any(value is not None for value in values):
                found[name] = [_default(name) if v is None else v for v in values]
        if self._has("priority"):
            found["priority"] = self._column("priority")
        return found

    def _payload(self, name: str, arrays: list[Any]) -> list[Any]:
        values = self._column(name)
        column = self._plan.built_in.get(name)
        found = []
        for i, value in enumerate(values):
            if not isinstance(value, str):
                found.append(value)
                continue
            try:
                found.append(decode(value, arrays[i]) if self._plan.is_own else loads(value))
            except JSONDecodeError as error:
                raise FileImportError(
                    f"column {column!r}, row {self._first + i:,}: {value[:40]!r} is no JSON "
                    f"({error})"
                ) from None
        return found

    def _rows(self) -> list[DataRow]:
        meta = {name: self._column(name) for name in _META}
        arrays = self._column("arrays")
        data = {name: self._payload(name, arrays) for name in _PAYLOADS}
        for name in ("reward", "advantage", "value", "terminated", "truncated"):
            data[name] = self._column(name)
        fields, ids, steps = self._fields(), self._own_ids(), self._steps()
        return [
            DataRow(
                ExpMeta(
                    task_id=meta["task_id"][i] or "default",
                    task_name=meta["task_name"][i],
                    agent_id=meta["agent_id"][i] or "default",
                    step=steps[i],
                    execute_time=meta["execute_time"][i],
                    pre_agent=meta["pre_agent"][i],
                    episode_id=meta["episode_id"][i],
                    model_version=meta["model_version"][i],
                    session_id=meta["session_id"][i],
                ),
                Experience(
                    state=data["state"][i],
                    actions=data["actions"][i],
                    reward_t=data["reward"][i],
                    adv_t=data["advantage"][i],
                    v_t=data["value"][i],
                    messages=data["messages"][i],
                    terminated=data["terminated"][i],
                    truncated=data["truncated"][i],
                    extra=data["extra"][i],
                ),
                ids[i],
                fields={name: values[i] for name, values in fields.items()},
            )
            for i in range(self._n)
        ]


_RICH = ("task_name", "pre_agent", "execute_time", "advantage", "value")


def _default(name: str) -> str | None:
    return "default" if name in ("task_id", "agent_id") else None


def _given_values(spec: FieldSpec, column: str, values: Any) -> Any:
    """Return the values of a column, of any type that has the items of a field."""
    pa = load_pyarrow()
    if nulls(values).any():
        raise FileImportError(
            f"column {column!r}: {values.null_count:,} rows have no value, and field "
            f"{spec.name!r} ({spec}) needs one in each step; fill them, or leave these rows out"
        )
    array, shape = whole(values), []
    sizes: Any = None
    import pyarrow.compute as pc

    while pa.types.is_nested(array.type) and not pa.types.is_struct(array.type):
        lengths = pc.list_value_length(array)
        distinct = pc.unique(lengths).to_pylist()
        if len(distinct) > 1 and (sizes is not None or not spec.is_variable):
            raise FileImportError(
                f"column {column!r}: its values have {min(distinct)} to {max(distinct)} items, and "
                f"field {spec.name!r} is {spec}; declare it with fields={{{spec.name!r}: (DTYPE, "
                f"(-1,))}} in a new buffer"
            )
        if len(distinct) > 1:
            sizes = np.array(lengths.to_numpy(), np.int64)
        shape.append(distinct[0] if len(distinct) == 1 else VARIABLE)
        array = array.flatten()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        flat: Any = np.array(array.to_pylist() or [""])[: len(array)]
    elif pa.types.is_binary(array.type):
        flat = np.array(array.to_pylist() or [b""])[: len(array)]
    else:
        flat = array.to_numpy(zero_copy_only=False)
    n = len(values)
    if sizes is not None:
        return np.split(flat, np.cumsum(sizes)[:-1]) if n else []
    if spec.is_variable:
        return list(flat.reshape(n, *shape))
    if n and flat.size == n * int(np.prod(spec.shape, dtype=np.int64)):
        return flat.reshape(n, *spec.shape)  # a list of all items has the shape of the field
    return flat.reshape(n, *shape)
