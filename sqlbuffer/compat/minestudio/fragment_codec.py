"""Encodes a fragment as a row of the buffer, and decodes it.

The observations are the row's `state`, the actions its only action, and the rest is in `extra`.
Tensors and numpy's scalars are stored as arrays, together with their places.
"""

import sys
import time
from collections.abc import Sequence
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np

from sqlbuffer.compat.minestudio.datatypes import (
    FragmentMetadata,
    SampleFragment,
    imported_torch,
)
from sqlbuffer.compat.minestudio.errors import FragmentError, FragmentTypeError
from sqlbuffer.encoding.records import Record, encode_row
from sqlbuffer.errors import FieldError
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.steps import DataRow, Experience, ExpMeta

AGENT = "default"
_IN_EXTRA = ("next_done", "reward", "first", "in_state", "next_obs")
_NAMES = ("obs", "action", *_IN_EXTRA, "episode_uuids")
_KEYS = ("worker_uuid", "fid_in_worker")


def encoded(fragment: Any, metadata: FragmentMetadata, id_: str) -> Record:
    """Return the row of a fragment.

    Raises:
        FragmentTypeError: No fragment.
        FragmentError: A value that cannot be stored, named by its path.
    """
    values = _values(fragment)
    kinds: list[Any] = []
    plain = {name: _checked_plain(value, name, kinds) for name, value in values.items()}
    runs = [(key, len(list(same))) for key, same in groupby(plain["episode_uuids"])]
    extra = {name: plain[name] for name in _IN_EXTRA}
    extra["episodes"] = [key for key, _ in runs]
    extra["episode_lengths"] = [n for _, n in runs]
    if kinds:
        extra["kinds"] = kinds
    meta = ExpMeta(
        metadata.worker_uuid,
        None,
        AGENT,
        metadata.fid_in_worker,
        time.time(),
        model_version=metadata.model_version,
        session_id=metadata.session_id or None,
    )
    data = Experience(plain["obs"], [plain["action"]], _total(plain["reward"]), extra=extra)
    try:
        return encode_row(DataRow(meta, data, id_))
    except FieldError as error:
        raise FragmentError(_own_names(str(error))) from None


def n_bytes(record: Record) -> int:
    """Return how many bytes the payload of a row has."""
    texts = (record.state, record.actions, record.extra)
    return len(record.arrays or b"") + sum(len(text or "") for text in texts)


def decoded(row: DataRow, wanted: Sequence[str] | None = None) -> SampleFragment:
    """Return the fragment of a row; None for each field that is not wanted."""
    data, extra = row.exp_data, row.exp_data.extra or {}
    found: dict[str, Any] = {name: extra.get(name) for name in _IN_EXTRA}
    found["obs"] = data.state
    found["action"] = data.actions[0] if data.actions else None
    lengths = extra.get("episode_lengths")
    if lengths is not None:
        runs = (repeat(key, n) for key, n in zip(extra["episodes"], lengths, strict=True))
        found["episode_uuids"] = list(chain.from_iterable(runs))
    for path, kind in extra.get("kinds", ()):
        _restore(found, path, kind)
    roots = set(_NAMES if wanted is None else map(_root, wanted))
    values: dict[str, Any] = {name: found.get(name) if name in roots else None for name in _NAMES}
    return SampleFragment(
        worker_uuid=row.exp_meta.task_id, fid_in_worker=row.exp_meta.step, **values
    )


def wanted_of(names: Any) -> SelectedFields:
    """Return the parts of a row that fields of a fragment need.

    Raises:
        FragmentTypeError: No list of names.
        FragmentError: An unknown field.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise FragmentTypeError(
            f"fields are a list of names such as ['reward', 'obs.image'], got {names!r}"
        )
    found = ["extra.kinds"]
    for name in names:
        found += _core_names(name)
    try:
        return SelectedFields.parse(found)
    except FieldError as error:
        raise FragmentError(_own_names(str(error))) from None


def _core_names(name: Any) -> list[str]:
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


def _values(fragment: Any) -> dict[str, Any]:
    """Return the fields of a fragment: one of this package or of MineStudio."""
    missing = [name for name in (*_NAMES, *_KEYS) if not hasattr(fragment, name)]
    if missing:
        raise FragmentTypeError(
            f"expected a SampleFragment, got {type(fragment).__name__} without {', '.join(missing)}"
        )
    uuids = fragment.episode_uuids
    if not isinstance(uuids, (list, tuple)) or not all(isinstance(each, str) for each in uuids):
        raise FragmentTypeError(f"episode_uuids: expected a list of text, got {uuids!r:.200}")
    return {name: getattr(fragment, name) for name in _NAMES}


def _checked_plain(value: Any, name: str, kinds: list[Any]) -> Any:
    try:
        return _plain(value, (name,), kinds)
    except RecursionError:
        raise FragmentError(f"{name}: contains itself, or is nested too deep") from None


def _plain(value: Any, path: tuple[Any, ...], kinds: list[Any]) -> Any:
    """Return a value with arrays for tensors and numpy's scalars, whose places are noted."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        kept = value.detach().cpu()
        is_bfloat16 = kept.dtype == torch.bfloat16  # numpy has none
        kinds.append([list(path), "bfloat16" if is_bfloat16 else "tensor"])
        return (kept.contiguous().view(torch.int16) if is_bfloat16 else kept).numpy()
    if isinstance(value, np.generic):
        kinds.append([list(path), "scalar"])
        return np.asarray(value)
    if isinstance(value, dict):
        return {key: _plain(item, (*path, key), kinds) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, (*path, i), kinds) for i, item in enumerate(value))
    return value


def _restore(found: dict[str, Any], path: Sequence[Any], kind: str) -> None:
    """Put a value that was stored as an array in its place, if that place was read."""
    holders, place = [found], found
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


def _total(reward: Any) -> float | None:
    """Return the sum of rewards, for those who look into the buffer."""
    try:
        return float(np.sum(reward, dtype=np.float64))
    except (TypeError, ValueError):
        return None


def _own_names(message: str) -> str:
    """Return a message with a fragment's names in place of those of a row."""
    for core, own in (
        ("exp_data.state", "obs"), ("exp_data.actions[0]", "action"), ("exp_data.extra.", ""),
        ("exp_meta.task_id", "worker_uuid"), ("exp_meta.step", "fid_in_worker"),
        ("exp_meta.", ""),
    ):  # fmt: skip
        message = message.replace(core, own)
    return message
