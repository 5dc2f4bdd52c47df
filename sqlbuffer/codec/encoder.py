"""Payload values as JSON text plus array bytes, and back, without loss.

JSON that PostgreSQL's JSONB and SQLite both keep as it is goes through untouched. Everything else
is tagged: an object with one key that begins with `$`. User keys that begin with `$` get a second
one.

| tag | value |
|---|---|
| `$array`, `$scalar` | `[dtype, shape, offset, nbytes]` into the row's `arrays` bytes |
| `$bytes` | `[offset, nbytes]` into the row's `arrays` bytes |
| `$float` | `nan`, `inf`, `-inf`, `-0.0`, or the digits of a whole float from 1e16 on |
| `$int` | the hex digits of an integer beyond 64 bits |
| `$str` | text with U+0000 or lone surrogates: six hex digits and `;` a character: sortable |
| `$tuple`, `$set`, `$frozenset`, `$dict` | lists; a `$dict` (keys that are not text) lists pairs |
| `$datetime`, `$date`, `$time`, `$timedelta`, `$decimal`, `$uuid`, `$complex` | text or numbers |

Of `ExactEncoder` alone:

| tag | value |
|---|---|
| `$number` | `[dtype, number]`: a numpy scalar |
| `$tensor` | `[dtype, array]`: a torch tensor; the array has its bits where numpy lacks the dtype |
| `$namedtuple` | `[module, qualified name of the class, names of the fields, values]` |
"""

import dataclasses
import datetime as dt
import decimal
import enum
import math
import os
import re
import struct
import sys
import uuid
from collections import deque, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from types import ModuleType
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel

from sqlbuffer.errors import FieldError, MissingExtraError

MAX_DEPTH = 100  # levels of JSON; orjson writes up to 254
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# Arrays from this size on are aligned, copied piece by piece, and views of what was read.
LARGE_BYTES = 2**16
ALIGNMENT = 64
_CHUNK_BYTES = 2**20
# JSONB prints whole floats from here on as integers.
WHOLE_FLOAT_LIMIT = 1e16

