"""Parse the parts of a field declaration: name, dtype and shape."""

import keyword
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import FieldError

# Real columns of every buffer, never declared.
BUILT_IN = ("reward", "terminated", "truncated")
# Values of a step that batches have where they are asked for.
ON_REQUEST = ("adv_t", "v_t")
# Names of a buffer's keys and payloads, and of a batch's own parts.
RESERVED = (
    *("id", "task_id", "agent_id", "step", "model_version", "episode_id", "session_id"),
    *("state", "actions", "messages", "extra", "seq", "t"),
    *("discount", "info", "mask", "lens", "weights", "n_rows", "has_final", "self"),
    *("priority", "priorities", "probabilities"),
    *("keys", "values", "items", "get"),
    *ON_REQUEST,
)
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
    if name in RESERVED or name.startswith("_") or name.endswith("_lens"):
        raise FieldError(f"field {name!r}: buffers and batches use this name; take another")


def declared_parts(name: str, given: Any) -> dict[str, Any]:
    """Return the parts of a declaration by name: dtype, shape, default and column."""
    if isinstance(given, Mapping):
        unknown = set(given) - {"dtype", "shape", "default", "column"}
        if unknown or "dtype" not in given:
            raise FieldError(
                f"field {name!r}: a declaration has dtype, shape, default and column, got "
                f"{shown(dict(given))}"
            )
        return dict(given)
    # A structured dtype is a list, never a tuple of these lengths.
    if isinstance(given, tuple) and 1 <= len(given) <= 3:
        return dict(zip(("dtype", "shape", "default"), given, strict=False))
    return {"dtype": given}


def parse_dtype(name: str, given: Any) -> np.dtype[Any]:
    """Return the dtype that is meant, in little-endian order; it has a fixed size."""
    try:
        dtype = None if given is None else np.dtype(given)
    except Exception:  # numpy has an error for each kind of value
        dtype = None
    if dtype is None:
        raise FieldError(f"field {name!r}: {shown(given)} is not a numpy dtype")
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


def parse_shape(name: str, given: Any) -> tuple[int, ...]:
    """Return the shape that is meant; one of its lengths may be VARIABLE."""
    shape = (given,) if isinstance(given, (int, np.integer)) else given
    if not isinstance(shape, Sequence) or not all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and (n > 0 or n == VARIABLE)
        for n in shape
    ):
        raise FieldError(
            f"field {name!r}: a shape is a tuple of positive lengths, one of them -1 where it "
            f"varies, got {shown(given)}"
        )
    if list(shape).count(VARIABLE) > 1:
        raise FieldError(f"field {name!r}: only one length may vary, got {shown(given)}")
    return tuple(int(n) for n in shape)
