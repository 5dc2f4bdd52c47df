"""Decode tagged JSON and array bytes into the values that were stored."""

import datetime as dt
import decimal
import sys
import uuid
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import lru_cache
from keyword import iskeyword
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import orjson

from sqlbuffer.codec.plain_values import LARGE_BYTES, unescape_key, unhex_text, untag_float
from sqlbuffer.errors import MissingExtraError, install

# A memoryview belongs to the one row that is made of it, and large arrays are views of it.
Blob = bytes | bytearray | memoryview


def load_torch() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError(
            f"the stored items have torch tensors; run {install('torch')}"
        ) from None
    return torch


def decode(text: str | None, blob: Blob | None) -> Any:
    """Return the value that `Encoder.json` made `text` and `blob` from."""
    if text is None:
        return None
    if '"$' not in text:
        return orjson.loads(text)
    plan = None
    if len(text) <= _LONGEST_PLANNED and isinstance(blob, bytes):
        plan = _plans.get(text) or _plan_of(text)
    if plan is None or not plan.plain:
        return untag(orjson.loads(text), blob or b"")
    value = dict(plan.plain)
    for key, dtype, shape, start, end, tensor in plan.arrays:
        # A separate copy: writable.
        array = np.frombuffer(bytearray(blob[start:end]), dtype).reshape(shape)  # type: ignore[index]
        value[key] = array if tensor is None else tensor(array)
    return value


class _Plan(NamedTuple):
    """How a dict of arrays and plain values is decoded: at less than half of the time.

    Attributes:
        plain: Every key, in order, with the values that are not arrays.
        arrays: Key, dtype, shape, start and end of the bytes, and the function that makes a tensor
            of it.
    """

    plain: dict[str, Any]
    arrays: list[tuple[str, Any, tuple[int, ...], int, int, Any]]


_LONGEST_PLANNED, _MOST_PLANS = 2_000, 1_024
# Steps are alike, so most texts occur again and again. A plan is made when a text occurs again;
# before, its value is None. Where nothing is gained, it is `_NO_PLAN`.
_plans: dict[str, "_Plan | None"] = {}


def _plan_of(text: str) -> _Plan | None:
    """Return a new plan for a text; None if the text occurs for the first time."""
    if text in _plans:
        plan = _plans[text] = _made_plan(text)
        return plan
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    _plans[text] = None
    return None


_NO_PLAN = _Plan({}, [])


def _made_plan(text: str) -> _Plan:
    tree = orjson.loads(text)
    if not isinstance(tree, dict) or tag_of(tree) is not None:
        return _NO_PLAN
    plain, arrays = {}, []
    for stored, value in tree.items():
        key = unescape_key(stored)
        plain[key] = value
        if not isinstance(value, (dict, list)):
            continue
        tensor, content = _array_of(value)
        if content is None or not isinstance(content[0], str) or not content[3]:
            return _NO_PLAN
        dtype, shape, start, size = content
        arrays.append((key, np.dtype(dtype), tuple(shape), start, start + size, tensor))
    return _Plan(plain, arrays)


def _array_of(value: Any) -> tuple[Any, Any]:
    """Return the maker of a tensor, or None for an array, and the place of its bytes."""
    tag = tag_of(value)
    if tag == "$array":
        return None, value[tag]
    if tag == "$tensor":
        name, array = value[tag]
        return _tensor_maker(name), array["$array"]
    return None, None


def _tensor_maker(name: str) -> Callable[[Any], Any]:
    torch = load_torch()
    dtype = getattr(torch, name)

    def make(array: Any) -> Any:
        tensor = torch.from_numpy(array)
        return tensor if tensor.dtype is dtype else tensor.view(dtype)

    return make


def tag_of(tree: Any) -> str | None:
    """Return the tag of a node of a tagged tree; None for a plain value."""
    if not isinstance(tree, dict) or len(tree) != 1:
        return None
    (key,) = tree
    return key if key in _UNTAG else None


