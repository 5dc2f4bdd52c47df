"""`FragmentStore`: fragments by id, each of which is a row of the buffer.

The observations are the row's `state`, the actions its only action, and the rest is in `extra`.
Tensors and numpy's scalars are stored as arrays, together with their places.
"""

import sys
import uuid
from collections.abc import Sequence
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.compat.minestudio import chunks
from sqlbuffer.compat.minestudio.config import NAME, checked_key, location, open_buffer
from sqlbuffer.compat.minestudio.datatypes import (
    FragmentMetadata,
    SampleFragment,
    imported_torch,
)
from sqlbuffer.compat.minestudio.errors import (
    FragmentError,
    FragmentNotFoundError,
    FragmentTypeError,
)
from sqlbuffer.errors import FieldError
from sqlbuffer.steps import DataRow

_IN_EXTRA = ("next_done", "reward", "first", "in_state", "next_obs")
_NAMES = ("obs", "action", *_IN_EXTRA, "episode_uuids")
_KEYS = ("worker_uuid", "fid_in_worker")
# Bytes of the JSON of an array, without its values, and of a number.
_ARRAY_BYTES, _NUMBER_BYTES = 48, 8


class FragmentStore:
    """Fragments by id. A fragment that is added only here is in no chunk and stays until deleted.

    Args:
        path: A folder, as in `database_config`.
        num_shards: Taken and ignored.
        url: A database URL in place of a folder.
        name: One database holds many buffers.

    Example:
        >>> store = FragmentStore(url="sqlite://")
        >>> store.get_disk_space()
        0
    """

    def __init__(
        self,
        path: str | None = None,
        num_shards: int | None = None,
        *,
        url: Any = None,
        name: str = NAME,
    ) -> None:
        self._buffer = open_buffer(location(path, url), name)

    @classmethod
    def of(cls, buffer: ReplayBuffer) -> "FragmentStore":
        """Return the fragments of an opened buffer."""
        made = cls.__new__(cls)
        made._buffer = buffer
        return made

    def add_fragment(self, fragment: SampleFragment) -> str:
        """Store a fragment and return its id, a UUID.

        Raises:
            FragmentError: A value that cannot be stored, named by its path.
            StorageFullError: The disk is full; nothing was stored.
        """
        id_ = str(uuid.uuid4())
        worker, fid = getattr(fragment, "worker_uuid", ""), getattr(fragment, "fid_in_worker", 0)
        row, _ = encoded(fragment, FragmentMetadata(-1, "", worker, fid), id_)
        try:
            self._buffer.add(**row)
        except FieldError as error:
            raise own_error(error) from None
        return id_

    def get_fragment(
        self, fragment_uuid: str, fields: Sequence[str] | None = None
    ) -> SampleFragment:
        """Return a fragment.

        Args:
            fragment_uuid: Its id.
            fields: Fields to read, by dotted names such as `["reward", "obs.image"]`; the others
                are None. All by default.

        Raises:
            FragmentNotFoundError: There is no fragment with that id.
            FragmentError: A field is unknown.
            MissingExtraError: It has tensors, and torch is not installed.
        """
        id_, wanted = _checked_id(fragment_uuid), None if fields is None else _wanted(fields)
        try:
            rows = self._buffer.get_by_ids([id_], fields=wanted)
        except FieldError as error:
            raise own_error(error) from None
        if id_ not in rows:
            raise self._missing(fragment_uuid)
        return _decoded(rows[id_], fields)

    def delete_fragment(self, fragment_uuid: str) -> None:
        """Delete a fragment; a chunk that it is part of is fetched no more.

        Raises:
            FragmentNotFoundError: There is none of that id.
            FragmentError: The id is not text, or cannot be stored as text.
        """
        is_one = {"field": "id", "op": "eq", "value": _checked_id(fragment_uuid)}
        if not self._buffer.delete(is_one):
            raise self._missing(fragment_uuid)

    def clear(self) -> None:
        """Delete all fragments, and with them chunks and prepared lists."""
        chunks.clear(self._buffer)

    def get_disk_space(self) -> int:
        """Return the bytes of all payloads; the database has a little more."""
        return self._buffer.size_bytes()

    def close(self) -> None:
        """Close this process's idle connections; a later call opens new ones."""
        self._buffer.close()

    def __enter__(self) -> "FragmentStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _missing(self, fragment_uuid: str) -> FragmentNotFoundError:
        return FragmentNotFoundError(
            f"buffer {self._buffer.name!r} has no fragment {fragment_uuid!r}: fragments leave "
            f"with their chunk, and those of a prepared list when the next fetch has completed"
        )


