"""The configuration of a buffer, and the folder or URL where it is."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.compat.database_files import FILE, file_url, is_url
from sqlbuffer.compat.memmap.config.declared_fields import (
    INTERNAL,
    DeclaredField,
    check_fields,
    parse_fields,
)
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError

KNOWN = (
    "folder", "max_episodes", "max_timesteps", "fields", "meta_fields", "circular", "overwrite",
    "read_only", "flush_every_store_step", "name", "observation_fields",
)  # fmt: skip


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
    """

    max_episodes: int
    max_timesteps: int
    fields: Mapping[str, DeclaredField]
    meta: Mapping[str, DeclaredField]
    circular: bool
    extra: Mapping[str, Any] = field(default_factory=dict)

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
        )

    def differences(self, stored: "Config") -> list[str]:
        """Return the differences to a stored configuration, one line each."""
        found = []
        for name in ("max_episodes", "max_timesteps", "circular", "fields", "meta", "extra"):
            ours, theirs = getattr(self, name), getattr(stored, name)
            if ours == theirs:
                continue
            if not isinstance(ours, Mapping):
                found.append(f"{name}: stored {theirs} vs passed {ours}")
                continue
            found += [
                f"{name} {key!r}: stored {theirs.get(key, 'nothing')} vs passed "
                f"{ours.get(key, 'nothing')}"
                for key in {**theirs, **ours}
                if ours.get(key) != theirs.get(key)
            ]
        return found


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
