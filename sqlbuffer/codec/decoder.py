"""Decode tagged JSON and array bytes into the values that were stored."""

import datetime as dt
import decimal
import sys
import uuid
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import orjson

from sqlbuffer.codec.plain_values import LARGE_BYTES, unescape_key, unhex_text, untag_float
from sqlbuffer.errors import MissingExtraError
from sqlbuffer.extras import install

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
    tree = orjson.loads(text)
    return untag(tree, blob or b"") if '"$' in text else tree


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
    own = memoryview(blob)[offset : offset + nbytes]
    if isinstance(blob, memoryview) and nbytes >= LARGE_BYTES:
        view: np.ndarray[Any, Any] = np.frombuffer(own, dtype).reshape(shape)
        if view.flags.aligned and view.flags.writeable:
            return view
    return np.frombuffer(bytearray(own), dtype).reshape(shape)  # a copy of its own: writable


def _untag_scalar(content: Any, blob: Blob) -> Any:
    spec, offset, nbytes = content
    return _untag_array([spec, [], offset, nbytes], blob)[()]


def _untag_tensor(content: Any, blob: Blob) -> Any:
    torch = load_torch()
    name, array = content
    found = torch.from_numpy(_untag_array(array["$array"], blob))
    dtype = getattr(torch, name)
    return found if found.dtype is dtype else found.view(dtype)


def namedtuple_class(module: str, name: str, fields: Sequence[str]) -> Any:
    """Return the named tuple class of a qualified name; None where there is none.

    The name may come from stored data, so it runs no code: no module is imported, and no attribute
    is computed. Only a subclass of tuple with these `_fields` is found.
    """
    found: Any = sys.modules.get(module)
    for i, part in enumerate(name.split(".")):
        if not isinstance(found, type if i else ModuleType):
            return None
        found = vars(found).get(part)
    if not (isinstance(found, type) and issubclass(found, tuple)):
        return None
    return found if list(getattr(found, "_fields", ())) == list(fields) else None


@lru_cache(maxsize=256)
def _plain_namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def _untag_namedtuple(content: Any, blob: Blob) -> Any:
    module, name, fields, values = content
    kind = namedtuple_class(module, name, fields)
    if kind is None:
        kind = _plain_namedtuple(name.rpartition(".")[2], tuple(fields))
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
