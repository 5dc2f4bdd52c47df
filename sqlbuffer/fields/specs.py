"""A typed field: its dtype, shape and default, and the values that it accepts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_choice, checked_dict, checked_flag
from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.declarations import (
    KINDS,
    VARIABLE,
    check_name,
    declared_parts,
    is_json_dtype,
    parse_dtype,
    parse_shape,
)

Casting = Literal["same_kind", "unsafe"]
_CASTINGS = get_args(Casting)
MOST_OF_RANGE = 2**24


@dataclass(frozen=True)
class FieldSpec:
    """One declared field.

    Attributes:
        name: Name of the field.
        dtype: numpy dtype, of fixed size.
        shape: Shape of one row's value; one dimension may be -1, a length that varies from row to
            row.
        default: Shape and bytes of the default value; None: every row must give a value.
        column: True for a scalar that conditions can use.

    Example:
        >>> FieldSpec.parse("obs", ("float32", (3, 2))).shape
        (3, 2)
        >>> spec = FieldSpec.parse("action", {"dtype": "int8", "column": True})
        >>> spec.cast(3).dtype, spec.cast_rows([3, 4]).shape
        (dtype('int8'), (2,))
        >>> FieldSpec.from_json("action", spec.to_json()) == spec
        True
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    default: tuple[tuple[int, ...], bytes] | None = None
    column: bool = False

    @property
    def is_number(self) -> bool:
        """True for a number or a flag of up to 8 bytes, which can be given late."""
        return self.shape == () and self.dtype.kind in "biuf" and self.dtype.itemsize <= 8

    @classmethod
    def parse(cls, name: object, given: Any) -> "FieldSpec":
        """Return the field of a declaration: a dtype, `(dtype, shape)`, `(dtype, shape, default)`,
        a dict of `dtype`, `shape`, `default` and `column`, or a field of a buffer.

        Raises:
            FieldError: The declaration is none of these; the message names the field.
        """
        check_name(name)
        if isinstance(given, FieldSpec):
            return replace(given, name=str(name))
        if hasattr(given, "shape") and not isinstance(given, (np.dtype, type)):
            # An array or a space; numpy would take its dtype and leave the shape.
            dtype = str(getattr(given, "dtype", "float32"))
            raise FieldError(
                f"field {name!r}: a declaration is a dtype or (dtype, shape), got "
                f"{type(given).__name__}; give ({dtype!r}, {given.shape})"
            )
        parts = declared_parts(str(name), given)
        column = parts.get("column", False)
        spec = cls(
            str(name),
            parse_dtype(str(name), parts["dtype"]),
            parse_shape(str(name), parts.get("shape", ())),
            None,
            column is True,
        )
        if not isinstance(column, bool):
            raise FieldError(f"field {name!r}: column is True or False, got {shown(column)}")
        if spec.column and (spec.shape != () or not is_json_dtype(spec.dtype)):
            raise FieldError(
                f"field {name!r}: only a number of up to 64 bits, a boolean or a text can be a "
                f"column, and no uint64; this is {spec}; leave column out"
            )
        default = parts.get("default")
        if default is None:
            return spec
        value = spec.cast(default)
        return replace(spec, default=(value.shape, value.tobytes()))

    @property
    def default_value(self) -> NDArray[Any] | None:
        """The value of rows that give none."""
        if self.default is None:
            return None
        shape, raw = self.default
        return np.frombuffer(raw, self.dtype).reshape(shape)

    @property
    def is_variable(self) -> bool:
        """Whether the length varies from row to row."""
        return VARIABLE in self.shape

    def __str__(self) -> str:
        return f"{_shown(self.dtype)}{self.shape}" if self.shape else _shown(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as JSON; `from_json` reads it."""
        found: dict[str, Any] = {"dtype": self.dtype.str, "shape": list(self.shape)}
        if self.default is not None:
            shape, raw = self.default
            found["default"] = [list(shape), raw.hex()]
        if self.column:
            found["column"] = True
        return found

    @classmethod
    def from_json(cls, name: str, stored: Mapping[str, Any]) -> "FieldSpec":
        """Return the field that `to_json` wrote, or of JSON that was written by hand.

        Raises:
            FieldError: Anything else; the message names the field.
        """
        check_name(name)
        parts_of = checked_dict(
            stored, "stored", "{'dtype': '<f4', 'shape': [4]}", error=FieldError
        )
        given = {part: value for part, value in parts_of.items() if part != "name"}
        parts = declared_parts(name, given)
        default: Any = parts.get("default")
        if default is not None and not _is_encoded(default):
            return cls.parse(name, given)
        dtype = parse_dtype(name, parts["dtype"])
        if default is not None:
            default = _decoded(name, dtype, *default)
        shape = parse_shape(name, parts.get("shape", ()))
        return cls(name, dtype, shape, default, parts.get("column") is True)

    def cast(self, value: Any, *, casting: Casting = "same_kind") -> NDArray[Any]:
        """Return a copy of one row's value with the dtype and shape of this field.

        Raises:
            FieldError: The shape is wrong, or the dtype cannot hold a value.
        """
        _check_unmasked(self, value)
        _check_range_size(self, value)
        if self.is_variable and isinstance(value, (list, tuple)) and not value:
            # numpy would take it for a float of shape (0,).
            return np.empty([0 if n == VARIABLE else n for n in self.shape], self.dtype)
        rows = self.cast_rows([value], casting=casting)
        return rows.reshape(rows.shape[1:])  # an item of text would lose its padding

    def cast_rows(
        self, values: Any, *, casting: Casting = "same_kind", copy: bool = True
    ) -> NDArray[Any]:
        """Return the values of n rows of fixed shape as one array of shape (n, *shape).

        Args:
            values: An array of shape (n, *shape), or a sequence of n values.
            casting: `same_kind` admits casts that keep the meaning: floats of another size unless
                one becomes infinite, integers in range, integers as floats (rounded if they have
                more digits), booleans as numbers. `unsafe` casts as numpy does.
            copy: Whether the array must not share memory with the values.

        Raises:
            FieldError: The shape is wrong, or the dtype cannot hold a value.
        """
        check_casting(casting)
        checked_flag(copy, "copy", error=FieldError)
        array = _as_array(self, values)
        if not _fits(array.shape[1:], self.shape):
            raise FieldError(
                f"field {self.name!r}: expected shape {self.shape}, got {array.shape[1:]}"
            )
        if casting == "same_kind":
            _check_cast(self, array)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                cast = array.astype(self.dtype, copy=copy)
        except (ValueError, TypeError) as error:
            raise FieldError(f"field {self.name!r}: expected {self}, got {error}") from None
        if casting == "same_kind" and self.dtype.kind in "fc":
            _check_finite(self, array, cast)
        return cast


def _is_encoded(default: Any) -> bool:
    return isinstance(default, list) and [type(part) for part in default] == [list, str]


def _decoded(
    name: str, dtype: np.dtype[Any], shape: list[int], raw: str
) -> tuple[tuple[int, ...], bytes]:
    try:
        np.frombuffer(bytes.fromhex(raw), dtype).reshape(shape)
    except (TypeError, ValueError) as error:
        raise FieldError(f"field {name!r}: the default {shown(raw)} is damaged: {error}") from None
    return tuple(shape), bytes.fromhex(raw)


def check_casting(casting: Any) -> None:
    """Raise FieldError unless the casting is `same_kind` or `unsafe`."""
    checked_choice(casting, "casting", _CASTINGS, error=FieldError)


def _as_array(spec: FieldSpec, values: Any) -> NDArray[Any]:
    _check_unmasked(spec, values)
    _check_range_size(spec, values)
    try:
        array = np.asarray(values)
        if spec.dtype.kind in "iu" and array.dtype.kind in "fO" and _are_integers(values):
            array = np.asarray(values, object)
            _check_range(spec, array)
            array = array.astype(spec.dtype)
    except FieldError:  # which is a ValueError
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise FieldError(f"field {spec.name!r}: expected {spec}, got {error}") from None
    if array.dtype.kind not in KINDS:
        raise FieldError(f"field {spec.name!r}: expected {spec}, got {shown(values)}")
    if array.ndim == 0:
        raise FieldError(f"field {spec.name!r}: expected a row for each step, got {shown(values)}")
    return array


def _check_unmasked(spec: FieldSpec, values: Any) -> None:
    if isinstance(values, np.ma.MaskedArray):
        raise FieldError(f"field {spec.name!r}: a masked array would lose its mask; fill it")


def _check_range_size(spec: FieldSpec, values: Any) -> None:
    """Raise FieldError for a range that would take gigabytes as an array."""
    if isinstance(values, range) and values[MOST_OF_RANGE:]:
        raise FieldError(
            f"field {spec.name!r}: expected up to {MOST_OF_RANGE:,} numbers, got {values}"
        )


def _are_integers(values: Any) -> bool:
    """Return True if all values are Python integers; numpy gives large ones another dtype."""
    if isinstance(values, np.ndarray):
        return False
    flat = np.asarray(values, object).ravel().tolist()
    return bool(flat) and all(type(value) is int for value in flat)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        n == want or want == VARIABLE for n, want in zip(shape, wanted, strict=True)
    )


def _check_cast(spec: FieldSpec, array: NDArray[Any]) -> None:
    have, want = array.dtype, spec.dtype
    if not array.size:
        return
    if have.kind in "iu" and want.kind in "iu":
        _check_range(spec, array)
    elif have.kind in "SU" and have.kind == want.kind:
        _check_length(spec, array)
    # numpy casts anything to text, and cuts it.
    elif want.kind in "SU" or not np.can_cast(have, want, "same_kind"):
        raise FieldError(
            f"field {spec.name!r}: expected {spec}, got {_shown(have)}, which would lose its "
            f"meaning; cast it, or allow it with casting='unsafe'"
        )


def _check_range(spec: FieldSpec, array: NDArray[Any]) -> None:
    if not array.size:
        return
    limits = np.iinfo(spec.dtype)
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        outside = low if low < limits.min else high
        raise FieldError(
            f"field {spec.name!r}: {outside} is out of the range of {_shown(spec.dtype)}, "
            f"{limits.min} to {limits.max}"
        )


def _check_length(spec: FieldSpec, array: NDArray[Any]) -> None:
    if not array.size:
        return
    longest, limit = (
        int(np.char.str_len(array).max()),
        np.dtype(spec.dtype).itemsize // (4 if spec.dtype.kind == "U" else 1),
    )
    if longest > limit:
        raise FieldError(
            f"field {spec.name!r}: a text of {longest} is longer than {_shown(spec.dtype)} holds"
        )


def _check_finite(spec: FieldSpec, array: NDArray[Any], cast: NDArray[Any]) -> None:
    if array.dtype.kind not in "iufc" or np.can_cast(array.dtype, spec.dtype, "safe"):
        return
    lost = np.isfinite(array) & ~np.isfinite(cast)
    if lost.any():
        raise FieldError(
            f"field {spec.name!r}: {shown(array[lost].flat[0])} is too large for "
            f"{_shown(spec.dtype)}"
        )


def _shown(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.kind in "biufc" else dtype.str.lstrip("<|=>")
