"""The file of `save_data`: encoded items and a head, as an archive of numpy arrays."""

import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from sqlbuffer.compat.ding.contents.item_codec import Encoded
from sqlbuffer.compat.ding.errors import ReplayError

# The members of a file.
_HEAD, _TEXTS, _ARRAYS, _ENDS = "head", "texts", "arrays", "ends"
_FORMAT = "sqlbuffer.compat.ding 1"


def write_file(file_name: Any, items: Sequence[Encoded], head: Mapping[str, Any]) -> None:
    """Write encoded items to a file; an existing file is replaced, as a whole or not at all.

    Args:
        file_name: Any name; folders are made.
        items: The items, the oldest first.
        head: Other data of the items, as JSON.
    """
    path = _path(file_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [b"" if text is None else text.encode() for text, _ in items]
    blobs = [bytes(arrays or b"") for _, arrays in items]
    ends = np.cumsum([[len(t), len(b)] for t, b in zip(texts, blobs, strict=True)] or [[0, 0]], 0)
    members = {
        _HEAD: orjson.dumps({"format": _FORMAT, "n_items": len(items), **head}),
        _TEXTS: b"".join(texts),
        _ARRAYS: b"".join(blobs),
    }
    # In the same folder, because only there it can be renamed in one step.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            arrays = {name: np.frombuffer(raw, np.uint8) for name, raw in members.items()}
            np.savez(file, **arrays, **{_ENDS: ends})  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_file(file_name: Any) -> tuple[list[Encoded], dict[str, Any]]:
    """Return what `write_file` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ReplayError: Another kind of file, or a damaged one.
    """
    path = _path(file_name)
    raw = path.read_bytes()
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as found:
            head: dict[str, Any] = orjson.loads(found[_HEAD].tobytes())
            texts, arrays, ends = found[_TEXTS].data, found[_ARRAYS].data, found[_ENDS]
        if head["format"] != _FORMAT:
            raise ValueError(head["format"])
        starts = np.vstack([np.zeros((1, 2), ends.dtype), ends[:-1]])
        items = [
            (bytes(texts[t0:t1]).decode() or None, bytes(arrays[a0:a1]) or None)
            for (t0, a0), (t1, a1) in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        return list(items[: head["n_items"]]), head
    except Exception as error:
        raise ReplayError(
            f"{path} is not a file of save_data(), or is damaged ({type(error).__name__}); load a "
            "file of DI-engine itself there, and push its items here"
        ) from None


def _path(file_name: Any) -> Path:
    if not isinstance(file_name, (str, os.PathLike)) or not os.fspath(file_name):
        raise TypeError(f"file_name is the path of a file, got {file_name!r}")
    return Path(os.fsdecode(os.fspath(file_name))).expanduser()
