"""Fields as memmap-replay-buffer declares them: `T`, `(T, shape)` or `(T, shape, default)`.

Also the configuration that they are a part of, and the conversion of values to their types.
"""

import difflib
import keyword
import math
import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.compat.database_files import FILE, file_url, is_url
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError, UnknownNameError
from sqlbuffer.fields import BUILT_IN, RESERVED, Fields, FieldSpec

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
# Larger defaults are not kept in the declaration of the field.
MAX_DEFAULT_ITEMS = 1_024
# Scalar fields of these names and kinds are the columns of the same name.
_COLUMNS = {"reward": ("int", "float", "uint8"), "terminated": ("bool",), "truncated": ("bool",)}
# Values of these types always fit, except integers: numpy raises for one that does not fit.
_NATIVE = {"int": int, "uint8": int, "bool": bool, "float": float}
_MAX_FLOAT = 3e38
# Arguments of the constructor, and of datasets: another name that is near to one is misspelt.
KNOWN = (
    "folder", "max_episodes", "max_timesteps", "fields", "meta_fields", "circular", "overwrite",
    "read_only", "flush_every_store_step", "name", "observation_fields",
)  # fmt: skip
OPTIONS = frozenset(
    {
        "current_fields",
        "dataset_kwargs",
        "fieldname_map",
        "fields",
        "filter_fields",
        "filter_meta",
        "include_metadata",
        "min_episode_len",
        "n_steps",
        "next_fields",
        "return_episode_lens",
        "return_indices",
        "sequence_fields",
        "slice_by_episode_len",
        "timestep_level",
        "window_length",
    }
)


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


def parse_fields(declared: Any, what: str) -> dict[str, DeclaredField]:
    """Return declared fields by name.

    Args:
        declared: The declaration.
        what: `fields` or `meta_fields`.

    Raises:
        MemmapTypeError: It is not a mapping from names to declarations of a type.
        MemmapError: A shape or a default is out of range, or a row would be too large.
    """
    if not isinstance(declared, Mapping):
        raise MemmapTypeError(
            f"{what} is a dict such as {{'reward': 'float', 'state': ('float', 8)}}, got "
            f"{declared!r}"
        )
    tracks = {name: _parse(name, spec, what) for name, spec in declared.items()}
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


