"""The configuration of a buffer, `rollout_config.replay_buffer_config` of MineStudio, and where the
buffer is.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.compat.database_files import FILE, file_url, full_path
from sqlbuffer.compat.minestudio.errors import FragmentError, FragmentTypeError
from sqlbuffer.config import BufferConfig
from sqlbuffer.encoding.records import encode_key
from sqlbuffer.errors import BufferConfigError, FieldError
from sqlbuffer.strict_models import CheckedModel

NAME = "replay_buffer"
# Settings that a buffer of fragments must not have: its chunks decide what leaves.
_PLAIN = BufferConfig().replace({"max_capacity": None, "fields": {}, "evict_by": "row"})
_HELP = {
    "max_chunks": "how many chunks may be fetched at most, such as 4800",
    "max_staleness": "by how many model versions a fragment may be behind; 0: only the current one",
    "max_reuse": "how often a chunk is fetched at most; 1: once",
    "fragments_per_chunk": "how many consecutive fragments of a worker are a chunk; 1: each one",
    "fragments_per_report": "every how many fragments is reported; leave it out for never",
    "max_bytes": "bytes of payloads that may be fetched at most; leave it out for any",
    "clear": "True deletes the contents of the buffer; omit it to keep them",
    "database_config": "a mapping with path=... (a folder) or url=...",
    "path": "a folder",
    "url": "a database URL",
    "num_shards": "a number, which is not needed here",
}
_Count = Annotated[int, Field(ge=1, lt=2**31)]


class ConfigModel(CheckedModel):
    """A frozen model whose error names each wrong value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def own_error(cls, error: ValidationError) -> FragmentError:
        """Return the error to raise for one of pydantic."""
        lines = "\n  ".join(_line(problem) for problem in error.errors())
        return FragmentError(f"the config of the replay buffer:\n  {lines}")


@dataclass(frozen=True)
class Rules:
    """Rules of a buffer, set when it was made; see `Config`.

    Attributes:
        max_chunks: Maximum number of chunks that may be fetched; the oldest leave first.
        max_staleness: Largest distance of a fragment's version behind the model's.
        max_reuse: Maximum number of fetches of a chunk.
        fragments_per_chunk: Number of consecutive fragments of one worker in a chunk.
        max_bytes: Maximum size of the payloads of the chunks that may be fetched, in bytes; None
            for no limit.
        fragments_per_report: Number of fragments after which the state is reported; it has no other
            effect. None for no reports.
    """

    max_chunks: int
    max_staleness: int
    max_reuse: int
    fragments_per_chunk: int
    max_bytes: int | None = None
    fragments_per_report: int | None = None

    def differences(self, stored: "Rules") -> list[str]:
        """Return the rules about fragments that are stored differently, one line each."""
        names = [field.name for field in fields(self) if field.name != "fragments_per_report"]
        return [
            f"{name}: stored {getattr(stored, name)} vs passed {getattr(self, name)}"
            for name in names
            if getattr(self, name) != getattr(stored, name)
        ]


class DatabaseConfig(ConfigModel):
    """Where a buffer is.

    Attributes:
        path: The folder of a SQLite file; relative to the working folder.
        url: A database URL in its place.
        num_shards: Taken and ignored: one database does what shards did.

    Example:
        >>> DatabaseConfig(path="cache", num_shards=8).path
        'cache'
    """

    path: str | None = None
    url: str | None = None
    num_shards: int | None = None


