"""Hugging Face data sets that read a buffer as they are iterated."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.codec.decoder import decode
from sqlbuffer.errors import MissingExtraError
from sqlbuffer.extras import install
from sqlbuffer.interchange.buffer_stream import PAYLOAD_COLUMNS, BufferStream
from sqlbuffer.interchange.example_columns import example_columns
from sqlbuffer.interchange.hugging_face.rollouts import RolloutForm, RolloutRows, optional_values
from sqlbuffer.steps.column_batch import ColumnBatch

Shard = tuple[int, int | None]


def to_hf(
    buffer: ReplayBuffer,
    rows: Literal["steps"] | RolloutForm = "steps",
    *,
    condition: Condition = None,
    columns: Sequence[str] | None = None,
    n_shards: int = 1,
    min_margin: float = 0.0,
) -> Any:
    """Return a `datasets.IterableDataset` of a buffer, without a copy on disk.

    Each iteration reads the steps that the buffer has at its start, and holds them: no step is
    evicted before it is read. Workers of a `DataLoader` open the buffer by its URL.

    Args:
        buffer: The buffer.
        rows: Kind of example: `steps`, or a form of `RolloutRows`.
        condition: Condition that steps must match.
        columns: Typed fields and built-in columns to read, for `steps`. By default all fields, the
            keys, the reward, the flags and the JSON values.
        n_shards: Number of ranges of `seq` that workers read at the same time, for `steps`. The
            ranges cover the steps that are stored now; the last one also includes steps that are
            stored later.
        min_margin: See `RolloutRows`.

    Raises:
        FieldError: A column is unknown.
        MissingExtraError: `datasets` is not installed.
        TypeError: The database is in memory, so no other process can open it.
        ValueError: The kind of rows is unknown, or there is more than one shard of rollouts.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "replay.db")
        >>> buffer = ReplayBuffer(path, fields={"x": "float32"})
        >>> buffer.extend({"x": [0.5, 1.5]}, task_id="t").inserted
        2
        >>> [float(example["x"]) for example in to_hf(buffer)]
        [0.5, 1.5]
    """
    try:
        from datasets import IterableDataset
    except ImportError:
        raise MissingExtraError(f"to_hf() needs datasets; run {install('hf')}") from None
    if rows == "steps":
        own, fields = example_columns(buffer.fields, columns)
        kwargs: dict[str, Any] = {
            "buffer": buffer,
            "condition": condition,
            "columns": (*own, *fields),
        }
        shards = _shards(buffer, n_shards)
        return IterableDataset.from_generator(_steps, gen_kwargs={**kwargs, "shards": shards})
    if n_shards != 1 or columns is not None:
        raise ValueError("n_shards and columns are for rows='steps': an episode is in one shard")
    RolloutRows(buffer, rows, condition, min_margin)
    kwargs = {"buffer": buffer, "form": rows, "condition": condition, "min_margin": min_margin}
    return IterableDataset.from_generator(_rollouts, gen_kwargs=kwargs)


def _rollouts(**arguments: Any) -> Iterator[dict[str, Any]]:
    yield from RolloutRows(**arguments)


def _steps(
    buffer: ReplayBuffer, condition: Condition, columns: tuple[str, ...], shards: list[Shard]
) -> Iterator[dict[str, Any]]:
    fields = [name for name in columns if name in buffer.fields]
    for low, high in shards:
        with BufferStream(buffer, condition, fields=fields) as stream:
            for batch in stream.between(low, high):
                values = [example_values(batch, name) for name in columns]
                for each in zip(*values, strict=True):
                    yield dict(zip(columns, each, strict=True))


def example_values(batch: ColumnBatch, name: str) -> Sequence[Any]:
    """Return the value of each step of a batch: fields as arrays, JSON as the stored values."""
    if name in batch.fields:
        arrays = batch.fields[name]
        missing = batch.is_null.get(name, batch.is_null.get("fields", ()))
        gone = set(np.flatnonzero(missing).tolist())
        return [None if i in gone else arrays[i] for i in range(len(batch))]
    if name not in PAYLOAD_COLUMNS:
        return optional_values(batch, name)
    pairs = zip(batch.column(name), batch.column("arrays"), strict=True)
    return [decode(text, raw) for text, raw in pairs]


def _shards(buffer: ReplayBuffer, n: int) -> list[Shard]:
    if n < 1:
        raise ValueError(f"n_shards is 1 or more, got {n}")
    with BufferStream(buffer, fields=()) as stream:
        ends = [piece.range.high for piece in stream.pieces(n)][:-1]
    return list(zip([0, *ends], [*ends, None], strict=True))
