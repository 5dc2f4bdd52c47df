"""Steps as JSON, one a line: export and import.

Its keys are those that the commands print with `--ndjson`. Values that JSON does not have are
tagged as in payloads in the database: `{"$float": "nan"}`.
"""

import base64
import json
import math
import os
import re
import select
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_dict, checked_flag, checked_path
from sqlbuffer.codec.decoder import untag
from sqlbuffer.codec.plain_values import tag_float
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.errors import (
    EpisodeExistsError,
    EpisodeRefusedError,
    ExportError,
    FieldError,
    FileImportError,
)
from sqlbuffer.fields import VARIABLE, FieldSpec, near_name
from sqlbuffer.front.step_encoding import EncodedSteps
from sqlbuffer.interchange.buffer_opening import found_buffer, import_target
from sqlbuffer.interchange.output import (
    ExportReport,
    ImportCounts,
    ImportIds,
    ImportReport,
    WorkPlace,
    disk_full,
    is_full,
    make_parents,
    named_damage,
)
from sqlbuffer.interchange.streams import BufferStream, chosen_columns
from sqlbuffer.steps import PAYLOADS, ColumnBatch, DataRow, Experience, ExpMeta, RaggedValues
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database, shown_url

META = (
    "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "group_id", "parent_id",
    "step",
    "execute_time", "model_version", "session_id",
)  # fmt: skip
# Names of columns by those in JSON, in the order of a line.
COLUMNS = {
    "seq": "seq", "id": "id", **{name: name for name in META}, "reward_t": "reward",
    "adv_t": "advantage", "v_t": "value", "terminated": "terminated", "truncated": "truncated",
    "state": "state", "actions": "actions", "messages": "messages", "extra": "extra",
    "arrays": "arrays", "priority": "priority",
}  # fmt: skip
_OTHER_NAMES = {"reward": "reward_t", "advantage": "adv_t", "value": "v_t", "action": "actions"}
# Values that a step has in its own buffer, and gets again in another.
_IGNORED = ("seq", "first_seq", "t", "inserted_at", "uses", "quarantined_at", "quarantine_reason")
# What a tag raises that has another value than it is to have.
_WRONG_TAG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
# Steps whose values are objects of Python at a time.
_STEPS_AT_ONCE = 2_048


def json_lines(
    batch: ColumnBatch, specs: Mapping[str, FieldSpec], names: Sequence[str]
) -> Iterator[bytes]:
    """Yield a line for each step; values that it does not have are left out.

    Args:
        batch: The steps.
        specs: The typed fields to write.
        names: The built-in columns to write, by their names in a batch.
    """
    for start in range(0, len(batch), _STEPS_AT_ONCE):
        places = np.arange(start, min(start + _STEPS_AT_ONCE, len(batch)))
        yield from _lines(batch.take(places), specs, names)


def _lines(
    batch: ColumnBatch, specs: Mapping[str, FieldSpec], names: Sequence[str]
) -> Iterator[bytes]:
    columns = {
        shown: _listed(batch, column)
        for shown, column in COLUMNS.items()
        if column in names and shown not in specs
    }
    columns.update((name, _field_list(spec, batch.fields[name])) for name, spec in specs.items())
    for values in zip(*columns.values(), strict=True):
        step = {name: v for name, v in zip(columns, values, strict=True) if v is not None}
        yield orjson.dumps(step, option=_OPTIONS)


def _listed(batch: ColumnBatch, name: str) -> list[Any]:
    if name == "seq":
        seqs: list[int] = batch.seq.tolist()
        return seqs
    values = batch.own.get(name) if name in batch.own else None
    if not isinstance(values, np.ndarray):
        column_values: list[Any] = ColumnBatch.column(_plain(batch), name)
        if name in PAYLOADS:
            return [None if text is None else orjson.Fragment(text) for text in column_values]
        if name == "arrays":
            return [
                None if raw is None else base64.b64encode(raw).decode() for raw in column_values
            ]
        return column_values
    listed: list[Any] = values.tolist()
    if values.dtype.kind == "f":
        for i in np.flatnonzero(~np.isfinite(values)).tolist():
            listed[i] = tag_float(listed[i])
    missing = batch.is_null.get(name)
    for i in () if missing is None else np.flatnonzero(missing).tolist():
        listed[i] = None
    return listed


