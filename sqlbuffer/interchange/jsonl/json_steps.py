"""A step as a JSON object, and back.

Its keys are those that the commands print with `--ndjson`. Values that JSON does not have are
tagged as in payloads in the database: `{"$float": "nan"}`.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.codec.decoder import untag
from sqlbuffer.codec.scalar_tags import tag_float
from sqlbuffer.errors import FieldError, FileImportError
from sqlbuffer.fields.declarations import VARIABLE
from sqlbuffer.fields.near_names import near_name
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.steps.column_batch import ColumnBatch, RaggedValues
from sqlbuffer.steps.data_rows import DataRow, Experience, ExpMeta

META = (
    "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "step", "execute_time",
    "model_version", "session_id",
)  # fmt: skip
# Names of columns by those in JSON, in the order of a line.
COLUMNS = {
    "seq": "seq", "id": "id", **{name: name for name in META}, "reward_t": "reward",
    "adv_t": "advantage", "v_t": "value", "terminated": "terminated", "truncated": "truncated",
    "state": "state", "actions": "actions", "messages": "messages", "extra": "extra",
    "arrays": "arrays", "priority": "priority",
}  # fmt: skip
PAYLOADS = ("state", "actions", "messages", "extra")
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
        shown: _listed(batch, own)
        for shown, own in COLUMNS.items()
        if own in names and shown not in specs
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
        found: list[Any] = ColumnBatch.column(_plain(batch), name)
        if name in PAYLOADS:
            return [None if text is None else orjson.Fragment(text) for text in found]
        if name == "arrays":
            return [None if raw is None else base64.b64encode(raw).decode() for raw in found]
        return found
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
    each = [values[i] for i in range(n)]
    if kind in "biu":
        return [np.ascontiguousarray(value) if value.ndim else value.item() for value in each]
    if kind != "f" or spec.dtype.itemsize > 8:
        return [_tagged(np.asarray(value).tolist()) for value in each]
    flat = values.values if isinstance(values, RaggedValues) else values
    if np.isfinite(flat).all():
        # 16 bits are written with the digits of 32, which mean the same number.
        wide = np.float32 if spec.dtype.itemsize == 2 else spec.dtype
        return [np.ascontiguousarray(v, wide) if v.ndim else v.item() for v in each]
    return [_tagged(np.asarray(value).tolist()) for value in each]


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
        own = {
            name: untag(value, arrays) if isinstance(value, (dict, list)) else value
            for name, value in values.items()
        }
        given = {name: untag(value, b"") for name, value in fields.items() if value is not None}
    except _WRONG_TAG as error:
        raise FileImportError(f"a value is tagged wrongly: {error!r:.200}") from None
    typed = {name: _field_value(specs[name], value) for name, value in given.items()}
    meta = ExpMeta(
        task_id=_text(own.get("task_id"), "default"),
        task_name=own.get("task_name"),
        agent_id=_text(own.get("agent_id"), "default"),
        step=own.get("step") or 0,
        execute_time=own.get("execute_time"),
        pre_agent=own.get("pre_agent"),
        episode_id=own.get("episode_id"),
        model_version=own.get("model_version"),
        session_id=own.get("session_id"),
    )
    actions = own.get("actions")
    if "action" in tree and "action" not in specs and actions is not None:
        actions = [actions]
    data = Experience(
        state=own.get("state"),
        actions=actions,
        reward_t=own.get("reward_t"),
        adv_t=own.get("adv_t"),
        v_t=own.get("v_t"),
        messages=own.get("messages"),
        terminated=own.get("terminated"),
        truncated=own.get("truncated"),
        extra=own.get("extra"),
    )
    row = DataRow(meta, data, fields=typed) if own.get("id") is None else DataRow(
        meta, data, own["id"], fields=typed
    )  # fmt: skip
    return row, own.get("priority")


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
