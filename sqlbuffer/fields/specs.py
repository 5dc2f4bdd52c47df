"""Typed fields: what an array field of a buffer is declared as, and what may be stored in it."""

import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError

# Real columns of every buffer, never declared.
BUILT_IN = ("reward", "terminated", "truncated")
# What a buffer calls its keys and payloads, and a batch its own parts.
RESERVED = (
    *("id", "task_id", "agent_id", "step", "model_version", "episode_id", "session_id"),
    *("state", "actions", "messages", "extra", "seq", "t"),
    *("discount", "info", "mask", "lens", "weights", "n_rows", "has_final", "self"),
    *("priority", "priorities", "probabilities"),
    *("keys", "values", "items", "get"),
)
# What calls that store an episode take beside its meta.
RESERVED_META = ("arrays", "final", "casting", "self")
VARIABLE = -1
MAX_ROW_BYTES = 2**28  # a quarter of what PostgreSQL takes for a value
_KINDS = "biufcSU"
_CASTINGS = ("same_kind", "unsafe")


@dataclass(frozen=True)
class FieldSpec:
    """One declared field.

    Attributes:
        name: Its name.
        dtype: Its numpy dtype, of fixed size.
        shape: Shape of one row's value; -1 in one place is a length that varies from row to row.
        default: Shape and bytes of the value of rows that name none; None: every row must.
        column: Conditions can use the value, a scalar.

    Example:
        >>> FieldSpec.parse("obs", ("float32", (3, 2))).shape
        (3, 2)
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    default: tuple[tuple[int, ...], bytes] | None = None
    column: bool = False

    @classmethod
    def parse(cls, name: object, given: Any) -> "FieldSpec":
        """Return the field that a declaration means: a dtype, `(dtype, shape)`, `(dtype, shape,
        default)`, a dict of `dtype`, `shape`, `default` and `column`, or a field of a buffer.

        Raises:
            FieldError: It is none of these; names the field.
        """
        _check_name(name)
        if isinstance(given, FieldSpec):
            return replace(given, name=str(name))
        if hasattr(given, "shape") and not isinstance(given, (np.dtype, type)):
            # An array or a space; numpy would take its dtype and leave the shape.
            dtype = str(getattr(given, "dtype", "float32"))
            raise FieldError(
                f"field {name!r}: a declaration is a dtype or (dtype, shape), got "
                f"{type(given).__name__}; give ({dtype!r}, {given.shape})"
            )
        parts = _parts(str(name), given)
        column = parts.get("column", False)
        spec = cls(
            str(name),
            _parse_dtype(str(name), parts["dtype"]),
            _parse_shape(str(name), parts.get("shape", ())),
            None,
            column is True,
        )
        if not isinstance(column, bool):
            raise FieldError(f"field {name!r}: column is True or False, got {column!r}")
        if spec.column and (spec.shape != () or not _is_json(spec.dtype)):
            raise FieldError(
                f"field {name!r}: only a number of up to 64 bits, a boolean or a text can be a "
                f"column, and no uint64; this is {spec}; leave column out"
            )
        default = parts.get("default")
        if default is None:
            return spec
        value = np.asarray(spec.cast(default), spec.dtype)  # a text of numpy has lost its padding
        return replace(spec, default=(value.shape, value.tobytes()))

    @property
    def default_value(self) -> NDArray[Any] | None:
        """The value of rows that name none."""
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
        """Return the field that `to_json` wrote."""
        default = stored.get("default")
        return cls(
            name,
            np.dtype(stored["dtype"]),
            tuple(stored["shape"]),
            None if default is None else (tuple(default[0]), bytes.fromhex(default[1])),
            bool(stored.get("column", False)),
        )

    def cast(self, value: Any, *, casting: str = "same_kind") -> NDArray[Any]:
        """Return the value of one row as this field holds it; always a copy.

        Raises:
            FieldError: Another shape, or a value that the dtype cannot hold.
        """
        _check_unmasked(self, value)
        if self.is_variable and isinstance(value, (list, tuple)) and not value:
            # numpy would take it for a float of shape (0,).
            return np.empty([0 if n == VARIABLE else n for n in self.shape], self.dtype)
        cast: NDArray[Any] = self.cast_rows([value], casting=casting)[0]
        return cast

    def cast_rows(self, values: Any, *, casting: str = "same_kind") -> NDArray[Any]:
        """Return the values of n rows of fixed shape as one array of shape (n, *shape); a copy.

        Args:
            values: An array of shape (n, *shape), or a sequence of n values.
            casting: `same_kind` lets through what keeps its meaning: floats of another size as long
                as none becomes infinite, integers in range, integers as floats (rounded, where they
                have more digits), booleans as numbers. `unsafe` is numpy's.

        Raises:
            FieldError: Another shape, or a value that the dtype cannot hold.
        """
        check_casting(casting)
        array = _as_array(self, values)
        if not _fits(array.shape[1:], self.shape):
            raise FieldError(
                f"field {self.name!r}: expected shape {self.shape}, got {array.shape[1:]}"
            )
        if casting == "same_kind":
            _check_cast(self, array)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                cast = array.astype(self.dtype)
        except (ValueError, TypeError) as error:
            raise FieldError(f"field {self.name!r}: expected {self}, got {error}") from None
        if casting == "same_kind" and self.dtype.kind in "fc":
            _check_finite(self, array, cast)
        return cast


def check_casting(casting: str) -> None:
    """Raise FieldError unless it is one of the two."""
    if casting not in _CASTINGS:
        raise FieldError(f"casting is one of {', '.join(_CASTINGS)}, got {casting!r}")


def parse_specs(given: Mapping[str, Any] | None) -> dict[str, FieldSpec]:
    """Return the declared fields by name, in the order of their declaration.

    Raises:
        FieldError: A malformed declaration; names the field.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise FieldError(
            f"fields are given as a dict such as {{'obs': ('float32', (4,))}}, got {given!r}"
        )
    specs = {str(name): FieldSpec.parse(name, spec) for name, spec in given.items()}
    sizes = {name: spec.dtype.itemsize * _n_items(spec.shape) for name, spec in specs.items()}
    if sum(sizes.values()) > MAX_ROW_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise FieldError(
            f"field {largest!r}: a row of these fields has {sum(sizes.values()):,} bytes, and one "
            f"holds {MAX_ROW_BYTES:,} at most; declare smaller parts"
        )
    return specs