def untag(tree: Any, blob: Blob) -> Any:
    """Return the value of a tagged tree."""
    if isinstance(tree, list):
        return [untag(item, blob) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((key, content),) = tree.items()
        if key in _UNTAG:
            return _UNTAG[key](content, blob)
    return {unescape_key(key): untag(item, blob) for key, item in tree.items()}


def dtype_from_spec(spec: Any) -> np.dtype[Any]:
    """Return the dtype that `dtype_spec` wrote."""
    if isinstance(spec, str):
        return np.dtype(spec)
    if isinstance(spec, list):
        base, shape = spec
        return np.dtype((dtype_from_spec(base), tuple(shape)))
    fields: Any = {**untag(spec, b""), "formats": [dtype_from_spec(f) for f in spec["formats"]]}
    dtype: np.dtype[Any] = np.dtype(fields)
    return dtype


def _untag_array(content: Any, blob: Blob) -> np.ndarray[Any, Any]:
    spec, shape, offset, nbytes = content
    dtype = dtype_from_spec(spec)
    if not nbytes:
        return np.zeros(shape, dtype)
    raw = memoryview(blob)[offset : offset + nbytes]
    if isinstance(blob, memoryview) and nbytes >= LARGE_BYTES:
        view: np.ndarray[Any, Any] = np.frombuffer(raw, dtype).reshape(shape)
        if view.flags.aligned and view.flags.writeable:
            return view
    return np.frombuffer(bytearray(raw), dtype).reshape(shape)  # a copy of its own: writable


def _untag_scalar(content: Any, blob: Blob) -> Any:
    spec, offset, nbytes = content
    return _untag_array([spec, [], offset, nbytes], blob)[()]


def _untag_tensor(content: Any, blob: Blob) -> Any:
    name, array = content
    return _tensor_maker(name)(_untag_array(array["$array"], blob))


def namedtuple_class(module: str, name: str, fields: Sequence[str]) -> Any:
    """Return the named tuple class of a qualified name; None where there is none.

    The name may come from stored data, so it runs no code: no module is imported, and no attribute
    is computed. Only a subclass of tuple with these `_fields` is found.
    """
    target: Any = sys.modules.get(module)
    for i, part in enumerate(name.split(".")):
        if not isinstance(target, type if i else ModuleType):
            return None
        target = vars(target).get(part)
    if not (isinstance(target, type) and issubclass(target, tuple)):
        return None
    return target if list(getattr(target, "_fields", ())) == list(fields) else None


# The classes made for named tuples whose own class is not found, with the name of that.
MADE_CLASSES: dict[type, str] = {}


@lru_cache(maxsize=256)
def _plain_namedtuple(module: str, name: str, fields: tuple[str, ...]) -> Any:
    class_name = name.rpartition(".")[2]
    is_name = class_name.isidentifier() and not iskeyword(class_name)
    class_ = namedtuple(class_name if is_name else "Unnamed", fields, rename=True)  # type: ignore[misc]
    MADE_CLASSES[class_] = f"{module}.{name}"
    return class_


def _untag_namedtuple(content: Any, blob: Blob) -> Any:
    module, name, fields, values = content
    kind = namedtuple_class(module, name, fields)
    if kind is None:
        kind = _plain_namedtuple(module, name, tuple(fields))
    # Not kind(..): a class may have a constructor of its own.
    return tuple.__new__(kind, (untag(value, blob) for value in values))


_UNTAG: dict[str, Callable[[Any, Blob], Any]] = {
    "$array": _untag_array,
    "$scalar": _untag_scalar,
    "$number": lambda c, blob: np.dtype(c[0]).type(untag(c[1], blob)),
    "$tensor": _untag_tensor,
    "$namedtuple": _untag_namedtuple,
    "$bytes": lambda c, blob: bytes(blob[c[0] : c[0] + c[1]]),
    "$float": lambda c, _: untag_float(c),
    "$int": lambda c, _: int(c, 16),
    "$str": lambda c, _: unhex_text(c),
    "$tuple": lambda c, blob: tuple(untag(c, blob)),
    "$set": lambda c, blob: set(untag(c, blob)),
    "$frozenset": lambda c, blob: frozenset(untag(c, blob)),
    "$dict": lambda c, blob: {untag(k, blob): untag(v, blob) for k, v in c},
    "$datetime": lambda c, _: dt.datetime.fromisoformat(c),
    "$date": lambda c, _: dt.date.fromisoformat(c),
    "$time": lambda c, _: dt.time.fromisoformat(c),
    "$timedelta": lambda c, _: dt.timedelta(*c),
    "$decimal": lambda c, _: decimal.Decimal(c),
    "$uuid": lambda c, _: uuid.UUID(c),
    "$complex": lambda c, _: complex(*untag(c, b"")),
}
