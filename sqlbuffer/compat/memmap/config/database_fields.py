"""The typed fields and columns that declared fields have in the database."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.compat.memmap.config.declared_fields import DeclaredField
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.fields import BUILT_IN, RESERVED, Fields, FieldSpec

# Larger defaults are not kept in the declaration of the field.
MAX_DEFAULT_ITEMS = 1_024
# Scalar fields of these names and kinds are the columns of the same name.
_COLUMNS = {"reward": ("int", "float", "uint8"), "terminated": ("bool",), "truncated": ("bool",)}


def core_names(tracks: Mapping[str, DeclaredField]) -> dict[str, str]:
    """Return the name of each field in the database, where some names are reserved."""
    found: dict[str, str] = {}
    for name in tracks:
        own = name
        while own in (*BUILT_IN, *RESERVED) or own.endswith("_lens") or own in found.values():
            own += "_"
        found[name] = own
    return found


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
    specs = {
        names[name]: FieldSpec(
            names[name],
            track.dtype,
            track.shape,
            _default(track),
            track.shape == (),
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


def _default(track: DeclaredField) -> tuple[tuple[int, ...], bytes] | None:
    """Return the default that the declaration in the database has; None for large fields."""
    if math.prod(track.shape) > MAX_DEFAULT_ITEMS:
        return None
    return track.shape, np.full(track.shape, track.fill, track.dtype).tobytes()
