"""Fields as memmap-replay-buffer declares them: `T`, `(T, shape)` or `(T, shape, default)`."""

import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError

DTYPES = {
    "int": np.dtype("<i4"),
    "float": np.dtype("<f4"),
    "bool": np.dtype("?"),
    "uint8": np.dtype("u1"),
}
LENS, INITTED = "episode_lens", "_initted"
INTERNAL = {LENS: "int", INITTED: "bool"}
# A row of all fields has one value in the database.
MAX_ROW_BYTES = 2**28


@dataclass(frozen=True)
class DeclaredField:
    """One declared field.

    Attributes:
        name: Its name.
        kind: `int`, `float`, `bool` or `uint8`.
        shape: Shape of one value.
        default: The declared value of cells that were never written; None: zero.
    """

    name: str
    kind: str
    shape: tuple[int, ...] = ()
    default: int | float | bool | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of its values."""
        return DTYPES[self.kind]

    @property
    def fill(self) -> NDArray[Any]:
        """The value where nothing was written, of shape ()."""
        return np.array(0 if self.default is None else self.default).astype(self.dtype)

    def to_json(self) -> list[Any]:
        """Return the declaration as JSON."""
        return [self.name, self.kind, list(self.shape), self.default]

    @classmethod
    def from_json(cls, stored: list[Any]) -> "DeclaredField":
        """Return the field that `to_json` wrote."""
        name, kind, shape, default = stored
        return cls(name, kind, tuple(shape), default)

    def __str__(self) -> str:
        parts = [repr(self.kind), *([str(self.shape)] if self.shape or self.default else [])]
        return f"({', '.join([*parts, *([str(self.default)] if self.default else [])])})"


def parse_fields(given: Any, what: str) -> dict[str, DeclaredField]:
    """Return declared fields by name.

    Args:
        given: The declaration.
        what: `fields` or `meta_fields`.

    Raises:
        MemmapTypeError: It is none.
        MemmapError: A shape or a default that is none.
    """
    if not isinstance(given, Mapping):
        raise MemmapTypeError(
            f"{what} is a dict such as {{'reward': 'float', 'state': ('float', 8)}}, got {given!r}"
        )
    tracks = {name: _parse(name, spec, what) for name, spec in given.items()}
    sizes = {name: t.dtype.itemsize * math.prod(t.shape) for name, t in tracks.items()}
    if sum(sizes.values()) > MAX_ROW_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise MemmapError(
            f"{what} {largest!r}: a row of these fields has {sum(sizes.values()):,} bytes, and one "
            f"holds {MAX_ROW_BYTES:,} at most"
        )
    return tracks


def check_fields(fields: Mapping[str, DeclaredField], meta: Mapping[str, DeclaredField]) -> None:
    """Raise where a name is invalid or declared twice."""
    if shared := set(fields) & set(meta):
        raise MemmapError(f"fields and meta_fields must be disjoint - shared {shared}")
    for name in fields:
        if name.startswith("_"):
            raise MemmapError(f"field names cannot start with an underscore: {name!r}")
        if not name.isidentifier() or keyword.iskeyword(name):
            raise MemmapError(
                f"a field name is an identifier and no keyword, since `store` returns a namedtuple "
                f"of the fields: {name!r}"
            )


def _parse(name: object, spec: Any, what: str) -> DeclaredField:
    if not isinstance(name, str):
        raise MemmapTypeError(f"{what}: a name is a text, got {name!r}")
    parts = spec if isinstance(spec, tuple) else (spec,)
    if isinstance(spec, tuple) and len(spec) not in (2, 3):
        raise _malformed(name, spec, what)
    kind = parts[0]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise _malformed(name, spec, what)
    shape = parts[1] if len(parts) > 1 else ()
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in sizes):
        raise _malformed(name, spec, what)
    if any(n < 0 for n in sizes):
        raise MemmapError(f"{what} {name!r}: a shape has no negative sizes, got {shape}")
    if len(parts) < 3:
        return DeclaredField(name, kind, sizes)
    return DeclaredField(name, kind, sizes, _default(name, kind, parts[2], spec, what))


def _default(name: str, kind: str, default: Any, spec: Any, what: str) -> int | float | bool:
    if not isinstance(default, (int, float)):
        raise _malformed(name, spec, what)
    info = np.iinfo(str(DTYPES[kind])) if kind in ("int", "uint8") else None
    if info is not None and not (math.isfinite(default) and info.min <= default <= info.max):
        raise MemmapError(
            f"{what} {name!r}: a default of {kind!r} is a number from {info.min} to {info.max}, "
            f"got {default!r}"
        )
    return default


def _malformed(name: str, spec: Any, what: str) -> MemmapTypeError:
    return MemmapTypeError(
        f"{what} {name!r}: a declaration is T, (T, shape) or (T, shape, default); T is one of "
        f"{', '.join(map(repr, DTYPES))}, a shape is an int or a tuple of them, a default is one "
        f"number or boolean; got {spec!r}"
    )