def _plain(batch: ColumnBatch) -> ColumnBatch:
    """Return a batch without its typed fields, which come before columns of the same name."""
    return ColumnBatch(batch.seq, batch.run_of, batch.shared, batch.own, {}, batch.is_null)


def _field_list(spec: FieldSpec, values: Any) -> list[Any]:
    kind, n = spec.dtype.kind, len(values)
    arrays = [values[i] for i in range(n)]
    if kind in "biu":
        return [np.ascontiguousarray(value) if value.ndim else value.item() for value in arrays]
    if kind != "f" or spec.dtype.itemsize > 8:
        return [_tagged(np.asarray(value).tolist()) for value in arrays]
    flat = values.values if isinstance(values, RaggedValues) else values
    if np.isfinite(flat).all():
        # 16 bits are written with the digits of 32, which mean the same number.
        wide = np.float32 if spec.dtype.itemsize == 2 else spec.dtype
        return [np.ascontiguousarray(v, wide) if v.ndim else v.item() for v in arrays]
    return [_tagged(np.asarray(value).tolist()) for value in arrays]


def _tagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else tag_float(value)
    if isinstance(value, complex):
        return {"$complex": [_tagged(value.real), _tagged(value.imag)]}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return str(value) if isinstance(value, np.longdouble) else value


def row_of_json(tree: Any, specs: Mapping[str, FieldSpec]) -> tuple[DataRow, Any]:
    """Return a step, and its priority or None.

    Args:
        tree: A JSON object; see the docstring of this module. `reward`, `advantage`, `value` and
            `action` mean `reward_t`, `adv_t`, `v_t` and `actions` if no field has their name.
        specs: The typed fields of the buffer.

    Raises:
        FieldError: A field cannot hold its value.
        FileImportError: The value is not an object, or it has an unknown key or a malformed tag.
    """
    if not isinstance(tree, dict):
        raise FileImportError(f"expected a JSON object with the values of a step, got {tree!r}")
    values, fields = _sorted_values(tree, specs)
    try:
        arrays = base64.b64decode(values.pop("arrays", None) or "", validate=True)
        columns = {
            name: untag(value, arrays) if isinstance(value, (dict, list)) else value
            for name, value in values.items()
        }
        field_values = {
            name: untag(value, b"") for name, value in fields.items() if value is not None
        }
    except _WRONG_TAG as error:
        raise FileImportError(f"a value is tagged wrongly: {error!r:.200}") from None
    typed = {name: _field_value(specs[name], value) for name, value in field_values.items()}
    meta = ExpMeta(
        task_id=_text(columns.get("task_id"), "default"),
        task_name=columns.get("task_name"),
        agent_id=_text(columns.get("agent_id"), "default"),
        step=columns.get("step") or 0,
        execute_time=columns.get("execute_time"),
        pre_agent=columns.get("pre_agent"),
        episode_id=columns.get("episode_id"),
        group_id=columns.get("group_id"),
        parent_id=columns.get("parent_id"),
        model_version=columns.get("model_version"),
        session_id=columns.get("session_id"),
    )
    actions = columns.get("actions")
    if "action" in tree and "action" not in specs and actions is not None:
        actions = [actions]
    data = Experience(
        state=columns.get("state"),
        actions=actions,
        reward_t=columns.get("reward_t"),
        adv_t=columns.get("adv_t"),
        v_t=columns.get("v_t"),
        messages=columns.get("messages"),
        terminated=columns.get("terminated"),
        truncated=columns.get("truncated"),
        extra=columns.get("extra"),
    )
    row = DataRow(meta, data, fields=typed) if columns.get("id") is None else DataRow(
        meta, data, columns["id"], fields=typed
    )  # fmt: skip
    return row, columns.get("priority")


def _text(value: Any, default: str) -> str:
    return default if value is None else value


