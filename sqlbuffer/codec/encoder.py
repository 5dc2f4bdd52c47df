"""Encode payload values as JSON text and array bytes."""

import dataclasses
import datetime as dt
import enum
import os
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel

from sqlbuffer.codec.decoder import dtype_from_spec, load_torch, namedtuple_class, untag
from sqlbuffer.codec.plain_values import (
    ALIGNMENT,
    DUMP_OPTIONS,
    INT64_MAX,
    INT64_MIN,
    LARGE_BYTES,
    MAX_DEPTH,
    PLAIN_DTYPES,
    TEXT_LIKE,
    byte_chunks,
    dtype_spec,
    dumps,
    escape_key,
    is_plain,
    is_plain_float,
    is_plain_key,
    tag_float,
    tag_standard_type,
    tag_text,
)
from sqlbuffer.errors import FieldError

# Attributes that tables and labelled arrays have, and plain arrays do not.
_LABELS = ("columns", "column_names", "coords", "index")


class UntaggableError(Exception):
    """Carries the path of a value that cannot be stored and the reason."""


class Encoded:
    """A value that was encoded before, in place of the value of the state of a step.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> from sqlbuffer.codec.encoder import ExactEncoder
        >>> encoder = ExactEncoder()
        >>> text = encoder.json({"x": np.float32(0.5)}, "item")
        >>> buffer = ReplayBuffer("sqlite://")
        >>> _ = buffer.add(state=Encoded(text, encoder.blob))
        >>> [row.exp_data.state for row in buffer]
        [{'x': np.float32(0.5)}]
    """

    __slots__ = ("blob", "text")

    def __init__(self, text: str | None, blob: bytes | bytearray) -> None:
        self.text, self.blob = text, blob


