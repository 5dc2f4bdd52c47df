"""Typed fields of steps."""

import difflib
import keyword
import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from sqlbuffer.checks import checked_choice, checked_dict, checked_flag, checked_names, refused
from sqlbuffer.display import shown
from sqlbuffer.errors import FieldError
from sqlbuffer.spaces import ACTION, NEXT, OBSERVATION, Spaces, Structure, parse_spaces
from sqlbuffer.strict_models import StrictModel, Verbatim

# A shorter beginning of a name is that of too many others.
_SHORTEST = 3
# Names of other buffers that look like none of ours.
_SYNONYMS = {
    **dict.fromkeys(("done", "dones"), ("terminated", "truncated")),
    **dict.fromkeys(("timeout", "timeouts"), ("truncated",)),
    **dict.fromkeys(("next_state", "next_states"), ("next_obs",)),
}


def near_name(name: object, known: Collection[str]) -> str | None:
    """Return the known name that is most like another one; None: none is like it.

    One that begins with the other is an abbreviation: `obs` of `observation`. For a name that other
    buffers use for two of them, both are returned as text.

    Example:
        >>> near_name("observation", ["action", "obs"]), near_name("acton", ["action", "obs"])
        ('obs', 'action')
        >>> near_name("done", ["reward", "terminated", "truncated"])
        'terminated or truncated'
    """
    text = name[:100] if isinstance(name, str) else ""
    if meant := [candidate for candidate in _SYNONYMS.get(text, ()) if candidate in known]:
        return " or ".join(meant)
    near = difflib.get_close_matches(text, known, n=1)
    if near:
        return near[0]
    short = [
        candidate
        for candidate in known
        if min(len(candidate), len(text)) >= _SHORTEST
        and (text.startswith(candidate) or candidate.startswith(text))
    ]
    return max(short, key=len, default=None)


# Shorter words that differ by one letter are often two words: left and lift, sac and td3.
_SHORTEST_WORD = 5


