"""Check the values of annotations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.display import shown
from sqlbuffer.encoding.priority_values import as_array
from sqlbuffer.encoding.records import encode_step
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.storage.labels.label import Label

_REALS = ("reward_t", "adv_t", "v_t")


@dataclass(frozen=True)
class Given:
    """Values of an annotation, as a caller gave them.

    Attributes:
        reals: `reward_t`, `adv_t` and `v_t`; None for a value that is not given.
        extra: A dict, a list of dicts, or None.
        fields: Declared fields, by name.
        specs: The declared fields of the buffer.
    """

    reals: Mapping[str, Any]
    extra: Any
    fields: Mapping[str, Any]
    specs: Mapping[str, FieldSpec]

    def label(self) -> Label:
        """Return the label that all rows get.

        Raises:
            FieldError: A value is not one finite number, `extra` is not a dict of JSON values, or a
                field cannot be annotated.
        """
        reals = {name: _one(name, value) for name, value in self.reals.items() if value is not None}
        fields = {}
        for name, value in self.fields.items():
            if _is_list(name, value):
                raise _takes_one(name, np.shape(value))
            fields[name] = self._field(name, [value])[0]
        extra = None if self.extra is None else _tree(self.extra, "extra")
        return Label(**reals, extra=extra, fields=fields or None)

    def labels(self, n: int) -> list[Label]:
        """Return the label of each of n rows.

        Raises:
            FieldError: As in `label`, or another shape.
        """
        columns = [_each(name, self.reals.get(name), n) for name in _REALS]
        rows = zip(*columns, _extras(self.extra, n), self._fields(n), strict=True)
        return [Label(*row) for row in rows]

    def _fields(self, n: int) -> Sequence[dict[str, Any] | None]:
        if not self.fields:
            return [None] * n
        columns = {}
        for name, value in self.fields.items():
            is_list = _is_list(name, value)
            values = self._field(name, value if is_list else [value])
            if is_list and len(values) != n:
                raise FieldError(f"{name}: expected {n} numbers or one, got {len(values)}")
            columns[name] = values if is_list else values * n
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _field(self, name: str, values: Any) -> list[Any]:
        """Return values of a field as JSON has them."""
        spec = self.specs.get(name)
        if spec is None:
            known = ", ".join(name for name, spec in self.specs.items() if spec.is_number)
            raise FieldError(
                f"annotate() does not know {name!r}; it takes reward=, adv_t=, v_t=, extra= and "
                f"scalar fields of the buffer{f': {known}' if known else ', which has none'}"
            )
        if not spec.is_number:
            raise FieldError(
                f"field {name!r}: only a number of up to 64 bits or a boolean can be annotated; "
                f"this is {spec}"
            )
        try:
            cast = spec.cast_rows(values)
        except FieldError as error:  # there is no `casting` here
            text = str(error).removesuffix(", or allow it with casting='unsafe'")
            raise FieldError(text) from None
        if cast.dtype.kind == "f":
            _check_finite(name, cast)
            cast = cast.astype(np.float64)
        listed: list[Any] = cast.tolist()
        return listed


def _is_list(name: str, value: Any) -> bool:
    """Return True for a value for each row, and False for one for all."""
    try:
        return np.ndim(value) > 0
    except ValueError:
        raise FieldError(f"{name}: expected numbers in one dimension, got {shown(value)}") from None


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
        raise _takes_one(name, array.shape)
    return _finite(name, array.reshape(1))[0]


def _takes_one(name: str, shape: tuple[int, ...]) -> FieldError:
    return FieldError(
        f"{name}: a condition, or a set of rows, takes one number for all, got shape "
        f"{shape}; give a list of their seq to label each with its own"
    )


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
    _check_finite(name, reals)
    found: list[float] = reals.tolist()
    return found


def _check_finite(name: str, reals: NDArray[Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(reals))
    if len(wrong):
        at = f"{name}[{wrong[0]}]" if len(reals) > 1 else name
        raise FieldError(f"{at}: expected a finite number, got {reals[wrong[0]]}")


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
