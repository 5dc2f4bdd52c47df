"""Check the values of annotations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.display.short_values import shown
from sqlbuffer.encoding.priority_values import as_array
from sqlbuffer.encoding.records import encode_step
from sqlbuffer.errors import FieldError
from sqlbuffer.storage.labels.label import Label

_REALS = ("reward_t", "adv_t", "v_t")


def checked_label(values: Mapping[str, Any], extra: Any) -> Label:
    """Return the label that all rows get.

    Args:
        values: `reward_t`, `adv_t` and `v_t`; None for a value that is not given.
        extra: A dict, or None.

    Raises:
        FieldError: A value is not one finite number, or `extra` is not a dict of JSON values.
    """
    reals = {name: _one(name, value) for name, value in values.items() if value is not None}
    return Label(**reals, extra=None if extra is None else _tree(extra, "extra"))


def checked_labels(values: Mapping[str, Any], extra: Any, n: int) -> list[Label]:
    """Return the label of each of n rows.

    Args:
        values: `reward_t`, `adv_t` and `v_t`: a number for all, or an array of shape (n,).
        extra: A dict for all, or n of them.
        n: Number of rows.

    Raises:
        FieldError: As in `checked_label`, or another shape.
    """
    columns = [_each(name, values.get(name), n) for name in _REALS]
    return [Label(*row) for row in zip(*columns, _extras(extra, n), strict=True)]


def checked_version(version: Any) -> int | None:
    """Return a version; None if none is given."""
    if isinstance(version, (bool, np.bool_)):
        raise FieldError(f"version: expected an integer of 64 bits, got {shown(version)}")
    return None if version is None else encode_step(version, "version")


def checked_reward(value: Any, name: str) -> float | None:
    """Return a reward; None if none is given."""
    return None if value is None else _one(name, value)


def _one(name: str, value: Any) -> float:
    array = as_array(value, name)
    if array.ndim:
        raise FieldError(
            f"{name}: a condition, or a set of rows, takes one number for all, got shape "
            f"{array.shape}; give a list of their seq to label each with its own"
        )
    return _finite(name, array.reshape(1))[0]


def _each(name: str, value: Any, n: int) -> Sequence[float | None]:
    if value is None:
        return [None] * n
    array = as_array(value, name)
    if not array.ndim:
        return _finite(name, array.reshape(1)) * n
    if array.shape != (n,):
        raise FieldError(f"{name}: expected {n} numbers or one, got shape {array.shape}")
    return _finite(name, array)


def _finite(name: str, array: Any) -> list[float]:
    if not array.size:
        return []
    if array.dtype.kind not in "iuf":
        raise FieldError(f"{name}: expected finite numbers, got {shown(array[0])}")
    with np.errstate(over="ignore"):
        reals = array.astype(np.float64) + 0.0  # no -0.0
    wrong = np.flatnonzero(~np.isfinite(reals))
    if len(wrong):
        at = f"{name}[{wrong[0]}]" if len(reals) > 1 else name
        raise FieldError(f"{at}: expected a finite number, got {array[wrong[0]]}")
    found: list[float] = reals.tolist()
    return found


def _extras(extra: Any, n: int) -> Sequence[dict[str, Any] | None]:
    if extra is None:
        return [None] * n
    if isinstance(extra, Mapping):
        return [_tree(extra, "extra")] * n
    if not isinstance(extra, (list, tuple)):
        raise FieldError(
            f"extra: expected a dict, or a list of one for each row, got {shown(extra)}"
        )
    if len(extra) != n:
        raise FieldError(f"extra: expected {n} dicts or one, got {len(extra)}")
    return [_tree(each, f"extra[{i}]") for i, each in enumerate(extra)]


def _tree(extra: Any, path: str) -> dict[str, Any]:
    if not isinstance(extra, Mapping) or not extra:
        raise FieldError(f"{path}: expected a dict with at least one key, got {shown(extra)}")
    for key in extra:
        if not isinstance(key, str):
            raise FieldError(f"{path}: its keys are texts, got {shown(key)}")
    encoder = Encoder()
    tree: dict[str, Any] = encoder.tree({str(key): value for key, value in extra.items()}, path)
    if encoder.blob:
        raise FieldError(f"{path}: arrays and bytes are not kept with labels; give JSON values")
    return tree