def misspelt_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name that another one is probably a misspelling of; None: there is none.

    The two differ by case, separators or the form of their Unicode characters, or by one letter of
    a word of at least five. Names with different numbers, such as those of runs, are different.

    Example:
        >>> misspelt_name("CartPole-v1", ["cartpole_v1"]), misspelt_name("experts", ["expert"])
        ('cartpole_v1', 'expert')
        >>> misspelt_name("run-2", ["run-1"]), misspelt_name("policy_b", ["policy_a"])
        (None, None)
    """
    words = _words(name)
    numbers = [word for word in words if word.isdigit()]
    for candidate in known:
        others = _words(candidate)
        if candidate == name or [word for word in others if word.isdigit()] != numbers:
            continue
        if "".join(words) == "".join(others):
            return candidate
        differing = [pair for pair in zip(words, others, strict=False) if pair[0] != pair[1]]
        if len(words) == len(others) and len(differing) == 1:
            (ours, theirs) = differing[0]
            if max(len(ours), len(theirs)) >= _SHORTEST_WORD and _is_one_slip(ours, theirs):
                return candidate
    return None


def _words(name: str) -> list[str]:
    """Return the words and the numbers of a name, without case and separators."""
    return re.findall(r"[^\W\d_]+|\d+", unicodedata.normalize("NFKC", name).casefold())


def _is_one_slip(a: str, b: str) -> bool:
    """Return True if one letter too many, missing, wrong or in the place of its neighbour makes one
    word of the other.
    """
    pairs = enumerate(zip(a, b, strict=False))
    n = next((n for n, (ours, theirs) in pairs if ours != theirs), min(len(a), len(b)))
    rest, other = a[n:], b[n:]
    return (
        rest[1:] == other[1:]
        or rest[1:] == other
        or rest == other[1:]
        or (rest[:2] == other[1::-1] and rest[2:] == other[2:])
    )


# Real columns of every buffer, never declared.
BUILT_IN = ("reward", "terminated", "truncated")
# Values of a step that batches have where they are asked for.
ON_REQUEST = ("adv_t", "v_t")
# Names that no field can have, each with what has that name.
RESERVED = {
    **dict.fromkeys(("id", "task_id", "agent_id", "step", "model_version"), "key of a step"),
    **dict.fromkeys(("episode_id", "group_id", "parent_id", "session_id"), "key of a step"),
    **dict.fromkeys(("seq", "t"), "place of a step"),
    **dict.fromkeys(("state", "actions", "messages", "extra"), "payload of a row"),
    **dict.fromkeys(ON_REQUEST, "column of a step"),
    **dict.fromkeys(("priority", "priorities", "probabilities", "weights"), "priority of a step"),
    **dict.fromkeys(("discount", "info", "mask", "lens", "n_rows", "has_final"), "part of a batch"),
    **dict.fromkeys(("keys", "values", "items", "get"), "method of a dict"),
    "self": "argument of Python's methods",
}
# The same for fields of an episode.
RESERVED_META = {
    **dict.fromkeys(("arrays", "final", "casting"), "argument of store_episode()"),
}
# The same for beginnings and ends of names.
RESERVED_PREFIXES = {"_": "the library's own names"}
RESERVED_SUFFIXES = {"_lens": "lengths of a field in a batch"}
VARIABLE = -1
MAX_NAME = 200
KINDS = "biufcSU"


def check_name(name: object) -> None:
    """Raise FieldError unless a field can have this name."""
    if (
        not isinstance(name, str)
        or len(name) > MAX_NAME
        or not name.isidentifier()
        or keyword.iskeyword(name)
    ):
        raise FieldError(
            f"a field's name is one that Python could use, of up to {MAX_NAME} characters, got "
            f"{shown(name)}"
        )
    if name in BUILT_IN:
        raise FieldError(f"field {name!r} is built in: leave it out of the declaration")
    if user := _reserved_for(name):
        raise _is_reserved("field", name, user)


def _reserved_for(name: str) -> str | None:
    """Return what a name is reserved for; None if a field can have it."""
    ways = ((RESERVED_PREFIXES, name.startswith), (RESERVED_SUFFIXES, name.endswith))
    users = [user for parts, has in ways for part, user in parts.items() if has(part)]
    return RESERVED.get(name) or next(iter(users), None)


def _is_reserved(what: str, name: str, user: str) -> FieldError:
    return FieldError(
        f"{what} {name!r}: the name is reserved ({user}); take another, see the page "
        f"'Limits and reserved names'"
    )


def declared_parts(name: str, declaration: Any) -> dict[str, Any]:
    """Return the parts of a declaration by name: dtype, shape, default and column."""
    if isinstance(declaration, Mapping):
        unknown = set(declaration) - {"dtype", "shape", "default", "column"}
        if unknown or "dtype" not in declaration:
            raise FieldError(
                f"field {name!r}: a declaration has dtype, shape, default and column, got "
                f"{shown(dict(declaration))}"
            )
        return dict(declaration)
    # A structured dtype is a list, never a tuple of these lengths.
    if isinstance(declaration, tuple) and 1 <= len(declaration) <= 3:
        return dict(zip(("dtype", "shape", "default"), declaration, strict=False))
    return {"dtype": declaration}


def parse_dtype(name: str, dtype_like: Any) -> np.dtype[Any]:
    """Return the dtype that is meant, in little-endian order; it has a fixed size."""
    try:
        dtype = None if dtype_like is None else np.dtype(dtype_like)
    except Exception:  # numpy has an error for each kind of value
        dtype = None
    if dtype is None:
        raise FieldError(f"field {name!r}: {shown(dtype_like)} is not a numpy dtype")
    if dtype.kind not in KINDS or dtype.itemsize == 0:
        raise FieldError(
            f"field {name!r}: dtype {dtype} has no fixed size; give a number, bool, or a text of "
            f"fixed length such as 'U16'; put the rest into state, messages or extra"
        )
    little: np.dtype[Any] = dtype.newbyteorder("<")
    return little


def is_json_dtype(dtype: np.dtype[Any]) -> bool:
    """Return True if JSON has the values: booleans, text, and numbers of up to 64 bits."""
    if dtype == np.dtype("<u8"):  # half of it is beyond the integers of the databases
        return False
    return dtype.kind == "U" or (dtype.kind in "biuf" and dtype.itemsize <= 8)


def parse_shape(name: str, declaration: Any) -> tuple[int, ...]:
    """Return the shape that is meant; one of its lengths may be VARIABLE."""
    shape = (declaration,) if isinstance(declaration, (int, np.integer)) else declaration
    if not isinstance(shape, Sequence) or not all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and (n > 0 or n == VARIABLE)
        for n in shape
    ):
        raise FieldError(
            f"field {name!r}: a shape is a tuple of positive lengths, one of them -1 where it "
            f"varies, got {shown(declaration)}"
        )
    if list(shape).count(VARIABLE) > 1:
        raise FieldError(f"field {name!r}: only one length may vary, got {shown(declaration)}")
    return tuple(int(n) for n in shape)


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
        added: 0 for a field that the buffer was made with; 1, 2 and so on for the fields that
            `ReplayBuffer.add_field` added.

    Raises:
        FieldError: `dtype` is no numpy dtype; `FieldSpec.parse` takes a declaration.

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
    added: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, np.dtype):
            raise FieldError(
                f"field {shown(self.name)}: the dtype of a FieldSpec is a numpy dtype, got "
                f"{shown(self.dtype)}; declare fields as {{'obs': ('float32', (4,))}}, or write "
                f"FieldSpec.parse('obs', ('float32', (4,)))"
            )

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
        parts: dict[str, Any] = {"dtype": self.dtype.str, "shape": list(self.shape)}
        if self.default is not None:
            shape, raw = self.default
            parts["default"] = [list(shape), raw.hex()]
        if self.column:
            parts["column"] = True
        if self.added:
            parts["added"] = self.added
        return parts

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
        outer = ("name", "added")
        declaration = {part: value for part, value in parts_of.items() if part not in outer}
        added = parts_of.get("added", 0)
        parts = declared_parts(name, declaration)
        default: Any = parts.get("default")
        if default is not None and not _is_encoded(default):
            return cls.parse(name, declaration)
        dtype = parse_dtype(name, parts["dtype"])
        if default is not None:
            default = _decoded(name, dtype, *default)
        shape = parse_shape(name, parts.get("shape", ()))
        return cls(name, dtype, shape, default, parts.get("column") is True, added)

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
                one becomes infinite, integers in range (0 and 1 as booleans), integers as floats
                (rounded if they have more digits), booleans as numbers. `unsafe` casts as numpy
                does.
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


def value_or_default(spec: FieldSpec, value: Any, what: str = "field") -> Any:
    """Return the value of a field, or its default instead of None.

    Raises:
        FieldError: There is neither.
    """
    if value is None:
        value = spec.default_value
        if value is None:
            raise FieldError(f"{what} {spec.name!r} is missing: expected {spec}")
    return value


def check_casting(casting: Any) -> None:
    """Raise FieldError unless the casting is `same_kind` or `unsafe`."""
    checked_choice(casting, "casting", _CASTINGS, error=FieldError)


def _as_array(spec: FieldSpec, values: Any) -> NDArray[Any]:
    _check_unmasked(spec, values)
    _check_range_size(spec, values)
    if str(getattr(values, "dtype", "")) == "torch.bfloat16":  # numpy does not have it
        values = values.float()
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


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(
        n == want or want == VARIABLE for n, want in zip(shape, expected, strict=True)
    )


def _check_cast(spec: FieldSpec, array: NDArray[Any]) -> None:
    have, want = array.dtype, spec.dtype
    if not array.size:
        return
    if have.kind in "iu" and want.kind in "iub":
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
    is_flag = spec.dtype.kind == "b"
    least, most = (0, 1) if is_flag else (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max)
    low, high = int(array.min()), int(array.max())
    if low < least or high > most:
        outside = low if low < least else high
        raise FieldError(
            f"field {spec.name!r}: {outside} is out of the range of {_shown(spec.dtype)}, "
            f"{least} to {most}"
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


MAX_ROW_BYTES = 2**28  # a quarter of what PostgreSQL takes for a value


def parse_specs(declarations: Any, what: str = "fields") -> dict[str, FieldSpec]:
    """Return the declared fields by name, in the order of their declaration.

    Args:
        declarations: A dict of declarations, or the list that `Fields` makes of them in JSON:
            objects do not keep their order everywhere.
        what: Name of the argument.

    Raises:
        FieldError: A malformed declaration; the message names the field.
    """
    if isinstance(declarations, list) and all(
        isinstance(declaration, dict) and "name" in declaration for declaration in declarations
    ):
        specs = {
            declaration["name"]: FieldSpec.from_json(declaration["name"], declaration)
            for declaration in declarations
        }
    elif isinstance(declarations, Mapping):
        if "observation_fields" in declarations and isinstance(declarations.get("fields"), Mapping):
            raise FieldError(
                "fields got the arguments that fields_from_env() returns; write "
                "ReplayBuffer(url, **fields_from_env(env))"
            )
        specs = {str(name): _parsed(name, spec) for name, spec in declarations.items()}
    else:
        raise refused(declarations, what, "a dict such as {'obs': ('float32', (4,))}", FieldError)
    sizes = {name: spec.dtype.itemsize * _n_items(spec.shape) for name, spec in specs.items()}
    if sum(sizes.values()) > MAX_ROW_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise FieldError(
            f"field {largest!r}: a row of these fields has {sum(sizes.values()):,} bytes, and one "
            f"holds {MAX_ROW_BYTES:,} at most; declare smaller parts"
        )
    return specs


def _parsed(name: object, declaration: Any) -> FieldSpec:
    is_one = isinstance(declaration, FieldSpec) and declaration.name == name
    return declaration if is_one else FieldSpec.parse(name, declaration)


def _n_items(shape: tuple[int, ...]) -> int:
    return math.prod(n for n in shape if n != VARIABLE)


def parse_meta_specs(declarations: Any) -> dict[str, FieldSpec]:
    """Return the declared fields of an episode; as `parse_specs`.

    Raises:
        FieldError: Also for a name that a call which stores episodes uses itself, and for what JSON
            does not have.
    """
    specs = parse_specs(declarations, "meta_fields")
    for name, spec in specs.items():
        if name in RESERVED_META:
            raise _is_reserved("meta field", name, RESERVED_META[name])
        if spec.column:
            raise FieldError(
                f"meta field {name!r}: conditions are about steps; leave column out, or declare it "
                f"in fields"
            )
        if not is_json_dtype(spec.dtype):
            raise FieldError(
                f"meta field {name!r}: numbers of up to 64 bits, booleans and texts are kept with "
                f"an episode, and this is {spec}"
            )
    return specs


def _names(names: Any) -> Any:
    if isinstance(names, str):
        return (names,)
    return tuple(checked_names(names, "observation_fields", "['obs']"))


def _listed(specs: Mapping[str, FieldSpec]) -> list[dict[str, Any]]:
    return [{"name": name, **spec.to_json()} for name, spec in specs.items()]


def _spaces_to_json(spaces: Spaces | None) -> dict[str, Any] | None:
    return None if spaces is None else spaces.to_json()


_SpacesToJson = PlainSerializer(_spaces_to_json, return_type=dict[str, Any] | None)
_ToJson = PlainSerializer(_listed, return_type=list[dict[str, Any]])


class Fields(StrictModel, title="fields"):
    """The typed fields of a buffer.

    Attributes:
        specs: The fields of a step by name, in the order of their declaration. A declaration is a
            dtype, `(dtype, shape)`, `(dtype, shape, default)`, or a dict of `dtype`, `shape`,
            `default` and `column`.
        observations: The names of the fields that make an observation; `obs` by default.
        meta: The fields of an episode by name: numbers, booleans, texts and small arrays of them.
        spaces: The spaces that an observation and an action are of; None: unknown.

    Raises:
        FieldError: A malformed declaration, an unknown observation field, a name that is declared
            twice, or a space with other fields.

    Example:
        >>> Fields(specs={"obs": ("float32", (4,)), "action": "int64"})
        Fields(obs float32(4,), action int64; observed: obs)
    """

    specs: Annotated[Mapping[str, FieldSpec], PlainValidator(parse_specs), _ToJson] = Field(
        default_factory=dict
    )
    observations: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        default_factory=lambda values: ("obs",) if "obs" in values.get("specs", ()) else ()
    )
    meta: Annotated[Mapping[str, FieldSpec], PlainValidator(parse_meta_specs), _ToJson] = Field(
        default_factory=dict
    )
    spaces: Annotated[Spaces | None, PlainValidator(parse_spaces), _SpacesToJson] = None

    @model_validator(mode="after")
    def _check(self) -> "Fields":
        if double := set(self.specs) & set(self.meta):
            raise FieldError(
                f"field {shown(min(double))} is declared in fields and in meta_fields; rename one"
            )
        for name in self.observations:
            if name not in self.specs:
                raise FieldError(
                    f"observation_fields: field {shown(name)} is not declared; declared are "
                    f"{', '.join(self.specs) or 'none'}"
                )
        if self.spaces is not None:
            _check_spaces(self.spaces, self.specs)
        return self

    @property
    def structure(self) -> Structure | None:
        """How the fields are nested in batches; None if they are not."""
        return None if self.spaces is None else self.spaces.structure

    @property
    def comparable(self) -> dict[str, bool]:
        """Whether conditions can use each of them."""
        return {name: spec.column for name, spec in self.specs.items()}

    def with_field(self, spec: FieldSpec) -> "Fields":
        """Return these fields and one more, behind them; the same object if they have it.

        Raises:
            FieldError: The name is taken, or would change what a transition is made of.
        """
        known = self.specs.get(spec.name)
        if known == spec:
            return self
        if known is not None:
            raise FieldError(
                f"field {spec.name!r} is stored as {described(known)}, and was given as "
                f"{described(spec)}; take another name"
            )
        if spec.name in {NEXT + name for name in self.observations}:
            raise FieldError(
                f"field {spec.name!r}: transitions would take it for the observation after a step, "
                f"which the stored steps do not have; take another name"
            )
        added = 1 + max((one.added for one in self.specs.values()), default=0)
        specs = {**self.specs, spec.name: replace(spec, added=added)}
        return Fields(
            specs=specs, observations=self.observations, meta=self.meta, spaces=self.spaces
        )

    @property
    def has_next(self) -> bool:
        """Whether the observation after a step is stored with it, in fields named `next_<name>`."""
        return all(NEXT + name in self.specs for name in self.observations)

    def differences(self, stored: "Fields") -> list[str]:
        """Return how these fields differ from stored ones, a line each; parts that were not given
        are not compared.
        """
        lines = []
        if "specs" in self.model_fields_set:
            lines += _different_specs("field", self.specs, stored.specs)
        if "meta" in self.model_fields_set:
            lines += _different_specs("meta field", self.meta, stored.meta)
        is_given = "observations" in self.model_fields_set
        if is_given and set(self.observations) != set(stored.observations):
            lines.append(
                f"the observation fields are stored as {list(stored.observations)}, and were given "
                f"as {list(self.observations)}"
            )
        if self.spaces is not None and stored.spaces is not None:
            lines += self.spaces.differences(stored.spaces)
        return lines

    def with_spaces(self, spaces: Spaces) -> "Fields":
        """Return these fields with the spaces of an environment; they have none.

        Raises:
            FieldError: The values of the spaces cannot be in the fields.
        """
        _check_spaces(spaces, self.specs)
        return self.model_copy(update={"spaces": spaces})

    def check_same(self, stored: "Fields") -> None:
        """Raise FieldError unless the given fields equal the stored ones."""
        if differences := self.differences(stored):
            raise FieldError(
                f"{'; '.join(differences)}; omit the fields to use the stored ones, or give the "
                f"buffer another name"
            )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        parts = {"": self.specs, "meta: ": self.meta}
        shown = [
            f"{what}{', '.join(f'{name} {spec}' for name, spec in specs.items())}"
            for what, specs in parts.items()
            if specs
        ]
        if self.observations:
            shown.append(f"observed: {', '.join(self.observations)}")
        yield None, Verbatim("; ".join(shown))


def _check_spaces(spaces: Spaces, specs: Mapping[str, FieldSpec]) -> None:
    """Raise FieldError unless the values of spaces can be in the fields."""
    for name, part in {**spaces.fields_of(OBSERVATION), **spaces.fields_of(ACTION)}.items():
        spec, expected = specs.get(name), FieldSpec.parse(name, (part.dtype, part.shape))
        if spec is None or not takes(spec, expected):
            raise FieldError(
                f"spaces: field {name!r} is declared as {described(spec)}, and the spaces have "
                f"{expected} there; give the fields of fields_from_env(env), or leave spaces out"
            )


def takes(spec: FieldSpec, expected: FieldSpec) -> bool:
    """Return whether a field can hold the values of another one."""
    if spec.shape != expected.shape or (spec.dtype.kind in "SU") != (expected.dtype.kind in "SU"):
        return False
    return np.can_cast(expected.dtype, spec.dtype, "same_kind")


def _different_specs(
    what: str, declared: Mapping[str, FieldSpec], stored: Mapping[str, FieldSpec]
) -> list[str]:
    return [
        f"{what} {name!r} is stored as {described(stored.get(name))}, and was given as "
        f"{described(declared.get(name))}"
        for name in dict.fromkeys([*stored, *declared])
        if declared.get(name) != stored.get(name) and not _was_added(name, declared, stored)
    ]


def _was_added(
    name: str, declared: Mapping[str, FieldSpec], stored: Mapping[str, FieldSpec]
) -> bool:
    """Return whether a declaration is older than a field."""
    return name not in declared and stored[name].added > 0


def described(spec: FieldSpec | None) -> str:
    """Return a field for people, with its default; None is nothing."""
    if spec is None:
        return "nothing"
    value = spec.default_value
    default = "" if value is None else f", default {value.tolist()!r}"
    return f"{spec}{default}{', a column' if spec.column else ''}"