class Encoder:
    """Encodes the payload values of one row. It appends the bytes of their arrays to `blob`."""

    __slots__ = ("blob",)

    def __init__(self) -> None:
        self.blob = bytearray()

    def json(self, value: Any, path: str) -> str | None:
        """Return the JSON text of a value, or None for None.

        Args:
            value: A value of a kind that the table of `sqlbuffer.codec` lists, up to 100 levels of
                JSON deep (a tuple or a set takes two).
            path: Where the value stands in its row, for error messages.

        Raises:
            FieldError: The value, or one inside it, cannot be stored.
        """
        if value is None:
            return None
        if type(value) is Encoded:
            if self.blob:
                raise FieldError(f"{path}: only a state can be given encoded")
            self.blob += value.blob
            return value.text
        try:
            if is_plain(value):
                text = orjson.dumps(value, option=DUMP_OPTIONS)
                if b"\\u0000" not in text:
                    return text.decode()
        except orjson.JSONEncodeError:
            pass  # lone surrogates: the tagger decides
        return dumps(self.tree(value, path))

    def tree(self, value: Any, path: str) -> Any:
        """Return the tagged JSON tree of a value (what `json` writes as text)."""
        try:
            return self._tag(value, path, 0)
        except UntaggableError as error:
            raise FieldError(str(error)) from None
        except RecursionError:
            raise FieldError(f"{path}: nested too deep for the stack of the call") from None

    def _tag(self, value: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise UntaggableError(
                f"{path}: nested deeper than {MAX_DEPTH} levels, or contains itself"
            )
        kind = type(value)
        if value is None or kind is bool:
            return value
        if isinstance(value, enum.Enum):
            return self._tag(value.value, path, depth + 1)
        if isinstance(value, np.generic):
            return self._tag_scalar(value, path)
        if isinstance(value, str):
            return tag_text(str(value))
        if isinstance(value, int):
            return int(value) if INT64_MIN <= value <= INT64_MAX else {"$int": hex(value)}
        if isinstance(value, float):
            return tag_float(float(value))
        if isinstance(value, Mapping):
            return self._tag_mapping(value, path, depth)
        if isinstance(value, (list, deque)):
            return self._tag_items(value, path, depth)
        return self._tag_other(value, path, depth)

    def _tag_other(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, tuple):
            return {"$tuple": self._tag_items(value, path, depth + 1)}
        if isinstance(value, (set, frozenset)):
            return self._tag_set(value, path, depth)
        if isinstance(value, np.ndarray):
            return self._tag_array(value, path)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"$bytes": self._append(value if isinstance(value, bytearray) else bytes(value))}
        if isinstance(value, BaseModel):
            return self._tag(_fields_of_model(value, path), path, depth + 1)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return self._tag(fields, path, depth + 1)
        tagged = tag_standard_type(value)
        if tagged is not None:
            return tagged
        return self._tag_foreign(value, path, depth)

    def _tag_foreign(self, value: Any, path: str, depth: int) -> Any:
        _check_nothing_lost(value, path)
        if hasattr(value, "__array__") and not isinstance(value, type):
            return self._tag_array(_as_array(value, path), path)
        if callable(getattr(value, "to_dict", None)) and not isinstance(value, type):
            return self._tag(value.to_dict(), path, depth + 1)
        raise UntaggableError(
            f"{path}: cannot store a {type(value).__module__}.{type(value).__qualname__}; "
            "give JSON values, numpy arrays, bytes, datetimes, dataclasses or pydantic models"
        )

    def _tag_items(self, items: Any, path: str, depth: int) -> list[Any]:
        return [self._tag(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]

    def _tag_set(self, value: Any, path: str, depth: int) -> dict[str, Any]:
        start = len(self.blob)
        items = self._tag_items(value, path, depth + 1)
        if len(self.blob) > start and len(items) > 1:
            # Two equal sets may have their members in other orders; their bytes have one.
            del self.blob[start:]
            items = self._tag_items(sorted(value, key=_encoded_alone), path, depth + 1)
        self._check_distinct(items, path)
        tag = "$set" if isinstance(value, set) else "$frozenset"
        return {tag: sorted(items, key=dumps)}

    def _tag_mapping(self, mapping: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        if all(isinstance(key, str) and not isinstance(key, enum.Enum) for key in mapping):
            return {
                escape_key(str(key)): self._tag(item, f"{path}.{key}", depth + 1)
                for key, item in mapping.items()
            }
        pairs = [
            [
                self._tag(key, f"{path}.<key>", depth + 3),
                self._tag(item, f"{path}[{_shown(key)}]", depth + 3),
            ]
            for key, item in mapping.items()
        ]
        self._check_distinct([key for key, _ in pairs], path)
        return {"$dict": sorted(pairs, key=dumps)}

    def _check_distinct(self, tagged: list[Any], path: str) -> None:
        """Refuse members of a set, or keys of a dict, that become equal or unhashable when read."""
        try:
            distinct = len({untag(item, self.blob) for item in tagged}) == len(tagged)
        except TypeError:
            distinct = False
        if not distinct:
            raise UntaggableError(
                f"{path}: models and enums come back as plain values, which here are unhashable or "
                "equal to each other; store a list"
            )

    def _tag_scalar(self, value: np.generic, path: str) -> Any:
        kind = value.dtype.kind
        if kind in "US" or (kind in "biuf" and value.dtype.itemsize <= 8):
            return self._tag(value.item(), path, 0)
        dtype, _, offset, nbytes = self._tag_array(np.asarray(value), path)["$array"]
        return {"$scalar": [dtype, offset, nbytes]}

    def _tag_array(self, array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        if isinstance(array, np.ma.MaskedArray):
            raise UntaggableError(
                f"{path}: cannot store a masked array; store its data and mask as two arrays"
            )
        dtype = array.dtype
        spec = PLAIN_DTYPES.get(dtype)
        if spec is None:
            spec = _checked_spec(dtype, path)
        return {"$array": [spec, list(array.shape), *self._append_array(array)]}

    def _append_array(self, array: np.ndarray[Any, Any]) -> list[int]:
        if array.nbytes < LARGE_BYTES:
            return self._append(array.tobytes())
        self.blob += bytes(-len(self.blob) % ALIGNMENT)
        offset = len(self.blob)
        for chunk in byte_chunks(np.asarray(array)):
            self.blob += chunk
        return [offset, len(self.blob) - offset]

    def _append(self, data: bytes | bytearray) -> list[int]:
        offset = len(self.blob)
        self.blob += data
        return [offset, len(data)]


def _encoded_alone(value: Any) -> tuple[str, bytes]:
    encoder = Encoder()
    return dumps(encoder.tree(value, "")), bytes(encoder.blob)


def _checked_spec(dtype: np.dtype[Any], path: str) -> Any:
    if dtype.hasobject:
        raise UntaggableError(
            f"{path}: cannot store an array of dtype object; give it a fixed-size dtype"
        )
    spec = dtype_spec(dtype)
    if dtype_from_spec(spec) != dtype:
        raise UntaggableError(
            f"{path}: cannot store dtype {dtype}; cast the array to a numpy dtype"
        )
    return spec


def _check_nothing_lost(value: Any, path: str) -> None:
    """Raise for tables, whose array has no labels, and for times that Python's own cannot hold."""
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__qualname__}"
    if isinstance(value, (dt.datetime, dt.timedelta)):
        raise UntaggableError(
            f"{path}: {value!r}, a {kind}, is not exactly a time of Python; give None for a "
            f"missing one, a numpy.datetime64 or numpy.timedelta64 for nanoseconds, or its text"
        )
    labels = [name for name in _LABELS if not callable(getattr(value, name, print))]
    if labels:
        raise UntaggableError(
            f"{path}: a {kind} would lose its {labels[0]}; give a dict with a list for each "
            f"label, or the values alone as a numpy array"
        )


def _shown(key: Any) -> str:
    try:
        return repr(key)[:80]
    except Exception:  # such as an integer of too many digits
        return f"<{type(key).__qualname__}>"


def _fields_of_model(model: BaseModel, path: str) -> Any:
    """Return the fields that rebuild a model: with those of subclasses, without computed ones."""
    try:
        return model.model_dump(round_trip=True, serialize_as_any=True)
    except (ValueError, RecursionError) as error:  # it contains itself, or its serializer failed
        raise UntaggableError(
            f"{path}: cannot store a {type(model).__qualname__}: {error}"
        ) from None


def _as_array(value: Any, path: str) -> np.ndarray[Any, Any]:
    try:
        if hasattr(value, "detach"):  # a torch tensor, perhaps on a device or with a graph
            return np.asarray(value.detach().cpu().numpy())
        return np.asarray(value)
    except (TypeError, RuntimeError, ValueError) as error:
        remedy = "; convert it first: tensor.float()" if "BFloat16" in str(error) else ""
        raise UntaggableError(
            f"{path}: cannot make a numpy array of a {type(value).__qualname__}: {error}{remedy}"
        ) from None


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
        """Return the tree for orjson; takes a quarter of the time where arrays are small."""
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
