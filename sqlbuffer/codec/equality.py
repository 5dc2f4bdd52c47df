"""Compare values the way stored payloads are compared."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_values import LARGE_BYTES, TEXT_LIKE, dumps, item_pieces
from sqlbuffer.errors import FieldError

_EXACT = {*TEXT_LIKE, int}  # equality says all


def equal(left: Any, right: Any, *, strict: bool = False) -> bool:
    """Compare two values as stored payloads are: arrays by dtype, shape and content, NaN equal to
    NaN.

    Args:
        left: One value.
        right: The other.
        strict: Compare bit by bit: 1, 1.0 and True differ, and 0.0 and -0.0 do.
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
    """Return a key that is equal for two values exactly if they are the same to the bit."""
    # One by one: where the bytes of an item lie among those of others depends on the order of a
    # set, which two equal ones may have differently. Two NaN are two members.
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(Counter(map(_identity, value)).items())
    if type(value) is tuple:
        return tuple, tuple(map(_identity, value))
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
    pieces = item_pieces(np.asarray(left), np.asarray(right))
    return all(ours.tobytes() == theirs.tobytes() for ours, theirs in pieces)