@dataclass(frozen=True)
class Config:
    """The configuration of a buffer.

    Attributes:
        max_episodes: Number of slots.
        max_timesteps: Number of steps of a slot.
        fields: The fields of a step.
        meta: The fields of an episode.
        circular: Slots are used again.
        extra: Values that the user keeps with it.
        episodes: Beginning of the ids of its episodes; empty before it is stored.
    """

    max_episodes: int
    max_timesteps: int
    fields: Mapping[str, DeclaredField]
    meta: Mapping[str, DeclaredField]
    circular: bool
    extra: Mapping[str, Any] = dataclass_field(default_factory=dict)
    episodes: str = ""

    @classmethod
    def parse(
        cls,
        max_episodes: Any,
        max_timesteps: Any,
        fields: Any,
        meta_fields: Any,
        circular: Any,
        extra: Mapping[str, Any],
    ) -> "Config":
        """Return the configuration that the arguments of a constructor give.

        Raises:
            MemmapTypeError: One is of another type, or a misspelt name of one.
            MemmapError: A value out of range.
        """
        tracks = parse_fields(fields, "fields")
        meta = parse_fields({} if meta_fields is None else meta_fields, "meta_fields")
        internal = {
            name: DeclaredField(name, kind) for name, kind in INTERNAL.items() if name not in meta
        }
        meta = {**meta, **internal}
        check_fields(tracks, meta)
        if not isinstance(circular, bool):
            raise MemmapTypeError(f"circular is True or False, got {circular!r}")
        _check_extra(extra)
        return cls(
            _count(max_episodes, "max_episodes"),
            _count(max_timesteps, "max_timesteps"),
            tracks,
            meta,
            circular,
            dict(extra),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "max_episodes": self.max_episodes,
            "max_timesteps": self.max_timesteps,
            "fields": [track.to_json() for track in self.fields.values()],
            "meta_fields": [track.to_json() for track in self.meta.values()],
            "circular": self.circular,
            "extra_config": dict(self.extra),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Config":
        """Return what `to_json` wrote."""
        fields, meta = (
            {track.name: track for track in map(DeclaredField.from_json, stored[part])}
            for part in ("fields", "meta_fields")
        )
        return cls(
            stored["max_episodes"],
            stored["max_timesteps"],
            fields,
            meta,
            stored["circular"],
            stored["extra_config"],
            stored.get("episodes", ""),
        )

    def differences(self, stored: "Config") -> list[str]:
        """Return the differences to a stored configuration, one line each."""
        lines = []
        for name in ("max_episodes", "max_timesteps", "circular", "fields", "meta", "extra"):
            ours, theirs = getattr(self, name), getattr(stored, name)
            if ours == theirs:
                continue
            if not isinstance(ours, Mapping):
                lines.append(f"{name}: stored {theirs} vs passed {ours}")
                continue
            lines += [
                f"{name} {key!r}: stored {theirs.get(key, 'nothing')} vs passed "
                f"{ours.get(key, 'nothing')}"
                for key in {**theirs, **ours}
                if ours.get(key) != theirs.get(key)
            ]
        return lines


def target(folder: Any) -> tuple[str, Path | None]:
    """Return the URL that a folder or a URL means, and the folder.

    Raises:
        MemmapTypeError: It is neither.
    """
    if is_url(folder):
        return folder, None
    if not isinstance(folder, (str, Path)) or not str(folder):
        raise MemmapTypeError(f"a buffer is in a folder or at a database URL, got {folder!r}")
    path = Path(folder)
    return file_url(path / FILE), path


def _count(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise MemmapTypeError(f"{name} is a number of at least 1, got {value!r}")
    if not 1 <= value < 2**31:
        raise MemmapError(f"{name} is a number from 1 to {2**31 - 1}, got {value!r}")
    return value


def _check_extra(extra: Mapping[str, Any]) -> None:
    for name, value in extra.items():
        if near := difflib.get_close_matches(name, KNOWN, 1, 0.75):
            raise MemmapTypeError(
                f"unexpected keyword {name!r}; is it {near[0]!r}? Keywords of other names are kept "
                f"with the buffer"
            )
        if not _is_json(value):
            raise MemmapTypeError(
                f"{name!r} is kept with the buffer as JSON: text, numbers, booleans, None, and "
                f"lists and dicts of them; got {value!r}"
            )


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**53
    if isinstance(value, str):
        return is_storable_text(value)
    return value is None or isinstance(value, bool)


def core_names(tracks: Mapping[str, DeclaredField]) -> dict[str, str]:
    """Return the name of each field in the database, where some names are reserved."""
    names: dict[str, str] = {}
    for name in tracks:
        core = name
        while core in (*BUILT_IN, *RESERVED) or core.endswith("_lens") or core in names.values():
            core += "_"
        names[name] = core
    return names


def core_fields(tracks: Mapping[str, DeclaredField], observations: Any = None) -> Fields:
    """Return the typed fields of the buffer in the database; conditions can use scalars.

    Args:
        tracks: The fields.
        observations: Names of the fields of an observation; None: `obs`, or the stored names.

    Raises:
        MemmapTypeError: The names are not text.
        MemmapError: There is no such field.
    """
    names = core_names(tracks)
    if not tracks:
        raise MemmapError("a buffer has at least one field, got fields={}")
    if not isinstance(observations, (tuple, list, type(None))):
        raise MemmapTypeError(
            f"observation_fields are names of fields such as ('state',), got {observations!r}"
        )
    for name in observations or ():
        if name not in tracks:
            raise MemmapError(
                f"observation_fields: {name!r} is none of the fields {', '.join(tracks) or 'none'}"
            )
    # Conditions find the others by the columns of the same name.
    own = set(own_columns(tracks).values())
    specs = {
        names[name]: FieldSpec(
            names[name],
            track.dtype,
            track.shape,
            _stored_default(track),
            track.shape == () and name not in own,
        )
        for name, track in tracks.items()
    }
    if observations is None:
        return Fields(specs=specs)
    return Fields(specs=specs, observations=tuple(names[name] for name in observations))


def own_columns(tracks: Mapping[str, DeclaredField]) -> dict[str, str]:
    """Return the fields that are columns of every row in the database: column -> field."""
    return {
        name: name
        for name, kinds in _COLUMNS.items()
        if name in tracks and tracks[name].shape == () and tracks[name].kind in kinds
    }


def _stored_default(track: DeclaredField) -> tuple[tuple[int, ...], bytes] | None:
    """Return the default that the declaration in the database has; None for large fields."""
    if math.prod(track.shape) > MAX_DEFAULT_ITEMS:
        return None
    return track.shape, np.full(track.shape, track.fill, track.dtype).tobytes()


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return the value of a field as an array.

    Raises:
        MemmapTypeError: The value is not a number, an array of numbers or a list of numbers.
    """
    if type(value) is np.ndarray:
        array = value
    elif is_tensor(value):
        value = value.detach().cpu()
        array = np.asarray(value if value.dtype.itemsize != 2 else value.double())
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise MemmapError(f"field {name} - {error}") from None
        if array.dtype == object and isinstance(value, (list, tuple)):
            array = np.asarray([as_array(name, item) for item in value])
    if array.dtype.kind not in "biuf":
        raise MemmapTypeError(
            f"field {name} - expected numbers, booleans, or an array, tensor or list of them, got "
            f"{value!r:.200}"
        )
    return array


def is_scalar(value: Any) -> bool:
    """Return True for a number of Python or numpy."""
    return isinstance(value, (int, float, np.generic))


def cast(track: DeclaredField, value: Any) -> NDArray[Any]:
    """Return values as their field holds them, as numpy assigns: it cuts and wraps silently."""
    with np.errstate(invalid="ignore", over="ignore"):
        return as_array(track.name, value).astype(track.dtype)


def full(track: DeclaredField, value: Any) -> NDArray[Any]:
    """Return a scalar as an array of the shape of its field.

    Raises:
        OverflowError: An integer that the field cannot hold.
    """
    kind = type(value)
    if kind is _NATIVE[track.kind] and (kind is not float or abs(value) < _MAX_FLOAT):
        if not track.shape:
            return np.array(value, track.dtype)
        return np.full(track.shape, value, track.dtype)
    if isinstance(value, np.generic) and value.dtype == track.dtype and not track.shape:
        return np.array(value)
    if isinstance(value, float):
        value = np.float64(value)
    with np.errstate(invalid="ignore", over="ignore"):
        array: NDArray[Any] = np.full(track.shape, value, track.dtype)
    return array


def exact(track: DeclaredField, value: Any) -> NDArray[Any]:
    """Return a value as its field holds it.

    Raises:
        MemmapError: It has another shape.
    """
    array = as_array(track.name, value)
    if array.shape != track.shape:
        raise wrong_shape(track, array.shape)
    return cast(track, array)


def squeezed(track: DeclaredField, array: NDArray[Any], n_leading: int) -> NDArray[Any]:
    """Return an array of values with `()` and `(1,)` converted into each other.

    Args:
        track: The field.
        array: Shape (*leading, *shape of one value).
        n_leading: Number of leading axes.
    """
    value_shape = array.shape[n_leading:]
    if value_shape == (1,) and track.shape == ():
        return array.reshape(array.shape[:n_leading])
    if value_shape == () and track.shape == (1,) and array.ndim == n_leading:
        return array[..., None]
    return array


def wrong_shape(track: DeclaredField, shape: tuple[int, ...]) -> MemmapError:
    """Return the error of a value of another shape."""
    return MemmapError(f"field {track.name} - invalid shape {shape} - shape must be {track.shape}")


def is_tensor(value: Any) -> bool:
    """Return True for a tensor of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def array_or_tensor(value: Any) -> Any:
    """Return a tensor without its graph; anything else as an array."""
    return value.detach() if is_tensor(value) else np.asarray(value)


def copied(value: Any) -> Any:
    """Return a copy of an array or a tensor."""
    return value.clone() if is_tensor(value) else np.array(value)


def stacked(values: list[Any]) -> Any:
    """Return a tensor of tensors; an array where one of the values is not a tensor."""
    if all(map(is_tensor, values)):
        import torch

        return torch.stack(values)
    return np.stack([np.asarray(value.cpu() if is_tensor(value) else value) for value in values])


def check_names(parameter: str, names: Any) -> tuple[str, ...] | None:
    """Return a tuple of names, or None."""
    if names is None or (isinstance(names, tuple) and all(isinstance(n, str) for n in names)):
        return names
    raise MemmapTypeError(f"{parameter} is a tuple of names such as ('state',), got {names!r}")


def check_known(parameter: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise unless there is a field for each name."""
    known = list(known)
    for name in names:
        if name not in known:
            raise UnknownNameError(f"{parameter} names {name!r}; choose of {', '.join(known)}")


def check_map(names: Any) -> dict[str, str]:
    """Return other names for fields."""
    if names is None:
        return {}
    if isinstance(names, Mapping) and all(
        isinstance(name, str) for pair in names.items() for name in pair
    ):
        return dict(names)
    raise MemmapTypeError(f"fieldname_map is a dict such as {{'obs': 'state'}}, got {names!r}")


def check_count(parameter: str, value: Any, least: int) -> int:
    """Return a whole number that is not too small."""
    if isinstance(value, bool):
        raise MemmapTypeError(f"{parameter} is a whole number, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise MemmapTypeError(f"{parameter} is a whole number, got {value!r}") from None
    if number < least:
        raise MemmapError(f"{parameter} is at least {least}, got {number}")
    return number


def check_dataset_options(options: Mapping[str, Any]) -> None:
    """Raise for a parameter that looks misspelt; ignore others, as memmap-replay-buffer does."""
    for name in options:
        close = difflib.get_close_matches(name, OPTIONS, 1, 0.8)
        if close and close[0] != name:
            raise MemmapTypeError(f"a dataset takes no {name!r}: is it {close[0]!r}?")
