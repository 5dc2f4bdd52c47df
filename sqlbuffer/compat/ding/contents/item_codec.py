"""Encodes items as rows of the database, and decodes them."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from orjson import loads

from sqlbuffer.codec.decoder import decode, load_torch, namedtuple_class, tag_of
from sqlbuffer.codec.exact_encoder import ExactEncoder
from sqlbuffer.codec.plain_values import INT64_MAX, INT64_MIN, unescape_key
from sqlbuffer.compat.ding.errors import ItemError
from sqlbuffer.encoding.records import Record
from sqlbuffer.errors import FieldError
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.extensions.ring_buffer import ARRAYS, IN_PARTS, STATE
from sqlbuffer.storage.rows.stored_rows import Row

Encoded = tuple[str | None, bytes | bytearray | None]


def encoded_item(item: Any, path: str) -> Encoded:
    """Return an item as JSON and the bytes of its arrays.

    Raises:
        ItemError: A part of it cannot be stored; the message names the place.
    """
    encoder = ExactEncoder()
    try:
        return encoder.json(item, path), encoder.blob or None
    except FieldError as error:
        raise ItemError(str(error)) from None


def decoded_item(text: str | None, arrays: Any) -> Any:
    """Return the item that was encoded.

    Raises:
        ItemError: It has a named tuple whose class is not found.
    """
    if text is not None and '"$namedtuple"' in text:
        _check_classes(loads(text))
    if text is None or len(text) > _LONGEST_PLANNED or not isinstance(arrays, bytes):
        return decode(text, arrays)
    plan = _plan(text)
    if plan is None:
        return decode(text, arrays)
    item = dict(plan.plain)
    for key, dtype, shape, start, end, tensor in plan.arrays:
        # A separate copy: writable.
        array = np.frombuffer(bytearray(arrays[start:end]), dtype).reshape(shape)
        item[key] = array if tensor is None else tensor(array)
    return item


def _check_classes(tree: Any) -> None:
    """Raise unless the class of each named tuple is found."""
    if tag_of(tree) == "$namedtuple":
        module, name, fields, _ = tree["$namedtuple"]
        if namedtuple_class(module, name, fields) is None:
            raise ItemError(
                f"an item has a named tuple of class {module}.{name} with the fields "
                f"{', '.join(fields)}, which is not found; import {module} before you read items"
            )
    for part in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(part, (dict, list)):
            _check_classes(part)


class _Plan(NamedTuple):
    """A plan to decode a dict of arrays and plain values. Most items have the same text, so they
    share plans, which are cached by text.

    Attributes:
        plain: Every key, in order, with the values that are not arrays.
        arrays: Key, dtype, shape, start and end of the bytes, and the function that makes a tensor
            of it.
    """

    plain: dict[str, Any]
    arrays: list[tuple[str, Any, tuple[int, ...], int, int, Any]]


_LONGEST_PLANNED = 2_000


@lru_cache(maxsize=1024)
def _plan(text: str) -> _Plan | None:
    """Return how the items of a text are read; None where nothing is gained."""
    tree = loads(text)
    if not isinstance(tree, dict) or tag_of(tree) is not None:
        return None
    plain, arrays = {}, []
    for stored, value in tree.items():
        key = unescape_key(stored)
        plain[key] = value
        if not isinstance(value, (dict, list)):
            continue
        tensor, content = _array_of(value)
        if content is None or not isinstance(content[0], str) or not content[3]:
            return None
        dtype, shape, start, size = content
        arrays.append((key, np.dtype(dtype), tuple(shape), start, start + size, tensor))
    return _Plan(plain, arrays)


def _array_of(value: Any) -> tuple[Any, Any]:
    """Return what makes a tensor of an array, and where the array is; None where it is none."""
    tag = tag_of(value)
    if tag == "$array":
        return None, value[tag]
    if tag == "$tensor":
        name, array = value[tag]
        return _tensor_maker(name), array["$array"]
    return None, None


def _tensor_maker(name: str) -> Any:
    torch = load_torch()
    dtype = getattr(torch, name)

    def make(array: Any) -> Any:
        tensor = torch.from_numpy(array)
        return tensor if tensor.dtype is dtype else tensor.view(dtype)

    return make


def records_of(items: Sequence[Any], source: tuple[str, str], envstep: Any) -> list[Record]:
    """Return the rows of items.

    Args:
        items: The items.
        source: The names of the buffer and of the experiment that push them.
        envstep: The collector's step.

    Raises:
        ItemError: A part of an item cannot be stored; the message names the item and the place.
    """
    step = _integer(envstep)
    found = []
    for i, item in enumerate(items):
        text, arrays = encoded_item(item, f"item {i}" if len(items) > 1 else "item")
        found.append(record_of(text, arrays, source, 0 if step is None else step, item))
    return found


def record_of(
    text: str | None, arrays: Any, source: tuple[str, str], step: int = 0, item: Any = None
) -> Record:
    """Return the row of an encoded item: its reward and `collect_iter` are columns as well."""
    reward = version = None
    if isinstance(item, dict):
        reward, version = _real(item.get("reward")), _integer(item.get("collect_iter"))
    # In the order of the columns: by position costs a third of what it costs by name.
    return Record(
        uuid7(), source[0], None, source[1], None, step, None, None, None, None, text, None, None,
        None, None, reward, None, None, None, None, version, arrays,
    )  # fmt: skip


def item_of(row: Row) -> Any:
    """Return the item of a row."""
    arrays = row[ARRAYS]
    return decoded_item(row[STATE], memoryview(arrays) if row[IN_PARTS] is not None else arrays)


def encoded_of(row: Row) -> Encoded:
    """Return the item of a row as it is stored."""
    return row[STATE], row[ARRAYS]


def _real(value: Any) -> float | None:
    """Return a number, or what holds one only, as a column takes it."""
    if type(value) is not float:
        if isinstance(value, (str, bytes)) or value is None:
            return None
        try:
            value = float(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            return None
    return value if math.isfinite(value) else None


def _integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return None
    return int(value) if INT64_MIN <= value <= INT64_MAX else None