_TEXT_LIKE = {str, bool, type(None)}
_EXACT = {*_TEXT_LIKE, int}  # equality says all
_PASSTHROUGH = (
    orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
# Sorted, so that equal values have equal text: SQLite compares containers as text.
_FLOATS = {float}
_LONG_KEY = 256  # not worth remembering: the tagger decides
_DUMP_OPTIONS = _PASSTHROUGH | orjson.OPT_SORT_KEYS
_HOSTILE_KEY = re.compile('[\x00-\x1f"\\\\\ud800-\udfff]')
# Most arrays have one of these; to write a dtype down and read it again takes longer than the rest.
_PLAIN_DTYPES: dict[Any, str] = {
    np.dtype(code): np.dtype(code).str
    for code in ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d", "F", "D")
}
_KEY_ESCAPE = re.compile('[\x00-\x1f"\\\\%\ud800-\udfff]')
_KEY_UNESCAPE = re.compile("%([0-9a-f]{4})")

# A memoryview belongs to the one row that is made of it, and large arrays are views of it.
Blob = bytes | bytearray | memoryview


class _Untaggable(Exception):
    """Carries the path of a value that cannot be stored and the reason."""


class Encoder:
    """Encodes the payload values of one row; array bytes of all of them gather in `blob`, behind
    what it begins with.
    """

    __slots__ = ("blob",)

    def __init__(self, blob: bytes | bytearray = b"") -> None:
        self.blob = bytearray(blob)

    def json(self, value: Any, path: str) -> str | None:
        """Return the JSON text of a value, or None for None.

        Args:
            value: Any value of the kinds in the table above, up to 100 levels of JSON deep (a tuple
                or a set takes two).
            path: Where the value stands in its row, for error messages.

        Raises:
            FieldError: The value, or one inside it, cannot be stored.
        """
        if value is None:
            return None
        try:
            if _is_plain(value):
                text = orjson.dumps(value, option=_DUMP_OPTIONS)
                if b"\\u0000" not in text:
                    return text.decode()
        except orjson.JSONEncodeError:
            pass  # lone surrogates: the tagger decides
        return dumps(self.tree(value, path))

    def tree(self, value: Any, path: str) -> Any:
        """Return the tagged JSON tree of a value (what `json` writes as text)."""
        try:
            return self._tag(value, path, 0)
        except _Untaggable as error:
            raise FieldError(str(error)) from None
        except RecursionError:
            raise FieldError(f"{path}: nested too deep for the stack of the call") from None

    def _tag(self, value: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _Untaggable(f"{path}: nested deeper than {MAX_DEPTH} levels, or contains itself")
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
        tagged = _tag_standard_type(value)
        if tagged is not None:
            return tagged
        return self._tag_foreign(value, path, depth)

    def _tag_foreign(self, value: Any, path: str, depth: int) -> Any:
        if hasattr(value, "__array__") and not isinstance(value, type):
            return self._tag_array(_as_array(value, path), path)
        if callable(getattr(value, "to_dict", None)) and not isinstance(value, type):
            return self._tag(value.to_dict(), path, depth + 1)
        raise _Untaggable(
            f"{path}: cannot store a {type(value).__module__}.{type(value).__qualname__}; "
            "give JSON values, numpy arrays, bytes, datetimes, dataclasses or pydantic models"
        )

    def _tag_items(self, items: Any, path: str, depth: int) -> list[Any]:
        return [self._tag(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]

    def _tag_set(self, value: Any, path: str, depth: int) -> dict[str, Any]:
        items = self._tag_items(value, path, depth + 1)
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
        """Refuse members of a set, or keys of a dict, that could not be that any more when read."""
        try:
            distinct = len({untag(item, self.blob) for item in tagged}) == len(tagged)
        except TypeError:
            distinct = False
        if not distinct:
            raise _Untaggable(
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
            raise _Untaggable(
                f"{path}: cannot store a masked array; store its data and mask as two arrays"
            )
        dtype = array.dtype
        spec = _PLAIN_DTYPES.get(dtype)
        if spec is None:
            spec = _checked_spec(dtype, path)
        return {"$array": [spec, list(array.shape), *self._append_array(array)]}

    def _append_array(self, array: np.ndarray[Any, Any]) -> list[int]:
        if array.nbytes < LARGE_BYTES:
            return self._append(array.tobytes())
        self.blob += bytes(-len(self.blob) % ALIGNMENT)
        offset = len(self.blob)
        for chunk in _chunks(np.asarray(array)):
            self.blob += chunk
        return [offset, len(self.blob) - offset]

    def _append(self, data: bytes | bytearray) -> list[int]:
        offset = len(self.blob)
        self.blob += data
        return [offset, len(data)]


class ExactEncoder(Encoder):
    """Encodes values that come back as what they were, or not at all: torch tensors as tensors (on
    the CPU, without a graph), numpy scalars and named tuples as such, the latter where
    `namedtuple_class` finds their class.

    What `Encoder` would store as plain values (models, dataclasses, enums, paths, deques, foreign
    arrays) is refused.

    Example:
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
            text = orjson.dumps(self._written(value, 0), option=_DUMP_OPTIONS)
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
        if kind in _TEXT_LIKE:
            return value
        if kind is float and _is_plain_float(value):
            return value
        if kind is int and INT64_MIN <= value <= INT64_MAX:
            return value
        if kind is dict and depth < _FEW_LEVELS and all(map(_is_plain_key, value)):
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
            raise _Untaggable(
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
            raise _Untaggable(
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
    spec = _PLAIN_DTYPES.get(dtype)
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


def _unknown(value: Any, path: str) -> _Untaggable:
    kind = type(value)
    return _Untaggable(
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


def load_torch() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError(
            "the stored items have torch tensors: `pip install sqlbuffer[torch]`"
        ) from None
    return torch


def _checked_spec(dtype: np.dtype[Any], path: str) -> Any:
    """Return a dtype as it is stored."""
    if dtype.hasobject:
        raise _Untaggable(
            f"{path}: cannot store an array of dtype object; give it a fixed-size dtype"
        )
    spec = _dtype_spec(dtype)
    if _dtype_from_spec(spec) != dtype:
        raise _Untaggable(f"{path}: cannot store dtype {dtype}; cast the array to a numpy dtype")
    return spec


def _chunks(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order: all at once where they lie so, or in pieces, since a
    copy of the whole would be one more in memory.
    """
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8).data
        return
    for (piece,) in _pieces(array):
        yield piece.view(np.uint8).data


def _pieces(*arrays: np.ndarray[Any, Any]) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
    """Yield the items of arrays of one dtype and shape, in C order, some at a time."""
    flags: Any = [["readonly", "contig"]] * len(arrays)
    size = max(1, _CHUNK_BYTES // arrays[0].itemsize)
    found: Any = np.nditer(
        list(arrays), ["external_loop", "buffered"], flags, order="C", buffersize=size
    )
    for pieces in found:
        yield pieces if isinstance(pieces, tuple) else (pieces,)


def dumps(tree: Any) -> str:
    """Return the canonical JSON text of a tagged tree (keys sorted)."""
    return orjson.dumps(tree, option=_DUMP_OPTIONS).decode()


def decode(text: str | None, blob: Blob | None) -> Any:
    """Return the value that `Encoder.json` made `text` and `blob` from."""
    if text is None:
        return None
    tree = orjson.loads(text)
    return untag(tree, blob or b"") if '"$' in text else tree


def tag_of(tree: Any) -> str | None:
    """Return the tag of a tagged tree's node; None for what stands for itself."""
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


def tag_text(text: str) -> Any:
    """Return the text itself, or tagged where JSONB cannot hold it."""
    return text if is_storable_text(text) else {"$str": hex_text(text)}


def is_storable_text(text: str) -> bool:
    """Tell whether a text column of either database can hold the text."""
    if text.isascii():
        return "\0" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def hex_text(text: str) -> str:
    """Return fixed-width groups of hex digits: ordered as the characters are, searchable for
    substrings.
    """
    return "".join(f"{ord(char):06x};" for char in text)


def unhex_text(groups: str) -> str:
    """Return the text that `hex_text` wrote."""
    return "".join(chr(int(group, 16)) for group in groups.split(";")[:-1])


def tag_float(number: float) -> Any:
    """Return the number itself, or tagged where JSON or JSONB would change it."""
    if number != number:
        return {"$float": _nan_text(number)}
    if math.isinf(number):
        return {"$float": "inf" if number > 0 else "-inf"}
    if number == 0.0:
        return number if math.copysign(1.0, number) > 0 else {"$float": "-0.0"}
    if abs(number) >= WHOLE_FLOAT_LIMIT:
        return {"$float": str(int(number))}
    return number


def untag_float(text: str) -> float:
    """Return the float that `tag_float` wrote."""
    if text.startswith("nan:"):
        return float(struct.unpack(">d", bytes.fromhex(text[4:]))[0])
    return float(text)


def escape_key(key: str) -> str:
    """Return the key under which a user's key is stored: safe inside a JSON path, never a tag."""
    if _HOSTILE_KEY.search(key):
        return "$%" + _KEY_ESCAPE.sub(lambda match: f"%{ord(match[0]):04x}", key)
    return "$" + key if key.startswith("$") else key


def unescape_key(key: str) -> str:
    """Return the user's key of a stored one."""
    if key.startswith("$%"):
        return _KEY_UNESCAPE.sub(lambda match: chr(int(match[1], 16)), key[2:])
    return key[1:] if key.startswith("$") else key


def equal(left: Any, right: Any, *, strict: bool = False) -> bool:
    """Compare two values as stored payloads are: arrays by dtype, shape and content, NaN equal to
    NaN.

    Args:
        left: One value.
        right: The other.
        strict: To the bit: also tell 1 from 1.0 and True, and 0.0 from -0.0.
    """
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return _arrays_equal(left, right, strict)
    if isinstance(left, dict) and isinstance(right, dict):
        return _dicts_equal(left, right, strict)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        same_kind = isinstance(left, list) == isinstance(right, list) and len(left) == len(right)
        return same_kind and all(
            equal(a, b, strict=strict) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, float) and isinstance(right, float) and not strict:
        return bool(left == right or (left != left and right != right))
    if strict and type(left) is not type(right):
        return False
    if type(left) is type(right) and type(left) not in _EXACT:
        same = bool(_identity(left) == _identity(right))
        if same or strict:
            return same
    try:
        return bool(left == right)
    except ValueError:  # arrays in a dataclass or a model have no one truth value
        return False


def _dicts_equal(left: dict[Any, Any], right: dict[Any, Any], strict: bool) -> bool:
    has_text_keys = all(type(key) is str for key in chain(left, right))
    if not has_text_keys and (strict or left.keys() != right.keys()):
        left = {_identity(key): item for key, item in left.items()}
        right = {_identity(key): item for key, item in right.items()}
    return left.keys() == right.keys() and all(
        equal(left[key], right[key], strict=strict) for key in left
    )


def _identity(value: Any) -> Any:
    """Return what two values share if they are the same to the bit."""
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(_identity, value))
    encoder = Encoder()
    try:
        return dumps(encoder.tree(value, "")), bytes(encoder.blob)
    except FieldError:
        return value


def _arrays_equal(left: Any, right: Any, strict: bool) -> bool:
    if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)):
        return False
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    same = _same_bytes(left, right)
    if strict or same:
        return same
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fcmM"))


def _same_bytes(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    if left.nbytes < LARGE_BYTES:
        return bool(left.tobytes() == right.tobytes())
    pieces = _pieces(np.asarray(left), np.asarray(right))
    return all(ours.tobytes() == theirs.tobytes() for ours, theirs in pieces)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Tell whether orjson writes the value as JSON that both databases keep (text is checked
    afterwards).
    """
    kind = type(value)
    if kind in _TEXT_LIKE:
        return True
    if kind is float:
        return _is_plain_float(value)
    if kind is int:
        return bool(INT64_MIN <= value <= INT64_MAX)
    if depth == MAX_DEPTH:
        return False
    if kind is dict:
        return all(map(_is_plain_key, value)) and all(
            map(_is_plain, value.values(), repeat(depth + 1))
        )
    if kind is list:
        kinds = set(map(type, value))
        if kinds == _FLOATS:
            return _are_plain_floats(value)
        return kinds <= _TEXT_LIKE or all(map(_is_plain, value, repeat(depth + 1)))
    return False


@lru_cache(maxsize=4096)  # rows have the same few keys again and again
def _is_plain_text_key(key: str) -> bool:
    return key[:1] != "$" and _HOSTILE_KEY.search(key) is None


def _is_plain_key(key: Any) -> bool:
    return type(key) is str and len(key) < _LONG_KEY and _is_plain_text_key(key)


def _are_plain_floats(numbers: list[float]) -> bool:
    """Tell what `_is_plain_float` tells, of all; without a call for each in the common case."""
    return (
        all(map(math.isfinite, numbers))
        and min(numbers) > -WHOLE_FLOAT_LIMIT
        and max(numbers) < WHOLE_FLOAT_LIMIT
        and (0.0 not in numbers or all(map(_is_plain_float, numbers)))
    )


def _is_plain_float(number: float) -> bool:
    return -WHOLE_FLOAT_LIMIT < number < WHOLE_FLOAT_LIMIT and (
        number != 0.0 or math.copysign(1.0, number) > 0
    )


def _tag_standard_type(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dt.datetime):
        text = value.isoformat()
        # Python reads an offset of less than a second as none.
        is_read = dt.datetime.fromisoformat(text).utcoffset() == value.utcoffset()
        return {"$datetime": text} if is_read else None
    if isinstance(value, dt.date):
        return {"$date": value.isoformat()}
    if isinstance(value, dt.time):
        return {"$time": value.isoformat()}
    if isinstance(value, dt.timedelta):
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, decimal.Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, uuid.UUID):
        return {"$uuid": str(value)}
    if isinstance(value, complex):
        return {"$complex": [tag_float(value.real), tag_float(value.imag)]}
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return tag_text(path) if isinstance(path, str) else None
    return None


def _shown(key: Any) -> str:
    try:
        return repr(key)[:80]
    except Exception:  # such as an integer of too many digits
        return f"<{type(key).__qualname__}>"


def _fields_of_model(model: BaseModel, path: str) -> Any:
    """Return what rebuilds the model: with the fields of subclasses, without computed ones."""
    try:
        return model.model_dump(round_trip=True, serialize_as_any=True)
    except (ValueError, RecursionError) as error:  # it contains itself, or its serializer failed
        raise _Untaggable(f"{path}: cannot store a {type(model).__qualname__}: {error}") from None


def _as_array(value: Any, path: str) -> np.ndarray[Any, Any]:
    try:
        if hasattr(value, "detach"):  # a torch tensor, perhaps on a device or with a graph
            return np.asarray(value.detach().cpu().numpy())
        return np.asarray(value)
    except (TypeError, RuntimeError, ValueError) as error:
        remedy = "; convert it first: tensor.float()" if "BFloat16" in str(error) else ""
        raise _Untaggable(
            f"{path}: cannot make a numpy array of a {type(value).__qualname__}: {error}{remedy}"
        ) from None


def _dtype_spec(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_dtype_spec(base), list(shape)]
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    titles = [field[2] if len(field) == 3 else None for field in fields]
    return {
        **({"titles": [title and tag_text(title) for title in titles]} if any(titles) else {}),
        "names": [tag_text(name) for name in dtype.names],
        "formats": [_dtype_spec(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
    }


def _dtype_from_spec(spec: Any) -> np.dtype[Any]:
    if isinstance(spec, str):
        return np.dtype(spec)
    if isinstance(spec, list):
        base, shape = spec
        return np.dtype((_dtype_from_spec(base), tuple(shape)))
    fields: Any = {**untag(spec, b""), "formats": [_dtype_from_spec(f) for f in spec["formats"]]}
    dtype: np.dtype[Any] = np.dtype(fields)
    return dtype


def _untag_array(content: Any, blob: Blob) -> np.ndarray[Any, Any]:
    spec, shape, offset, nbytes = content
    dtype = _dtype_from_spec(spec)
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


def _nan_text(number: float) -> str:
    raw = struct.pack(">d", number)
    return "nan" if raw == struct.pack(">d", math.nan) else "nan:" + raw.hex()


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