class Config(ConfigModel):
    """The configuration of a buffer; the names are MineStudio's, except `max_bytes` and `clear`.

    Attributes:
        max_chunks: Chunks that may be fetched at most; the oldest leave first.
        max_staleness: By how much a fragment may be behind the model's version.
        max_reuse: Largest number of times that a chunk is fetched.
        fragments_per_chunk: Consecutive fragments of one worker that are a chunk.
        fragments_per_report: Number of fragments between two reports of the state.
        max_bytes: Bytes of payloads that may be fetched at most.
        clear: Delete the contents of the buffer.
        database_config: Where it is.

    Example:
        >>> Config.parse(
        ...     {"max_chunks": 9, "max_staleness": 2, "max_reuse": 2, "fragments_per_chunk": 1}
        ... ).max_chunks
        9
    """

    max_chunks: _Count
    max_staleness: Annotated[int, Field(ge=0, lt=2**62)]
    max_reuse: _Count
    fragments_per_chunk: _Count
    fragments_per_report: _Count | None = None
    max_bytes: Annotated[int, Field(ge=1, lt=2**62)] | None = None
    clear: bool = False
    database_config: DatabaseConfig = DatabaseConfig()

    @classmethod
    def parse(cls, given: Any) -> "Config":
        """Return the rules in a dict, or in a DictConfig of omegaconf.

        Raises:
            FragmentTypeError: Neither of them.
            FragmentError: A name is unknown or missing, or a value is invalid; the message
                names each.
        """
        if not isinstance(given, Mapping):
            raise FragmentTypeError(
                f"config is a dict or a DictConfig with {', '.join(cls.model_fields)}; "
                f"got {given!r}"
            )
        return cls.model_validate(_plain(given))

    @property
    def rules(self) -> Rules:
        """The rules that the database applies."""
        return Rules(**{name: getattr(self, name) for name in Rules.__dataclass_fields__})


def location(path: Any, url: Any) -> str | None:
    """Return the URL of a folder or a URL; None: neither.

    Raises:
        FragmentError: Both, or a folder that cannot be made.
        FragmentTypeError: A folder that is none.
    """
    if path is not None and url is not None:
        raise FragmentError(f"a buffer is at a path or at a url; got {path!r} and a url")
    if path is None:
        return url  # type: ignore[no-any-return]
    if not isinstance(path, (str, Path)) or not str(path):
        raise FragmentTypeError(f"path is a folder, got {path!r}")
    folder = full_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FragmentError(f"path {str(path)!r} cannot be made a folder: {error}") from None
    return file_url(folder / FILE)


def checked_key(value: Any, name: str) -> str:
    """Return a text that can be a key."""
    if not isinstance(value, str):
        raise FragmentTypeError(f"{name} is a text, got {value!r}")
    try:
        return encode_key(value, name)
    except FieldError as error:
        raise FragmentError(str(error)) from None


def open_buffer(url: Any, name: Any, *, create: bool | None = None) -> ReplayBuffer:
    """Return a buffer, made if missing unless `create` is False; it may have no chunks yet.

    Raises:
        FragmentError: It was made for something else, or resized.
    """
    if not checked_key(name, "name"):
        raise FragmentTypeError(f"name is a text, got {name!r}")
    if create is False:
        return ReplayBuffer(url, name, create=False)
    try:
        return ReplayBuffer(url, name, config=_PLAIN)
    except (BufferConfigError, FieldError) as error:
        raise not_for_fragments(name, str(error)) from None


def not_for_fragments(name: str, reason: str) -> FragmentError:
    """Return the error for a buffer of something else."""
    return FragmentError(
        f"buffer {name!r} was made by another part of this package, or resized by it ({reason}); "
        f"choose another name=..., or undo that with resize(None)"
    )


def _plain(value: Any) -> Any:
    """Return mappings as dicts; a DictConfig resolves what refers to something else."""
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in value}
    return str(value) if isinstance(value, Path) else value


def _line(error: Any) -> str:
    """Return the error, its place and the remedy."""
    where = ".".join(map(str, error["loc"]))
    name = str(error["loc"][-1])
    if error["type"] == "extra_forbidden":
        known = DatabaseConfig if len(error["loc"]) > 1 else Config
        near = difflib.get_close_matches(name, known.model_fields, 1, 0.6)
        meant = f"is it {near[0]}?" if near else f"there are {', '.join(known.model_fields)}"
        return f"{where}: unknown; {meant}"
    hint = _HELP.get(name, "")
    if error["type"] == "missing":
        return f"{where}: missing; {hint}"
    return f"{where}: {error['msg'][0].lower()}{error['msg'][1:]}, got {error['input']!r}; {hint}"
