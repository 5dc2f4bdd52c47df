"""Typed steps as rows of `experiences`, one row a step, as they were stored before there were
chunks: what chunks are measured against.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from sqlbuffer.encoding.records import Record
from sqlbuffer.steps import uuid7s

_EMPTY = Record(**dict.fromkeys(Record._fields))._asdict()  # type: ignore[arg-type]


def record_type(fields: Mapping[str, Any]) -> np.dtype[Any]:
    """Return what the typed fields of a step are, one after the other."""
    parts = [field if isinstance(field, tuple) else (field, ()) for field in fields.values()]
    return np.dtype([(name, *part) for name, part in zip(fields, parts, strict=True)])


def step_records(
    columns: Mapping[str, Any],
    record: np.dtype[Any],
    tasks: Sequence[str] | None = None,
    compression: str | None = None,
) -> list[Record]:
    """Return a row for each step.

    Args:
        columns: The steps, as `extend` takes them.
        record: Their typed fields.
        tasks: The task of each; of all the same one when left out.
        compression: Of each row alone.
    """
    rewards: list[float] = np.asarray(columns["reward"], np.float64).tolist()
    n = len(rewards)
    packed = np.empty(n, record)
    for name in record.names or ():
        packed[name] = columns[name]
    raw, size = packed.tobytes(), record.itemsize
    arrays: list[bytes] = [raw[i : i + size] for i in range(0, n * size, size)]
    if compression is not None:
        compress = zstandard.ZstdCompressor(level=3).compress
        arrays = [compress(row) for row in arrays]
    values = {
        **{name: [value] * n for name, value in _EMPTY.items()},
        "id": uuid7s(n),
        "task_id": ["default"] * n if tasks is None else tasks,
        "agent_id": ["default"] * n,
        "step": range(n),
        "execute_time": [time.time()] * n,
        "reward_t": rewards,
        **{name: columns[name].tolist() for name in ("terminated", "truncated")},
        "arrays": arrays,
    }
    return list(map(Record._make, zip(*values.values(), strict=True)))


def batch_of(
    rows: Sequence[bytes], record: np.dtype[Any], compression: str | None = None
) -> dict[str, NDArray[Any]]:
    """Return the typed fields of rows as a batch."""
    if compression is not None:
        expand = zstandard.ZstdDecompressor().decompress
        rows = [expand(row) for row in rows]
    found = np.frombuffer(b"".join(rows), record)
    return {name: np.ascontiguousarray(found[name]) for name in record.names or ()}