def _n_items(shape: tuple[int, ...]) -> int:
    return math.prod(n for n in shape if n != VARIABLE)


def parse_meta_specs(given: Mapping[str, Any] | None) -> dict[str, FieldSpec]:
    """Return the declared fields of an episode; as `parse_specs`.

    Raises:
        FieldError: Also for a name that a call which stores episodes uses itself, and for what JSON
            does not have.
    """
    specs = parse_specs(given)
    for name, spec in specs.items():
        if name in RESERVED_META:
            raise FieldError(f"meta field {name!r}: store_episode uses this name; take another")
        if spec.column:
            raise FieldError(
                f"meta field {name!r}: conditions are about steps; leave column out, or declare it "
                f"in fields"
            )
        if not _is_json(spec.dtype):
            raise FieldError(
                f"meta field {name!r}: numbers of up to 64 bits, booleans and texts are kept with "
                f"an episode, and this is {spec}"
            )
    return specs


@dataclass(frozen=True)
class Fields:
    """The typed fields of a buffer.

    Attributes:
        specs: Those of a step by name, in the order of their declaration.
        observations: The names of those that an observation is made of.
        meta: Those of an episode, likewise.
        unsaid: Which of the three were not given, and are taken as they are stored.
    """

    specs: Mapping[str, FieldSpec]
    observations: tuple[str, ...] = ()
    meta: Mapping[str, FieldSpec] = field(default_factory=dict)
    unsaid: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def parse(
        cls,
        given: Mapping[str, Any] | None,
        observations: Sequence[str] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> "Fields":
        """Return the declared fields; an observation is the field `obs` where nothing is said.

        Raises:
            FieldError: A malformed declaration, an observation that is no field, or a name that is
                declared twice.
        """
        specs, meta_specs = parse_specs(given), parse_meta_specs(meta)
        if double := set(specs) & set(meta_specs):
            raise FieldError(
                f"field {min(double)!r} is declared in fields and in meta_fields; rename one"
            )
        named = {"specs": given, "observations": observations, "meta": meta}
        unsaid = frozenset(part for part, value in named.items() if value is None)
        if isinstance(observations, str):
            observations = (observations,)
        if observations is None:
            observations = [name for name in specs if name == "obs"]
        for name in observations:
            if name not in specs:
                raise FieldError(
                    f"observation field {name!r} is not declared; declared are "
                    f"{', '.join(specs) or 'none'}"
                )
        return cls(specs, tuple(observations), meta_specs, unsaid)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON: a list, since objects do not keep their order everywhere."""
        found = {"fields": _listed(self.specs), "observations": list(self.observations)}
        return {**found, "meta": _listed(self.meta)} if self.meta else found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Fields":
        """Return the fields that `to_json` wrote."""
        specs, meta = (
            {each["name"]: FieldSpec.from_json(each["name"], each) for each in stored.get(part, ())}
            for part in ("fields", "meta")
        )
        return cls(specs, tuple(stored["observations"]), meta)

    @property
    def comparable(self) -> dict[str, bool]:
        """Whether conditions can use each of them."""
        return {name: spec.column for name, spec in self.specs.items()}


def _listed(specs: Mapping[str, FieldSpec]) -> list[dict[str, Any]]:
    return [{"name": name, **spec.to_json()} for name, spec in specs.items()]


NO_FIELDS = Fields({})


def check_same(given: Fields, stored: Fields) -> None:
    """Raise FieldError unless two declarations are the same; names the first field that is not, and
    both declarations.
    """
    if "specs" not in given.unsaid:
        _check_same_specs("field", given.specs, stored.specs)
    if "meta" not in given.unsaid:
        _check_same_specs("meta field", given.meta, stored.meta)
    observations = set(given.observations), set(stored.observations)
    if "observations" not in given.unsaid and observations[0] != observations[1]:
        raise FieldError(
            f"the observation fields are stored as {list(stored.observations)}, and were given as "
            f"{list(given.observations)}; leave them out to use what is stored"
        )


def _check_same_specs(
    what: str, given: Mapping[str, FieldSpec], stored: Mapping[str, FieldSpec]
) -> None:
    for name in dict.fromkeys([*stored, *given]):
        left, right = given.get(name), stored.get(name)
        if left != right:
            raise FieldError(
                f"{what} {name!r} is stored as {_described(right)}, and was given as "
                f"{_described(left)}; leave the fields out to use what is stored, or give the "
                f"buffer another name"
            )


def _described(spec: FieldSpec | None) -> str:
    if spec is None:
        return "nothing"
    value = spec.default_value
    default = "" if value is None else f", default {value.tolist()!r}"
    return f"{spec}{default}{', a column' if spec.column else ''}"


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise FieldError(f"a field's name is one that Python could use, got {name!r}")
    if name in BUILT_IN:
        raise FieldError(f"field {name!r} is built in: leave it out of the declaration")
    if name in RESERVED or name.startswith("_") or name.endswith("_lens"):
        raise FieldError(f"field {name!r}: buffers and batches use this name; take another")


def _parts(name: str, given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        unknown = set(given) - {"dtype", "shape", "default", "column"}
        if unknown or "dtype" not in given:
            raise FieldError(
                f"field {name!r}: a declaration has dtype, shape, default and column, got "
                f"{dict(given)!r}"
            )
        return dict(given)
    # A structured dtype is a list, never a tuple of these lengths.
    if isinstance(given, tuple) and 1 <= len(given) <= 3:
        return dict(zip(("dtype", "shape", "default"), given, strict=False))
    return {"dtype": given}


def _parse_dtype(name: str, given: Any) -> np.dtype[Any]:
    try:
        dtype = None if given is None else np.dtype(given)
    except TypeError:
        dtype = None
    if dtype is None:
        raise FieldError(f"field {name!r}: {given!r} is not a numpy dtype")
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        raise FieldError(
            f"field {name!r}: dtype {dtype} has no fixed size; give a number, bool, or a text of "
            f"fixed length such as 'U16'; put the rest into state, messages or extra"
        )
    little: np.dtype[Any] = dtype.newbyteorder("<")
    return little


def _is_json(dtype: np.dtype[Any]) -> bool:
    """Tell whether JSON has its values, as numbers of 64 bits at most, booleans or text."""
    if dtype == np.dtype("<u8"):  # half of it is beyond the integers of the databases
        return False
    return dtype.kind == "U" or (dtype.kind in "biuf" and dtype.itemsize <= 8)


def _parse_shape(name: str, given: Any) -> tuple[int, ...]:
    shape = (given,) if isinstance(given, (int, np.integer)) else given
    if not isinstance(shape, Sequence) or not all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and (n > 0 or n == VARIABLE)
        for n in shape
    ):
        raise FieldError(
            f"field {name!r}: a shape is a tuple of positive lengths, one of them -1 where it "
            f"varies, got {given!r}"
        )
    if list(shape).count(VARIABLE) > 1:
        raise FieldError(f"field {name!r}: only one length may vary, got {given!r}")
    return tuple(int(n) for n in shape)


def _as_array(spec: FieldSpec, values: Any) -> NDArray[Any]:
    _check_unmasked(spec, values)
    try:
        array = np.asarray(values)
        if spec.dtype.kind in "iu" and array.dtype.kind in "fO" and _are_integers(values):
            array = np.asarray(values, object)
            _check_range(spec, array)
            array = array.astype(spec.dtype)
    except (ValueError, TypeError, RuntimeError) as error:
        raise FieldError(f"field {spec.name!r}: expected {spec}, got {error}") from None
    if array.dtype.kind not in _KINDS:
        raise FieldError(f"field {spec.name!r}: expected {spec}, got {_shown_values(values)}")
    if array.ndim == 0:
        raise FieldError(f"field {spec.name!r}: expected a row for each step, got {values!r}")
    return array


def _check_unmasked(spec: FieldSpec, values: Any) -> None:
    if isinstance(values, np.ma.MaskedArray):
        raise FieldError(f"field {spec.name!r}: a masked array would lose its mask; fill it")


def _are_integers(values: Any) -> bool:
    """Tell whether numpy took Python's own integers for something else, as it does large ones."""
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
            f"field {spec.name!r}: expected {spec}, got {_shown(have)}, which would lose what it "
            f"means; cast it, or allow it with casting='unsafe'"
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
            f"field {spec.name!r}: {array[lost].flat[0]!r} is too large for {_shown(spec.dtype)}"
        )


def _shown(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.kind in "biufc" else dtype.str.lstrip("<|=>")


def _shown_values(values: Any) -> str:
    shown = repr(values)
    return shown if len(shown) <= 100 else f"{shown[:100]}..."