def _sorted_values(
    tree: Mapping[str, Any], specs: Mapping[str, FieldSpec]
) -> tuple[dict[str, Any], dict[str, Any]]:
    values, fields = {}, {}
    for key, value in tree.items():
        name = _OTHER_NAMES.get(key, key)
        if key in specs:
            fields[key] = value
        elif name in COLUMNS and name not in _IGNORED:
            if name in values:
                raise FileImportError(f"it has both {key!r} and {name!r}; leave one of them out")
            values[name] = value
        elif name not in _IGNORED:
            known = [*specs, *COLUMNS, *_OTHER_NAMES]
            nearest = near_name(key, known)
            hint = f" (did you mean {nearest}?)" if nearest else ""
            raise FileImportError(
                f"unknown key {key!r}{hint}; the buffer has the fields "
                f"{', '.join(specs) or 'none'}; put other values into extra"
            )
    return values, fields


def _field_value(spec: FieldSpec, value: Any) -> Any:
    try:
        if spec.dtype.kind == "S":
            value = np.char.encode(np.asarray(value, str), "latin-1")
        if spec.dtype.kind == "f" and spec.dtype.itemsize > 8:
            value = np.asarray(value, spec.dtype)
    except (ValueError, TypeError) as error:
        raise FieldError(f"field {spec.name!r}: expected {spec}, got {error}") from None
    return spec.cast(value)


