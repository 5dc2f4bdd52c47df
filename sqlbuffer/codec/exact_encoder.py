"""Encode values so that they keep their types, including torch tensors and named tuples."""

import dataclasses
import enum
import os
from collections import deque
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel

from sqlbuffer.codec.decoder import load_torch, namedtuple_class
from sqlbuffer.codec.encoder import Encoder, UntaggableError
from sqlbuffer.codec.plain_values import (
    DUMP_OPTIONS,
    INT64_MAX,
    INT64_MIN,
    LARGE_BYTES,
    PLAIN_DTYPES,
    TEXT_LIKE,
    dumps,
    is_plain_float,
    is_plain_key,
)


class ExactEncoder(Encoder):
    """Encodes only values that are read back with their own types.

    These include torch tensors (on the CPU, without a graph), numpy scalars, and named tuples whose
    class `namedtuple_class` finds. The encoder refuses what `Encoder` would store as plain values:
    models, dataclasses, enums, paths, deques and foreign arrays.

    Example:
        >>> from sqlbuffer.codec.decoder import decode
        >>> encoder = ExactEncoder()
        >>> decode(encoder.json({"x": np.float32(0.5)}, "item"), encoder.blob)
        {'x': np.float32(0.5)}
    """

    __slots__ = ()

    def json(self, value: Any, path: str) -> str | None:
        """Return the JSON text of a value, or None for None; see `Encoder.json`."""
        if type(value) is not dict:
            return super().json(value, path)
        size = len(self.blob)
        try:
            text = orjson.dumps(self._written(value, 0), option=DUMP_OPTIONS)
            if b"\\u0000" not in text:
                return text.decode()
        except (_SlowError, orjson.JSONEncodeError):
            pass
        del self.blob[size:]
        return super().json(value, path)

    def _written(self, value: Any, depth: int) -> Any:
        """Return what orjson writes as the text of the tree: at a quarter of the time, for dicts
        and lists of small arrays and plain values.
        """
        kind = type(value)
        if kind is np.ndarray:
            return self._array_text(value, None)
        if kind in TEXT_LIKE:
            return value
        if kind is float and is_plain_float(value):
            return value
        if kind is int and INT64_MIN <= value <= INT64_MAX:
            return value
        if kind is dict and depth < _FEW_LEVELS and all(map(is_plain_key, value)):
            return {key: self._written(item, depth + 1) for key, item in value.items()}
        if kind is list and depth < _FEW_LEVELS:
            return [self._written(item, depth + 1) for item in value]
        if kind.__name__ == "Tensor" and kind.__module__ == "torch":
            try:
                return self._array_text(value.numpy(), value.dtype)
            except (TypeError, RuntimeError):
                pass
        raise _SlowError

    def _array_text(self, array: np.ndarray[Any, Any], tensor_dtype: Any) -> Any:
        if array.nbytes >= LARGE_BYTES:
            raise _SlowError
        place = (array.dtype, array.shape, len(self.blob), tensor_dtype)
        text = _array_texts.get(place)
        if text is None:
            text = _made_array_text(*place, array.nbytes)
        self.blob += array.tobytes()
        return text

    def _tag(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            return self._tag_array(value, path)
        if kind.__module__.startswith("torch") and hasattr(value, "detach"):
            return self._tag_tensor(value, path)
        if isinstance(value, (enum.Enum, deque)):
            raise _unknown(value, path)
        return super()._tag(value, path, depth)

    def _tag_other(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._tag_namedtuple(value, path, depth)
        if isinstance(value, (BaseModel, os.PathLike)) or dataclasses.is_dataclass(value):
            raise _unknown(value, path)
        return super()._tag_other(value, path, depth)

    def _tag_namedtuple(self, value: Any, path: str, depth: int) -> Any:
        kind, fields = type(value), list(value._fields)
        module, name = kind.__module__, kind.__qualname__
        if namedtuple_class(module, name, fields) is not kind:
            raise UntaggableError(
                f"{path}: cannot store a named tuple of class {module}.{name}, since no class is "
                "found by that name; define it at the top level of a module, under its own name"
            )
        return {"$namedtuple": [module, name, fields, self._tag_items(value, path, depth + 2)]}

    def _tag_foreign(self, value: Any, path: str, depth: int) -> Any:
        raise _unknown(value, path)

    def _tag_scalar(self, value: np.generic, path: str) -> Any:
        dtype = value.dtype
        if dtype.kind in "biuf" and dtype.itemsize <= 8:
            return {"$number": [dtype.str, super()._tag_scalar(value, path)]}
        return super()._tag_scalar(value, path)

    def _tag_tensor(self, tensor: Any, path: str) -> dict[str, Any]:
        try:
            return {"$tensor": [_name_of(tensor.dtype), self._tag_array(_bits(tensor), path)]}
        except (TypeError, RuntimeError, NotImplementedError) as error:
            raise UntaggableError(
                f"{path}: cannot store this tensor ({error}); store tensor.to_dense() or "
                "tensor.dequantize(), or the tensors that it is made of"
            ) from None


class _SlowError(Exception):
    """A value that is not written the short way."""


_FEW_LEVELS = 8
_MOST_TEXTS = 10_000
# Items are alike: the same few arrays stand at the same few places again and again.
_array_texts: dict[Any, Any] = {}


def _made_array_text(
    dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, tensor_dtype: Any, nbytes: int
) -> Any:
    spec = PLAIN_DTYPES.get(dtype)
    if spec is None:
        raise _SlowError
    tree: dict[str, Any] = {"$array": [spec, shape, offset, nbytes]}
    if tensor_dtype is not None:
        tree = {"$tensor": [_name_of(tensor_dtype), tree]}
    if len(_array_texts) >= _MOST_TEXTS:
        _array_texts.clear()
    text = orjson.Fragment(dumps(tree))
    _array_texts[dtype, shape, offset, tensor_dtype] = text
    return text


def _name_of(tensor_dtype: Any) -> str:
    return str(tensor_dtype).removeprefix("torch.")


def _unknown(value: Any, path: str) -> UntaggableError:
    kind = type(value)
    return UntaggableError(
        f"{path}: cannot store a {kind.__module__}.{kind.__qualname__} so that it comes back "
        "equal; make a dict, a list, a number, text, bytes, a numpy array or a torch tensor of it"
    )


def _bits(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array: of its own dtype, or of integers with its bits."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return np.asarray(plain.numpy())
    except TypeError:
        if plain.layout is not load_torch().strided or plain.is_quantized or plain.is_complex():
            raise
        bits = load_torch().uint8 if plain.element_size() == 1 else load_torch().int16
        return np.asarray(plain.contiguous().view(bits).numpy())
