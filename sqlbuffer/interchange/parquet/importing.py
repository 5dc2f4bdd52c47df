"""Import Parquet: restore a buffer that was exported, or append steps."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from orjson import JSONDecodeError, loads

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_dict, checked_path, refused
from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.plain_values import dumps, tag_float
from sqlbuffer.config import BufferConfig
from sqlbuffer.copying import (
    OnProgress,
    check_room,
    checked_progress,
    merge_options,
    mergeable_differences,
)
from sqlbuffer.encoding.chunks import (
    ChunkColumns,
    PayloadParts,
    collected_payload,
    execute_times,
    stored_times,
)
from sqlbuffer.encoding.column_chunks import pack_ranges
from sqlbuffer.encoding.columns import GivenColumns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import (
    BufferNotFoundError,
    CopyError,
    EpisodeExistsError,
    EpisodeRefusedError,
    FieldError,
    FileImportError,
    SchemaMissingError,
)
from sqlbuffer.fields import VARIABLE, FieldSpec, near_name
from sqlbuffer.front.step_encoding import EncodedSteps
from sqlbuffer.front.writing import StepWriter
from sqlbuffer.interchange.buffer_opening import found_buffer, import_target
from sqlbuffer.interchange.output import ImportCounts, ImportIds, ImportReport, named_damage
from sqlbuffer.interchange.parquet.arrow import (
    StepSchema,
    built_in_types,
    field_values,
    integers,
    load_pyarrow,
    nulls,
    reals,
    stored_episodes,
    texts,
    times,
    whole,
)
from sqlbuffer.interchange.parquet.files import ParquetFiles, StepRuns
from sqlbuffer.steps import PAYLOADS, DataRow, Experience, ExpMeta, is_uuid
from sqlbuffer.storage.copies.parts import CopiedRange, SourceIdentity, SourceState, time_text
from sqlbuffer.storage.copies.target import ImportTarget, RestoredSteps, check_may_restore
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.episodes import EpisodeKey
from sqlbuffer.storage.merging.batches import (
    MergeBatch,
    MergedChunk,
    MergeOptions,
    MergeRun,
    merged_rows,
    name_of,
)
from sqlbuffer.storage.merging.target import MergeTarget
from sqlbuffer.storage.rows.payload_parts import PART_BYTES, split
from sqlbuffer.storage.store import BufferStore

_OTHER_NAMES = {"reward_t": "reward", "adv_t": "advantage", "v_t": "value", "action": "actions"}
_META = (
    "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "group_id", "parent_id",
    "session_id", "model_version", "execute_time",
)  # fmt: skip
_TEXTS = (
    "id", "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "group_id", "parent_id",
    "session_id",
)  # fmt: skip
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
    """Return the meaning of each column that is not left out."""
    noted = {} if files.metadata is None else files.metadata["built_in"]
    names = files.schema.names
    for name in columns:
        if name not in names:
            raise FileImportError(
                f"columns names {name!r}, which {files.path} does not have; it has "
                f"{', '.join(names)}"
            )
    meanings = {}
    for name in names:
        meaning = columns.get(name, noted.get(name, name))
        if meaning not in specs and meaning in _OTHER_NAMES:
            meaning = _OTHER_NAMES[meaning]
        if meaning and (meaning not in _LEFT_OUT or meaning in specs):
            meanings[name] = meaning
    if len(set(meanings.values())) < len(meanings):
        twice = sorted(v for v in meanings.values() if list(meanings.values()).count(v) > 1)
        raise FileImportError(f"two columns are {twice[0]!r}; name another in columns={{...}}")
    return meanings


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
    ids: ImportIds,
    on_progress: OnProgress | None,
) -> None:
    """Store the steps of files as new ones; `check_files` has found that they fit.

    Args:
        files: The files.
        buffer: The buffer.
        columns: See `import_parquet`.
        counts: Receives what was stored.
        ids: What happens to the ids of the steps.
        on_progress: Function that is called after each part.
    """
    for place, n_steps, batch in _encoded_parts(files, buffer, columns, ids.prefix):
        try:
            stored = buffer._writer.store(batch)
        except (EpisodeExistsError, EpisodeRefusedError) as error:
            raise FileImportError(
                f"{place}: {error}; {counts.n_stored:,} steps of earlier rows are stored"
            ) from error
        counts.add(n_steps, stored, ids, place)
        if on_progress is not None:
            on_progress(counts.n_stored, counts.n_steps, range(files.n_rows))


def _encoded_parts(
    files: ParquetFiles, buffer: ReplayBuffer, columns: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, int, EncodedSteps]]:
    """Yield the place of each part, its number of steps, and its encoded steps."""
    plan, marks = _plan(files, buffer, columns), {path: files.mark(path) for path in files.paths}
    for path, first, table in files.batches():
        ids = [f"{marks[path]}/{first + i}" for i in range(len(table))]
        place = f"{path}, rows from {first:,} on"
        try:
            with named_damage(path):
                batch = _Part(plan, table, ids, first, prefix).encoded(buffer._writer)
        except FieldError as error:
            raise FieldError(f"{place}: {error}") from error
        yield place, len(table), batch


class _Part:
    """Some rows of a file."""

    def __init__(
        self, plan: ColumnPlan, table: Any, ids: list[str], first: int, prefix: str
    ) -> None:
        self._plan, self._table, self._ids, self._first = plan, table, ids, first
        self._prefix = prefix
        self._n = len(table)

    def encoded(self, writer: StepWriter) -> EncodedSteps:
        """Return them as they are stored."""
        is_rich = any(self._has(n) for n in (*_RICH, *PAYLOADS)) or not self._plan.specs
        if not is_rich and not self._has_nulls(("reward", "terminated", "truncated")):
            keys = {"id": self._own_ids(), **self._keys()}
            return writer.encoded_columns(self._columns(), "same_kind", keys)
        priority = self._column("priority") if self._has("priority") else None
        return writer.encoded_rows(self._rows(), priority=priority)

    def _has(self, name: str) -> bool:
        column = self._plan.built_in.get(name)
        return column is not None and self._table[column].null_count < self._n

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
            elif name not in PAYLOADS and name != "arrays":
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
        values: list[Any] = column.to_pylist()
        if name in ("episode_id", "parent_id") and self._prefix:
            return [None if value is None else f"{self._prefix}{value}" for value in values]
        return values

    def _own_ids(self) -> list[str]:
        pairs = zip(self._column("id"), self._ids, strict=True)
        ids = [made_id if id_ is None else id_ for id_, made_id in pairs]
        return [f"{self._prefix}{id_}" for id_ in ids] if self._prefix else ids

    def _steps(self) -> list[int]:
        steps = self._column("step")
        return [self._first + i if step is None else step for i, step in enumerate(steps)]

    def _fields(self) -> dict[str, Any]:
        """Return the values of typed fields, as `extend` takes them."""
        fields = {}
        for name, column in self._plan.fields.items():
            fields[name] = _given_values(self._plan.specs[name], column, self._table[column])
        return fields

    def _columns(self) -> dict[str, Any]:
        columns = {n: np.array(self._column(n)) for n in ("reward", "terminated", "truncated")
               if self._has(n)}  # fmt: skip
        return {**self._fields(), **columns}

    def _keys(self) -> dict[str, Any]:
        keys: dict[str, Any] = {"step": self._steps()}
        for name in (
            "task_id",
            "agent_id",
            "episode_id",
            "group_id",
            "parent_id",
            "session_id",
            "model_version",
        ):
            values = self._column(name)
            if any(value is not None for value in values):
                keys[name] = [_default(name) if v is None else v for v in values]
        if self._has("priority"):
            keys["priority"] = self._column("priority")
        return keys

    def _payload(self, name: str, arrays: list[Any]) -> list[Any]:
        values = self._column(name)
        column = self._plan.built_in.get(name)
        payload = []
        for i, value in enumerate(values):
            if not isinstance(value, str):
                payload.append(value)
                continue
            try:
                payload.append(decode(value, arrays[i]) if self._plan.is_own else loads(value))
            except JSONDecodeError as error:
                raise FileImportError(
                    f"column {column!r}, row {self._first + i:,}: {value[:40]!r} is no JSON "
                    f"({error})"
                ) from None
        return payload

    def _rows(self) -> list[DataRow]:
        meta = {name: self._column(name) for name in _META}
        arrays = self._column("arrays")
        data = {name: self._payload(name, arrays) for name in PAYLOADS}
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
                    group_id=meta["group_id"][i],
                    parent_id=meta["parent_id"][i],
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


REALS = {
    "reward": "reward_t", "advantage": "adv_t", "value": "v_t", "execute_time": "execute_time",
}  # fmt: skip
FLAGS = ("terminated", "truncated")


class StepTable:
    """Steps of a file by the names of built-in columns; those that the file lacks are null.

    Args:
        table: The steps.
        schema: Meaning of the columns.
    """

    def __init__(self, table: Any, schema: StepSchema) -> None:
        self.n, self._table = len(table), table
        self._names = {built_in: name for name, built_in in schema.built_in.items()}
        self.specs = schema.specs

    def __contains__(self, name: str) -> bool:
        """Return whether there is a value in a column."""
        column = self._names.get(name)
        return column is not None and self._table[column].null_count < self.n

    def column(self, name: str) -> Any:
        """Return a built-in column."""
        return self._table[self._names[name]]

    def texts(self, name: str) -> list[Any]:
        """Return the values of a built-in column as a list."""
        if name not in self:
            return [None] * self.n
        return (times if name.endswith("_at") else texts)(self.column(name))

    def reals(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return numbers, and flags of missing ones."""
        if name in self:
            return reals(self.column(name))
        return np.full(self.n, np.nan), np.ones(self.n, bool)

    def field(self, name: str) -> Any:
        """Return the values of a typed field; see `field_values`."""
        return field_values(self.specs[name], self._table[name])

    def stored_reals(self, name: str, tags: list[dict[str, Any]] | None) -> NDArray[np.float64]:
        """Return numbers as their column holds them, NaN for none; see `encode_real`.

        Args:
            name: The column.
            tags: Receives values that it cannot hold, NaN and -0.0; None if there are none.
        """
        values, missing = self.reals(name)
        if tags is not None:
            for i in np.flatnonzero(_are_odd(values, missing)).tolist():
                tags[i][REALS[name]] = tag_float(float(values[i]))
        values[missing] = np.nan
        return values + 0.0  # no -0.0

    def listed_reals(self, name: str, tags: list[dict[str, Any]] | None) -> list[Any]:
        """Return what `stored_reals` does, None for none."""
        return _or_none(self.stored_reals(name, tags))

    def flags(self, name: str) -> NDArray[np.bool_] | None:
        """Return flags that every step has; None where some have none."""
        if name not in self or self.column(name).null_count:
            return None
        flags: NDArray[np.bool_] = whole(self.column(name)).to_numpy(zero_copy_only=False)
        return flags

    def has_odd_reals(self) -> bool:
        """Return whether numbers are among them that a column cannot hold."""
        return any(name in self and _are_odd(*self.reals(name)).any() for name in REALS)

    def payloads(self, tags: list[dict[str, Any]] | None) -> dict[str, list[Any]]:
        """Return the JSON of each part, and `arrays`; tagged numbers are in `extra`."""
        columns = {name: self.texts(name) for name in (*PAYLOADS, "arrays")}
        for i, step_reals in enumerate(tags or ()):
            if step_reals:
                text = columns["extra"][i]
                tree = {"$none": True} if text is None else loads(text)
                columns["extra"][i] = dumps({**tree, "$reals": step_reals})
        return columns