def declared_fields(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return declarations of fields for those keys of the first step that are not built in.

    Args:
        trees: The first steps. A field holds the values of all of them, with 64 bits: a length that
            differs between them varies.

    Raises:
        FileImportError: Values that no field can hold; the message names the key.
    """
    declarations = {}
    for key in trees[0]:
        name = _OTHER_NAMES.get(key, key)
        if name not in COLUMNS and name not in _IGNORED:
            values = [tree[key] for tree in trees if tree.get(key) is not None]
            declarations[key] = _declaration(key, values or [None])
    return declarations


def _declaration(key: str, values: Sequence[Any]) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape of a field that holds some values."""
    arrays = list(map(_array, values))
    for value, array in zip(values, arrays, strict=True):
        if array.dtype.kind not in "biuf":
            raise FileImportError(
                f"key {key!r}: no typed field can be made of {str(value)[:40]!r}; put it into "
                f"extra, or make the buffer before, with the fields that it is to have"
            )
    # An empty list says nothing of its items, nor of lists inside it; its length varies.
    shapes = {array.shape for array in arrays if array.shape != (0,)} or {(0,)}
    if len({len(shape) for shape in shapes}) > 1:
        raise FileImportError(
            f"key {key!r}: its values have the shapes {', '.join(map(str, sorted(shapes)))}, and a "
            f"field has one number of dimensions; put it into extra"
        )
    lengths = [set(of_axis) for of_axis in zip(*shapes, strict=True)]
    if lengths and any(array.shape == (0,) for array in arrays):
        lengths[0].add(0)
    shape = tuple(n.pop() if len(n) == 1 and n != {0} else VARIABLE for n in lengths)
    kinds = {array.dtype.kind for array in arrays if array.size} or {"f"}
    if "f" in kinds:
        return "float64", shape
    if "u" in kinds and min(int(array.min()) for array in arrays if array.size) < 0:
        raise FileImportError(
            f"key {key!r}: no field holds negative integers and integers from 2**63 on; write them "
            f"as floats, or put them into extra"
        )
    return "uint64" if "u" in kinds else "int64" if "i" in kinds else "bool", shape


def _array(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(untag(value, b""))
    except _WRONG_TAG:
        return np.asarray("text")


# orjson rounds integers above 64 bits. Digits of a fraction do not count. A line is looked through
# for any 19 digits first, which takes a fifth of the time.
_LONG_INTEGER = re.compile(rb"(?<![.0-9])[0-9]{19}")
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_NINETEEN = b"0" * 19
_REMEDY = 'write null, or {"$float": "inf"}'


def parsed_line(line: bytes) -> Any:
    """Return the value of a line: integers exactly, and `NaN` and `Infinity` as numbers.

    Raises:
        FileImportError: The line is not JSON, or has a number that is out of the range of floats.

    Example:
        >>> parsed_line(b'[123456789012345678901, NaN, 1.5]')
        [123456789012345678901, nan, 1.5]
    """
    try:
        if _NINETEEN in line.translate(_DIGITS) and _LONG_INTEGER.search(line):
            return json.loads(line, parse_float=_finite)
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            if b"NaN" not in line and b"Infinity" not in line:
                raise
            return json.loads(line, parse_float=_finite)
    except orjson.JSONDecodeError as error:  # which is json.JSONDecodeError
        remedy = f"; {_REMEDY}" if "is infinity" in str(error) else ""
        raise FileImportError(f"no JSON ({error}){remedy}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise FileImportError(f"no JSON ({error})") from None
    except FileImportError:
        raise
    except ValueError as error:  # more digits than Python reads
        raise FileImportError(f"a number cannot be read ({error})") from None


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise FileImportError(f"no float holds the number {digits[:40]}; {_REMEDY}")
    return number


_CHUNK_BYTES = 2**18
# Lines that are there are handed on when no other comes for this long.
IDLE_S = 0.5


def lines_of(path: "str | os.PathLike[str]") -> Iterator[bytes | None]:
    """Yield the lines of a file, or of standard input if it is `-`; None where none comes for a
    while.
    """
    if str(path) != "-":
        with named_damage(path), open(path, "rb") as file:
            yield from file
        return
    stream: Any = getattr(sys.stdin, "buffer", sys.stdin)
    try:
        number = stream.fileno()
    except (OSError, AttributeError, ValueError):  # it is not a file: a test has replaced it
        yield from _all_lines(stream)
        return
    yield from _waited(number)


def _all_lines(stream: IO[Any]) -> Iterator[bytes]:
    for line in stream:
        yield line if isinstance(line, bytes) else line.encode()


def _waited(number: int) -> Iterator[bytes | None]:
    parts: list[bytes] = []  # of a line that is not complete
    while True:
        if not select.select([number], [], [], IDLE_S)[0]:
            yield None
            continue
        chunk = os.read(number, _CHUNK_BYTES)
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        parts.append(first)
        if others:
            yield b"".join(parts)
            yield from others[:-1]
            parts = [others[-1]]
    rest = b"".join(parts)
    if rest:
        yield rest


def export_jsonl(
    buffer: "ReplayBuffer",
    path: "str | os.PathLike[str]",
    condition: Any = None,
    *,
    columns: Sequence[str] | None = None,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> ExportReport:
    """Write the steps of a buffer as JSON, one step in each line, in the order of `seq`.

    The keys are those that commands print with `--ndjson`. Values that a step does not have are
    left out. NaN, infinities and other values that JSON does not have are tagged (`{"$float":
    "nan"}`), so `insert_jsonl` stores equal steps. The file appears when it is complete.

    Args:
        buffer: The buffer.
        path: The file to make; `-` is standard output.
        condition: Condition that steps must match; all by default.
        columns: Built-in columns and typed fields to write; all by default.
        overwrite: Replace an existing file.
        on_progress: See `export_parquet`.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        ExportError: The path exists already or cannot be made, or the disk is full.
        FieldError: A column is unknown.
        StorageBusyError: A transaction that writes to the buffer does not end.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://")
        >>> buffer.add(task_id="t", step=3, state={"x": 1}, reward=0.5).inserted
        1
        >>> export_jsonl(buffer, "-", columns=["task_id", "step", "reward", "state"]).n_steps
        {"task_id":"t","step":3,"reward_t":0.5,"state":{"x":1}}
        1
    """
    began_at = time.monotonic()
    target = checked_path(path, "path", "the path of a file to make, or - for standard output")
    overwrite = checked_flag(overwrite, "overwrite")
    on_progress = checked_progress(on_progress)
    specs = checked_buffer(buffer).fields
    built_in, fields = chosen_columns(tuple(specs), columns)
    chosen = {name: specs[name] for name in fields}
    n_steps = n_bytes = 0
    unopened = BufferStream(buffer, condition, fields=fields)
    with unopened as stream, _output(target, overwrite) as file:
        for batch, end in stream.batches():
            for line in json_lines(batch, chosen, built_in):
                file.write(line)
                n_bytes += len(line)
            n_steps += len(batch)
            if on_progress is not None:
                on_progress(n_steps, end, range(stream.low, stream.high))
    return ExportReport(
        f"{buffer.name!r} in {buffer.url}", str(path), stream.low, stream.high, n_steps, None, 1,
        n_bytes, time.monotonic() - began_at,
    )  # fmt: skip


@contextmanager
def _output(target: Path, overwrite: bool) -> Iterator[Any]:
    """Open a file of another name, which gets its own at the end; or standard output."""
    if str(target) == "-":
        yield _Stdout()
        sys.stdout.flush()
        return
    if os.path.isdir(target):
        raise ExportError(f"{target} is a folder, and JSON lines are a file; name another path")
    if os.path.lexists(target) and not overwrite:
        raise ExportError(
            f"there is a file {target} already; name another one, or replace it with "
            f"overwrite=True (--overwrite)"
        )
    make_parents(target)
    place = WorkPlace(target, Path.touch)
    work = place.path
    try:
        with work.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        work.replace(target)
    except OSError as error:
        if is_full(error):
            raise disk_full(target, error) from error
        raise
    finally:
        place.close()


class _Stdout:
    """Standard output, which tests and notebooks replace by a stream of text."""

    def write(self, raw: bytes) -> None:
        """Write bytes."""
        out: IO[bytes] | None = getattr(sys.stdout, "buffer", None)
        if out is None:
            sys.stdout.write(raw.decode())
        else:
            out.write(raw)


LINES_AT_ONCE = 1_000
BYTES_AT_ONCE = 2**23
_UNSAFE = "cast it, or allow it with casting='unsafe'"
_OTHER_FIELD = (
    "write another value, or make a buffer whose field holds it (`sqlbuffer create --config`)"
)
_ROW = re.compile(r"^row (\d+): ")


def insert_jsonl(
    path: "str | os.PathLike[str]" = "-",
    url: Database = None,
    name: str = "default",
    *,
    fields: Mapping[str, Any] | None = None,
    prefix: str = "",
    on_conflict: Literal["error", "skip"] = "error",
    on_progress: OnProgress | None = None,
) -> ImportReport:
    """Store steps that are given as JSON, one step in each line, in a buffer.

    A line is an object with the arguments of `ReplayBuffer.add`: `task_id`, `agent_id`, `step`,
    `state`, `actions`, `reward`, ... and the typed fields of the buffer. `export_jsonl` and
    `--ndjson` write such lines. Up to 1,000 lines are stored in one transaction, or fewer if no
    further line arrives. A step without an id gets an id from its line in the file, so a second
    import stores no step twice. From standard input, each such step is a new one: the report says
    how many there were.

    All lines of a file are checked before the first is stored. Lines of standard input are stored
    as they come; the first ones are checked before a missing buffer is made.

    Args:
        path: The file; `-` is standard input.
        url: The database; see `ReplayBuffer`.
        name: Name of the buffer; a missing one is made.
        fields: Typed fields of a new buffer. By default these are the keys of the first line that
            are not built in, with 64 bits. Their types and shapes follow from the first lines, up
            to 1,000: a field becomes float if one of these lines has a float, and its length varies
            if it differs between them.
        prefix: Text that is put before the ids of steps and episodes, such as `run1/`.
        on_conflict: For ids of other steps in the buffer: `error`, or `skip` to leave such steps
            out. Equal steps are duplicates, and no error.
        on_progress: Function that is called after each batch.

    Raises:
        ArgumentError: An argument is invalid.
        FieldError: A value cannot be stored; the message names the line, and says how many steps
            are stored: none of a file, and those before it of standard input.
        FileImportError: There is no such file, a line is not a JSON object or has an unknown key,
            typed steps are of an episode of the buffer that has ended, or the buffer has other
            steps with the ids; the message as above.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open(f"{folder}/steps.jsonl", "w") as file:
        ...         _ = file.write('{"task_id": "t", "state": {"x": 1}, "reward": 0.5}')
        ...     insert_jsonl(f"{folder}/steps.jsonl", f"sqlite:///{folder}/replay.db").n_stored
        1
    """
    began_at = time.monotonic()
    checked_path(path, "path", "the path of a file of JSON lines, or - for standard input")
    on_progress = checked_progress(on_progress)
    ids = ImportIds.checked(prefix, on_conflict)
    fields = None if fields is None else checked_dict(fields, "fields", "{'obs': 'float32'}")
    is_pipe = str(path) == "-"
    if not is_pipe and not os.path.isfile(path):
        raise FileImportError(f"there is no file {path}; name a file of JSON lines, or -")
    counts, buffer = ImportCounts(), found_buffer(url, name)
    batches: Iterable[list[_Line]] = _batches(path)
    if not is_pipe:
        settings = _checked(batches, buffer, name, fields, counts)
        batches = _batches(path)
    elif buffer is None:
        first = list(islice(batches, 1))
        settings = _checked(first, None, name, fields, counts)
        batches = chain(first, batches)
    else:
        settings = {}
    if settings is None:
        target = f"{name!r} in {shown_url(resolve_url(url))}, which is not made"
    else:
        with import_target(buffer, url, name, settings, counts, may_keep=is_pipe) as opened:
            target = f"{name!r} in {opened.url}"
            insertion = _Insertion(opened, counts, ids, is_pipe=is_pipe)
            for lines in batches:
                insertion.store(lines)
                if on_progress is not None:
                    n_lines = lines[-1].number
                    on_progress(counts.n_stored, n_lines, range(n_lines))
    source = "standard input" if is_pipe else str(path)
    return counts.report(source, target, time.monotonic() - began_at)


class _Line(NamedTuple):
    number: int
    raw: bytes


def _batches(path: "str | os.PathLike[str]") -> Iterator[list[_Line]]:
    """Yield lines that are stored together; an empty line is left out."""
    lines: list[_Line] = []
    n_bytes = number = 0
    for raw in lines_of(path):
        if raw is not None:
            number += 1
            raw = raw.removeprefix(BOM_UTF8) if number == 1 else raw
            if raw.strip():
                lines.append(_Line(number, raw))
                n_bytes += len(raw)
        if lines and (raw is None or len(lines) >= LINES_AT_ONCE or n_bytes >= BYTES_AT_ONCE):
            yield lines
            lines, n_bytes = [], 0
    if lines:
        yield lines


def _named(
    error: FileImportError | FieldError, number: int, counts: ImportCounts
) -> FileImportError | FieldError:
    """Return the error of a line with its number."""
    kind = FieldError if isinstance(error, FieldError) else FileImportError
    text = _ROW.sub("", str(error), 1).replace(_UNSAFE, _OTHER_FIELD)
    return kind(f"line {number:,}: {text}; steps stored before it: {counts.n_steps:,}")


def _of_lines(lines: Sequence[_Line], error: Exception, counts: ImportCounts) -> str:
    """Return the message of an error that is not of a single line."""
    return (
        f"lines {lines[0].number:,} to {lines[-1].number:,}: {error}; steps stored before them: "
        f"{counts.n_steps:,}"
    )


def _checked(
    batches: Iterable[list[_Line]],
    buffer: ReplayBuffer | None,
    name: str,
    fields: Mapping[str, Any] | None,
    counts: ImportCounts,
) -> dict[str, Any] | None:
    """Raise unless all lines can be stored; return the settings of a new buffer, or None."""
    settings: dict[str, Any] | None = None if buffer is None else {}
    with ExitStack() as stack:
        for lines in batches:
            if buffer is None:
                try:
                    settings = {"fields": (_fields(lines) if fields is None else fields) or None}
                    buffer = stack.enter_context(ReplayBuffer("sqlite://", name, **settings))
                except (FileImportError, FieldError) as error:
                    if fields is not None:
                        raise
                    raise _named(error, lines[0].number, counts) from None
            _Insertion(buffer, counts, ImportIds(), is_pipe=False).check(lines)
    return settings


def _fields(lines: Sequence[_Line]) -> dict[str, Any] | None:
    """Return the fields that follow from lines; one that is wrong is refused as a step later."""
    trees: list[Any] = []
    for line in lines:
        with suppress(FileImportError):
            trees.append(parsed_line(line.raw))
    steps = [tree for tree in trees if isinstance(tree, dict)]
    return declared_fields(steps) if trees and isinstance(trees[0], dict) else None


class _Insertion:
    """Stores the steps of lines, or checks that they can be stored.

    Args:
        buffer: The buffer.
        counts: Receives what was stored.
        ids: What happens to the ids of the steps.
        is_pipe: Whether a step without an id is a new one each time.
    """

    def __init__(
        self, buffer: ReplayBuffer, counts: ImportCounts, ids: ImportIds, *, is_pipe: bool
    ) -> None:
        self._buffer, self._counts, self._ids, self._is_pipe = buffer, counts, ids, is_pipe

    def check(self, lines: Sequence[_Line]) -> None:
        """Raise unless all can be stored.

        Raises:
            FieldError, FileImportError: See `insert_jsonl`.
        """
        _, _, refused = self._encoded(lines)
        if refused is not None:
            raise _named(*refused, self._counts)

    def store(self, lines: Sequence[_Line]) -> None:
        """Store the steps up to the first line that cannot be stored.

        Raises:
            FieldError, FileImportError: See `insert_jsonl`.
        """
        batch, n_steps, refused = self._encoded(lines)
        counts = self._counts
        try:
            stored = self._buffer._writer.store(batch)
        except (EpisodeExistsError, EpisodeRefusedError) as error:
            raise FileImportError(_of_lines(lines, error, counts)) from error
        where = f"lines {lines[0].number:,} to {lines[-1].number:,}"
        if self._is_pipe:
            trees = [parsed_line(line.raw) for line in lines[:n_steps]]
            counts.n_without_id += sum(tree.get("id") is None for tree in trees)
        counts.add(n_steps, stored, self._ids, where)
        if refused is not None:
            raise _named(*refused, counts)

    def _encoded(
        self, lines: Sequence[_Line]
    ) -> tuple[EncodedSteps, int, tuple[FileImportError | FieldError, int] | None]:
        """Return encoded steps, their number, and the error and number of the line ending them."""
        rows: list[DataRow] = []
        priorities: list[Any] = []
        refused: tuple[FileImportError | FieldError, int] | None = None
        for line in lines:
            try:
                tree = parsed_line(line.raw)
                row, priority = row_of_json(tree, self._buffer.fields)
            except (FileImportError, FieldError) as error:
                refused = error, line.number
                break
            if not self._is_pipe and tree.get("id") is None:
                row.id = f"{blake2b(line.raw.strip(), digest_size=12).hexdigest()}-{line.number}"
            rows.append(self._prefixed(row))
            priorities.append(priority)
        while True:
            has_all = self._buffer.alpha is not None and None not in priorities
            try:
                batch = self._buffer._writer.encoded_rows(
                    rows, priority=priorities if has_all else None
                )
            except FieldError as error:
                named_row = _ROW.match(str(error))
                if named_row is None:
                    raise FieldError(_of_lines(lines, error, self._counts)) from None
                # The rows before it are checked again: another check may refuse one of them.
                place = int(named_row[1])
                refused = error, lines[place].number
                del rows[place:], priorities[place:]
            else:
                return batch, len(rows), refused

    def _prefixed(self, row: DataRow) -> DataRow:
        """Return a row with the prefix before its ids."""
        prefix, meta = self._ids.prefix, row.exp_meta
        if prefix:
            row.id = f"{prefix}{row.id}"
            if meta.episode_id is not None:
                meta.episode_id = f"{prefix}{meta.episode_id}"
            if meta.parent_id is not None:
                meta.parent_id = f"{prefix}{meta.parent_id}"
        return row