def _checked_id(fragment_uuid: Any) -> str:
    if not isinstance(fragment_uuid, str):
        raise FragmentTypeError(f"a fragment is named by text, got {fragment_uuid!r}")
    return checked_key(fragment_uuid, "fragment_id")


def encoded(fragment: Any, metadata: FragmentMetadata, id_: str) -> tuple[dict[str, Any], int]:
    """Return the row of a fragment, as `ReplayBuffer.add` takes it, and the size of its payload.

    Raises:
        FragmentTypeError: No fragment.
        FragmentError: A value contains itself.
    """
    values, plain_of = _values(fragment), _PlainValues()
    plain = {name: plain_of.field(value, name) for name, value in values.items()}
    runs = [(key, len(list(same))) for key, same in groupby(plain["episode_uuids"])]
    extra = {name: plain[name] for name in _IN_EXTRA}
    extra["episodes"] = [key for key, _ in runs]
    extra["episode_lengths"] = [n for _, n in runs]
    if plain_of.kinds:
        extra["kinds"] = plain_of.kinds
    row = {
        "id": id_,
        "task_id": metadata.worker_uuid,
        "step": metadata.fid_in_worker,
        "model_version": metadata.model_version,
        "session_id": metadata.session_id or None,
        "state": plain["obs"],
        "actions": [plain["action"]],
        "reward": _total(plain["reward"]),
        "extra": extra,
    }
    return row, plain_of.n_bytes


def _values(fragment: Any) -> dict[str, Any]:
    """Return the fields of a fragment: one of this package or of MineStudio."""
    missing = [name for name in (*_NAMES, *_KEYS) if not hasattr(fragment, name)]
    if missing:
        raise FragmentTypeError(
            f"expected a SampleFragment, got {type(fragment).__name__} without {', '.join(missing)}"
        )
    uuids = fragment.episode_uuids
    if not isinstance(uuids, (list, tuple)) or not all(isinstance(key, str) for key in uuids):
        raise FragmentTypeError(f"episode_uuids: expected a list of text, got {uuids!r:.200}")
    return {name: getattr(fragment, name) for name in _NAMES}


class _PlainValues:
    """Makes values with arrays for tensors and numpy's scalars, whose places are noted.

    Attributes:
        kinds: The places of tensors and scalars.
        n_bytes: About how many bytes the values have when they are stored.
    """

    def __init__(self) -> None:
        self.kinds: list[Any] = []
        self.n_bytes = 0

    def field(self, value: Any, name: str) -> Any:
        """Return the value of a field."""
        try:
            return self._plain(value, (name,))
        except RecursionError:
            raise FragmentError(f"{name}: contains itself, or is nested too deep") from None

    def _plain(self, value: Any, path: tuple[Any, ...]) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            kept = value.detach().cpu()
            is_bfloat16 = kept.dtype == torch.bfloat16  # numpy has none
            self.kinds.append([list(path), "bfloat16" if is_bfloat16 else "tensor"])
            value = (kept.contiguous().view(torch.int16) if is_bfloat16 else kept).numpy()
        elif isinstance(value, np.generic):
            self.kinds.append([list(path), "scalar"])
            value = np.asarray(value)
        if isinstance(value, np.ndarray):
            self.n_bytes += value.nbytes + _ARRAY_BYTES
        elif isinstance(value, dict):
            self.n_bytes += sum(len(key) if isinstance(key, str) else 8 for key in value)
            return {key: self._plain(item, (*path, key)) for key, item in value.items()}
        elif type(value) in (list, tuple):
            return type(value)(self._plain(item, (*path, i)) for i, item in enumerate(value))
        else:
            self.n_bytes += len(value) if isinstance(value, (str, bytes)) else _NUMBER_BYTES
        return value