def _are_odd(values: NDArray[np.float64], missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
    are_odd: NDArray[np.bool_] = ~missing & (
        np.isnan(values) | ((values == 0.0) & np.signbit(values))
    )
    return are_odd


def sorted_by_seq(table: Any) -> Any:
    """Return steps in the order of their numbers."""
    seq = integers(table["seq"])
    return table if (np.diff(seq) > 0).all() else table.take(np.argsort(seq, kind="stable"))


def own_schema(noted: Mapping[str, Any], config: BufferConfig) -> StepSchema:
    """Return the columns of an export.

    Args:
        noted: Metadata of its files.
        config: The settings of the buffer.
    """
    return StepSchema(noted["built_in"], dict(config.fields.specs))


def restored_steps(
    table: Any, schema: StepSchema, layout: Layout, begin: int, config: BufferConfig
) -> RestoredSteps:
    """Return the steps of a row group as they are stored.

    Args:
        table: The row group, with all columns of an export.
        schema: Its columns.
        layout: How typed fields are packed in the buffer.
        begin: All of its numbers are above this one.
        config: The settings of the buffer.
    """
    table = sorted_by_seq(table)
    seq = integers(table["seq"])
    restored = RestoredSteps(begin, int(seq[-1]), len(seq))
    _add_overlays(restored, StepTable(table, schema), seq, config)
    if config.fields.specs:
        _add_chunks(restored, table, schema, layout, seq)
    else:
        _add_rows(restored, StepTable(table, schema), layout, seq)
    return restored


def _add_overlays(
    restored: RestoredSteps, steps: StepTable, seq: NDArray[np.int64], config: BufferConfig
) -> None:
    if "uses" in steps:
        uses = integers(steps.column("uses"))
        places, most = np.flatnonzero(uses), config.sampling.max_use
        counts = {"seq": seq[places].tolist(), "n_uses": uses[places].tolist()}
        if len(places) and config.leases.enabled:
            counts["used_up"] = [most is not None and n >= most for n in counts["n_uses"]]
            restored.overlays["queue_items"] = counts
        elif len(places):
            restored.overlays["uses"] = counts
    if "quarantined_at" in steps:
        times, reasons = steps.texts("quarantined_at"), steps.texts("quarantine_reason")
        places = np.array([i for i, time in enumerate(times) if time is not None], np.int64)
        restored.overlays["quarantine"] = {
            "seq": seq[places].tolist(),
            "reason": [reasons[i] for i in places.tolist()],
            "quarantined_at": [time_text(times[i]) for i in places.tolist()],
        }


def _add_rows(
    restored: RestoredSteps, steps: StepTable, layout: Layout, seq: NDArray[np.int64]
) -> None:
    tags: list[dict[str, Any]] = [{} for _ in range(steps.n)]
    numbers = {short_name: steps.listed_reals(name, tags) for name, short_name in REALS.items()}
    payloads = steps.payloads(tags)
    arrays: list[Any] = payloads.pop("arrays")
    sizes: list[Any] = [None] * steps.n
    parts: dict[str, list[Any]] = {"seq": [], "part": [], "bytes": []}
    for i, raw in enumerate(arrays):
        if raw is not None and len(raw) > PART_BYTES:
            pieces = list(split(raw, layout))
            parts["seq"] += [int(seq[i])] * len(pieces)
            parts["part"] += range(len(pieces))
            parts["bytes"] += map(bytes, pieces)
            sizes[i], arrays[i] = len(raw), None
    restored.rows = {
        "seq": seq.tolist(),
        **{
            name: steps.texts(name)
            for name in (
                "id", "task_id", "task_name", "agent_id", "pre_agent", "step", "t",
                "model_version", *FLAGS,
            )
        },
        "episode_key": steps.texts("episode_id"),
        "session_key": steps.texts("session_id"),
        **payloads,
        **numbers,
        "initial_priority": steps.listed_reals("priority", None),
        "arrays": list(layout.compress(arrays)),
        "payload_bytes": sizes,
        "inserted_at": [time_text(time) for time in steps.texts("inserted_at")],
    }  # fmt: skip
    for name in FLAGS:
        restored.rows[name] = [None if flag is None else int(flag) for flag in restored.rows[name]]
    if parts["seq"]:
        restored.overlays["payload_parts"] = parts


def _add_chunks(
    restored: RestoredSteps,
    table: Any,
    schema: StepSchema,
    layout: Layout,
    seq: NDArray[np.int64],
) -> None:
    runs = StepRuns(seq, integers(table[_name_of(schema, "first_seq")]))
    if runs.has_gaps:
        table = table.take(runs.source)
        restored.overlays["deleted_steps"] = {"seq": runs.seq[runs.is_filled].tolist()}
    steps = StepTable(table, schema)
    tags: list[dict[str, Any]] | None = None
    if steps.has_odd_reals():
        tags = [{} for _ in range(steps.n)]
    reward, times = steps.stored_reals("reward", tags), steps.stored_reals("execute_time", tags)
    more = {
        short_name: steps.listed_reals(name, tags)
        for name, short_name in (("advantage", "adv_t"), ("value", "v_t"))
        if name in steps
    }
    flags = {name: steps.flags(name) for name in FLAGS}
    more.update(
        {name: steps.texts(name) for name in FLAGS if name in steps and flags[name] is None}
    )
    columns = GivenColumns(
        n_steps=steps.n,
        fields={name: steps.field(name) for name in layout.specs},
        reward=None if np.isnan(reward).all() else reward,
        reward_tags={},
        terminated=flags["terminated"],
        truncated=flags["truncated"],
        ids=None,
        task_id=runs.firsts(steps.column("task_id")),
        agent_id=runs.firsts(steps.column("agent_id")),
        model_version=runs.firsts(steps.column("model_version")),
        session_id=runs.firsts(steps.column("session_id")),
        steps=runs.continued(integers(steps.column("step"))),
        priority=steps.listed_reals("priority", None) if "priority" in steps else None,
        payloads=(),
        more_keys={
            "task_name": runs.firsts(steps.column("task_name")),
            "pre_agent": runs.firsts(steps.column("pre_agent")),
            "episode_key": runs.firsts(steps.column("episode_id")),
        },
        more_values=more,
        encoded=_encoded(steps, tags, runs.is_filled, is_any=bool(np.isnan(reward).any())),
    )
    chunks = pack_ranges(layout, columns, runs.ranges)
    _place_chunks(restored, steps, runs, chunks, times)


def _name_of(schema: StepSchema, built_in: str) -> str:
    return next(name for name, meaning in schema.built_in.items() if meaning == built_in)


def _encoded(
    steps: StepTable,
    tags: list[dict[str, Any]] | None,
    is_filled: NDArray[np.bool_],
    *,
    is_any: bool,
) -> list[Any] | None:
    """Return the payload of each step; None where no step has one, unless there is to be a list."""
    if tags is None and not any(name in steps for name in PAYLOADS):
        return [None] * steps.n if is_any else None
    payloads = steps.payloads(tags)
    values_by_step = zip(*(payloads[name] for name in (*PAYLOADS, "arrays")), strict=True)
    return [
        None
        if filled
        else collected_payload(
            PayloadParts(values[0], values[1], values[2], values[3], values[4] or b"")
        )
        for filled, values in zip(is_filled.tolist(), values_by_step, strict=True)
    ]


def _place_chunks(
    restored: RestoredSteps,
    steps: StepTable,
    runs: StepRuns,
    chunks: ChunkColumns,
    times: NDArray[np.float64],
) -> None:
    """Give chunks their ids, numbers, places in episodes and times."""
    ids, ts = runs.firsts(steps.column("id")), runs.firsts(steps.column("t"))
    inserted = runs.firsts(steps.column("inserted_at"))
    spans = _spans(runs, times)
    placed = []
    for i, chunk in enumerate(chunks):
        offset = int(runs.place[runs.held[i]])
        changes: dict[str, Any] = {"t": None if ts[i] is None else ts[i] - offset, **spans[i]}
        chunk_id, _, place = str(ids[i]).rpartition("/")
        if is_uuid(chunk_id) and place == str(offset):
            changes["id"] = chunk_id
        placed.append((int(runs.first_seq[i]), inserted[i], replace(chunk, **changes)))
    restored.chunks = placed
    _add_ids(restored, steps, runs)


def _add_ids(restored: RestoredSteps, steps: StepTable, runs: StepRuns) -> None:
    """Store the ids that do not follow from the id of their chunk."""
    import pyarrow.compute as pc

    pa = load_pyarrow()
    chunk_ids = pa.array([chunk.id for _, _, chunk in restored.chunks], pa.string())
    made_ids = pc.binary_join_element_wise(
        chunk_ids.take(pa.array(runs.run_of)), pa.array(runs.place).cast(pa.string()), "/"
    )
    ids = whole(steps.column("id"))
    is_other = pc.not_equal(made_ids, ids).to_numpy(zero_copy_only=False).astype(bool)
    places = np.flatnonzero(is_other & ~runs.is_filled)
    if len(places):
        other_ids = ids.take(pa.array(places)).to_pylist()
        restored.overlays["step_ids"] = {"seq": runs.seq[places].tolist(), "id": other_ids}


def _spans(runs: StepRuns, values: NDArray[np.float64]) -> list[Mapping[str, Any]]:
    """Return the times of each chunk: the first and last time if the others are evenly between
    them.
    """
    begins, ends = runs.begins, np.append(runs.begins[1:], len(values))
    first, last = values[begins], values[ends - 1]
    counts = (ends - begins)[runs.run_of]
    expected = execute_times(first[runs.run_of], last[runs.run_of], counts, runs.place)
    is_same = (values == expected) | (np.isnan(values) & np.isnan(expected))
    are_even = np.logical_and.reduceat(is_same & ~runs.is_filled, begins)
    spans: list[Mapping[str, Any]] = []
    ends_of = zip(_or_none(first), _or_none(last), strict=True)
    for i, (start, end, span) in enumerate(
        zip(begins.tolist(), ends.tolist(), ends_of, strict=True)
    ):
        if are_even[i]:
            spans.append({"first_time": span[0], "last_time": span[1], "times": None})
        else:
            first_time, last_time, listed = stored_times(_or_none(values[start:end]))
            spans.append({"first_time": first_time, "last_time": last_time, "times": listed})
    return spans


def _or_none(values: NDArray[np.float64]) -> list[Any]:
    return [None if value != value else value for value in values.tolist()]


# Settings that decide what steps look like.
_SAME = ("evict_by", "fields", "observation_fields", "meta_fields", "priorities", "leases")


def import_parquet(
    path: "str | os.PathLike[str]",
    url: Database = None,
    name: str | None = None,
    *,
    columns: Mapping[str, str | None] | None = None,
    fields: Mapping[str, Any] | None = None,
    prefix: str = "",
    on_conflict: Literal["error", "skip"] = "error",
    include_open: bool = False,
    on_progress: OnProgress | None = None,
) -> ImportReport:
    """Store the steps of Parquet files in a buffer.

    Files of `export_parquet` restore the buffer with its settings, numbers, ids, times, episodes,
    sessions, priorities, uses and reasons of quarantine. The buffer must be missing or empty. Until
    the import is complete, the buffer shows the steps that it has so far and refuses writers. If
    the process is killed, repeat the call: it continues where it stopped.

    If the buffer has steps, or with a `prefix`, the steps of the export are merged into it under
    new numbers: whole episodes, as `ReplayBuffer.copy_to` merges them. A later export of the same
    buffer adds what has come since.

    Files are appended as new steps if another program wrote them, if the path is a single file, or
    if the export has some columns only. A missing buffer is made. A step without an id gets an id
    from its place in the file, so a second import stores no step twice.

    The files of an export are compared with its manifest, and files to append are read once to
    check all rows. If one is damaged, missing or does not fit, nothing is made or stored.

    Args:
        path: A folder of Parquet files, or a file.
        url: The database; see `ReplayBuffer`.
        name: Name of the buffer; by default that of the exported buffer, or `default`.
        columns: Fields for columns of the files, by the columns' names: `{"observation": "obs"}`.
            None omits a column. Other columns keep their name: a built-in column, a field of the
            buffer, or a new field of a new buffer.
        fields: Typed fields of a new buffer, as for `ReplayBuffer`; by default they follow from the
            types of the columns.
        prefix: Text that is put before the ids of steps and episodes, such as `run1/`.
        on_conflict: For ids of other steps in the buffer: `error`, or `skip` to leave such steps
            out. Equal steps that are appended again are duplicates, and no error.
        include_open: Merge episodes that had not ended too.
        on_progress: Function that is called after each batch with the number of stored steps, the
            number of steps read, and the range of steps to read.

    Raises:
        ArgumentError: An argument is invalid.
        CopyError: The buffer would evict steps that are merged, or has their ids.
        FieldError: A field cannot hold a value.
        FileImportError: There are no files, a file is damaged or missing, a column does not fit,
            typed steps are of an episode of the buffer that has ended, or the buffer has other
            steps with the ids; the message names it.
        MissingExtraError: pyarrow is not installed.
        StorageReadOnlyError: The buffer is another unfinished copy, or the role may not restore a
            buffer: only the owner of the tables may.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> import tempfile
        >>> from sqlbuffer.interchange import export_parquet
        >>> buffer = ReplayBuffer("sqlite://", "b", fields={"obs": ("float32", (2,))})
        >>> buffer.extend({"obs": [[1.0, 2.0], [3.0, 4.0]]}, task_id="t").inserted
        2
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_parquet(buffer, f"{folder}/out")
        ...     import_parquet(f"{folder}/out", f"sqlite:///{folder}/replay.db").n_stored
        2
    """
    began_at = time.monotonic()
    source = checked_path(path, "path", "the path of a Parquet file, or of a folder of them")
    columns = {} if columns is None else checked_dict(columns, "columns", "{'observation': 'obs'}")
    fields = None if fields is None else checked_dict(fields, "fields", "{'obs': 'float32'}")
    on_progress = checked_progress(on_progress)
    options = merge_options(prefix, on_conflict, include_open)
    ids = ImportIds(options.prefix, options.on_conflict)
    for column, meaning in columns.items():
        if meaning is not None and not isinstance(meaning, str):
            raise refused(meaning, f"columns[{column!r:.100}]", "the name of a field, or None")
    files = ParquetFiles(source)
    is_restorable = files.is_export and not columns and not fields
    if name is None:
        name = files.metadata["buffer"] if is_restorable and files.metadata else "default"
    buffer = found_buffer(url, name)
    settings: dict[str, Any] = {}
    if buffer is None and is_restorable:
        with suppress(BufferNotFoundError, SchemaMissingError):
            check_may_restore(url)
        settings["config"] = files.config
    elif buffer is None:
        settings["fields"] = (new_fields(files, columns) if fields is None else fields) or None
        with ReplayBuffer("sqlite://", name, **settings) as trial:
            check_files(files, trial, columns)
    counts = ImportCounts()
    with import_target(buffer, url, name, settings, counts) as opened:
        if is_restorable and not prefix:
            _restore(files, opened, counts, on_progress)
        if is_restorable and not counts.is_restored:
            _merge(files, opened, options, counts, on_progress)
        if not (counts.is_restored or counts.is_merged):
            if buffer is not None:
                check_files(files, buffer, columns)
            append_files(files, opened, columns, counts, ids, on_progress)
        target = f"{opened.name!r} in {opened.url}"
        return counts.report(str(path), target, time.monotonic() - began_at)


def _restore(
    files: ParquetFiles,
    buffer: ReplayBuffer,
    counts: ImportCounts,
    on_progress: OnProgress | None,
) -> None:
    """Restore a buffer, or continue to; raise if it has other steps or settings."""
    noted, config, store = files.metadata, files.config, buffer._store
    assert noted is not None
    ours, theirs = config.settings(), buffer.config.settings()
    if store.info.layout is not None or any(ours[name] != theirs[name] for name in _SAME):
        return
    target = ImportTarget(store)
    with named_damage(files.paths[0]):
        identity = SourceIdentity(str(files.path), noted["buffer"], 0, noted["export_id"], None)
        copied = CopiedRange(noted["low_seq"], noted["high_seq"], noted["low_seq"])
        state = SourceState(copied, noted["state"], noted["session"], noted["sessions"], None)
    try:
        progress = target.progress(identity)
        if progress is None:
            target.begin(identity, state, _episodes(files, store, config))
            progress = target.progress(identity)
    except CopyError:  # it has steps, or is another copy
        return
    assert progress is not None
    counts.is_restored, counts.n_steps = True, files.n_rows
    counts.n_duplicates = progress.n_steps
    if progress.is_finished:
        return
    schema, cursor = own_schema(noted, config), progress.range.cursor
    for path, table in files.row_groups(cursor):
        with named_damage(path):
            steps = restored_steps(table, schema, store.layout, cursor, config)
        target.write(steps)
        cursor = steps.end
        counts.n_stored += steps.n_steps
        if on_progress is not None:
            n_done = counts.n_duplicates + counts.n_stored
            on_progress(n_done, n_done, range(files.n_rows))
    target.finish()


def _merge(
    files: ParquetFiles,
    buffer: ReplayBuffer,
    options: MergeOptions,
    counts: ImportCounts,
    on_progress: OnProgress | None,
) -> None:
    """Merge an export into a buffer that has steps; nothing is done if the fields differ."""
    noted, config, store = files.metadata, files.config, buffer._store
    assert noted is not None
    if store.info.layout is not None or mergeable_differences(config, store):
        return
    identity = SourceIdentity(
        str(files.path), noted["buffer"], 0, noted["export_id"], noted["condition"], noted["uuid"]
    )
    merger = MergeTarget(store, identity, options)
    episodes = {
        (page["key"][i], page["task_id"][i]): {name: values[i] for name, values in page.items()}
        for page in _episodes(files, store, config)
        for i in range(len(page["key"]))
    }
    are_open = {name for name, facts in episodes.items() if facts["status"] == "open"}
    run = merger.run()
    counts.is_merged, n_before = True, 0 if run is None else run.n_steps
    n_skipped = 0 if run is None else run.n_skipped
    if run is None or run.is_done:
        run = MergeRun.after(run, noted["high_seq"], noted["low_seq"], are_open, options)
        wants = partial(run.wants, include_open=options.include_open)
        check_room(_wanted_counts(files, wants), str(files.path), store)
        store.write(partial(merger.begin, run=run, versions=noted["sessions"]))
    schema, layout = own_schema(noted, config), store.layout
    for path, table in files.row_groups(run.cursor):
        with named_damage(path):
            steps = restored_steps(table, schema, layout, run.cursor, config)
        is_last = steps.end >= run.high
        names = set(run.late) if is_last else set()
        run = merger.write(run, merge_batch(steps, episodes, names))
        if on_progress is not None:
            on_progress(run.n_steps, run.cursor, range(run.high))
    if not run.is_done:  # the last numbers were those of deleted steps
        ends = MergeBatch(run.cursor, run.high, episodes={n: episodes[n] for n in run.late})
        run = merger.write(run, ends)
    run = run.ended(options)
    store.write(partial(merger.finish, run=run, documents=()))
    counts.n_steps, counts.n_stored = files.n_rows, run.n_steps - n_before
    counts.n_conflicts = run.n_skipped - n_skipped
    counts.n_open = 0 if options.include_open else len(are_open)
    n_left = files.n_rows - counts.n_stored - counts.n_conflicts
    counts.n_duplicates = min(n_before, max(n_left, 0))


def _wanted_counts(
    files: ParquetFiles, wants: Callable[[EpisodeKey | None, int], bool]
) -> tuple[int, int]:
    """Return the number of steps that a merge takes of files, and of their episodes."""
    n_steps, names = 0, set()
    for columns in files.columns(("seq", "episode_id", "task_id")):
        for seq, key, task in zip(*columns, strict=True):
            name = None if key is None else (key, task)
            if wants(name, seq):
                n_steps += 1
                names.add(name)
    return n_steps, len(names - {None})


def merge_batch(
    steps: RestoredSteps,
    episodes: Mapping[EpisodeKey, Mapping[str, Any]],
    late: Collection[EpisodeKey],
) -> MergeBatch:
    """Return restored steps as a merge takes them.

    Args:
        steps: The steps.
        episodes: The columns of all episodes by name.
        late: Episodes whose ends come with these steps, next to those that end here.
    """
    gone = set(steps.overlays.get("deleted_steps", {}).get("seq", ()))
    chunks = [
        MergedChunk(first, chunk, [p for p in range(chunk.n_steps) if first + p not in gone])
        for first, _, chunk in steps.chunks
    ]
    rows = [] if steps.rows is None else list(merged_rows(steps.rows))
    names = {name_of(one.chunk) for one in chunks} | {name_of(row.record) for row in rows}
    ending = {
        name
        for name, facts in episodes.items()
        if facts["last_seq"] is not None and steps.begin < facts["last_seq"] <= steps.end
    }
    return MergeBatch(
        steps.begin,
        steps.end,
        chunks,
        rows,
        {name: columns for name, columns in steps.overlays.items() if name != "queue_items"},
        {name: episodes[name] for name in names | ending | set(late) if name is not None},
    )


def _episodes(
    files: ParquetFiles, store: BufferStore, config: BufferConfig
) -> Iterator[dict[str, list[Any]]]:
    if files.episodes is None:
        return iter(())
    has_counts = config.retention.evict_by == "episode"
    return stored_episodes(files.episodes, store.observation_layout, has_counts=has_counts)