def _total(reward: Any) -> float | None:
    """Return the sum of rewards, for those who look into the buffer."""
    try:
        return float(np.sum(reward, dtype=np.float64))
    except (TypeError, ValueError):
        return None


def _decoded(row: DataRow, wanted: Sequence[str] | None) -> SampleFragment:
    """Return the fragment of a row; None for each field that is not wanted."""
    data, extra = row.exp_data, row.exp_data.extra or {}
    stored: dict[str, Any] = {name: extra.get(name) for name in _IN_EXTRA}
    stored["obs"] = data.state
    stored["action"] = data.actions[0] if data.actions else None
    lengths = extra.get("episode_lengths")
    if lengths is not None:
        runs = (repeat(key, n) for key, n in zip(extra["episodes"], lengths, strict=True))
        stored["episode_uuids"] = list(chain.from_iterable(runs))
    for path, kind in extra.get("kinds", ()):
        _restore(stored, path, kind)
    roots = set(_NAMES if wanted is None else map(_root, wanted))
    values: dict[str, Any] = {name: stored.get(name) if name in roots else None for name in _NAMES}
    return SampleFragment(
        worker_uuid=row.exp_meta.task_id, fid_in_worker=row.exp_meta.step, **values
    )


def _restore(values: dict[str, Any], path: Sequence[Any], kind: str) -> None:
    """Put a value that was stored as an array in its place, if that place was read."""
    holders, place = [values], values
    for step in path:
        try:
            place = place[step]
        except (KeyError, IndexError, TypeError):
            return
        holders.append(place)
    if not isinstance(place, np.ndarray):
        return
    value = _of_kind(place, kind)
    # Tuples cannot be changed: each container that holds one is made again.
    for holder, step in zip(reversed(holders[:-1]), reversed(path), strict=True):
        if not isinstance(holder, tuple):
            holder[step] = value
            return
        value = (*holder[:step], value, *holder[step + 1 :])


def _of_kind(array: Any, kind: str) -> Any:
    if kind == "scalar":
        return array[()]
    torch = imported_torch("a fragment with tensors")
    value = torch.from_numpy(array)
    return value.view(torch.bfloat16) if kind == "bfloat16" else value


def _wanted(names: Any) -> list[str]:
    """Return the parts of a row that fields of a fragment need.

    Raises:
        FragmentTypeError: No list of names.
        FragmentError: An unknown field.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise FragmentTypeError(
            f"fields are a list of names such as ['reward', 'obs.image'], got {names!r}"
        )
    return ["extra.kinds", *chain.from_iterable(map(_row_names, names))]


def _row_names(name: Any) -> list[str]:
    root = _root(name) if isinstance(name, str) else ""
    if root in _KEYS:
        return []
    if root == "episode_uuids":
        return ["extra.episodes", "extra.episode_lengths"]
    if root not in _NAMES:
        raise FragmentError(
            f"unknown field {name!r}; a fragment has {', '.join((*_NAMES, *_KEYS))}, and what is "
            f"inside the first two, such as 'obs.image'"
        )
    rest = name[len(root) :]
    if root in _IN_EXTRA:
        return [f"extra.{name}"]
    return [f"state{rest}" if root == "obs" else f"actions[0]{rest}"]


def _root(name: str) -> str:
    """Return the field that a dotted name begins with."""
    return name.partition(".")[0].partition("[")[0]


def own_error(error: FieldError) -> FragmentError:
    """Return an error with a fragment's names in place of those of a row."""
    message = str(error).removeprefix("row 0: ")
    for core, name in (
        ("exp_data.state", "obs"), ("exp_data.actions[0]", "action"), ("exp_data.extra.", ""),
        ("exp_meta.task_id", "worker_uuid"), ("exp_meta.step", "fid_in_worker"),
        ("exp_meta.", ""),
    ):  # fmt: skip
        message = message.replace(core, name)
    return FragmentError(message)
