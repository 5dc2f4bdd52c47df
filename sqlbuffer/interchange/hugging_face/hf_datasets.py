"""Hugging Face data sets that read the steps of a buffer under one hold."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_choice, checked_integer
from sqlbuffer.codec.decoder import decode
from sqlbuffer.errors import ArgumentError, MissingExtraError
from sqlbuffer.extras import install
from sqlbuffer.interchange.buffer_stream import PAYLOAD_COLUMNS, StreamPiece
from sqlbuffer.interchange.example_columns import example_columns
from sqlbuffer.interchange.held_stream import HeldStream
from sqlbuffer.interchange.hugging_face.rollouts import (
    ROLLOUT_FORMS,
    RolloutForm,
    RolloutRows,
    optional_values,
)
from sqlbuffer.steps.column_batch import ColumnBatch


def to_hf(
    buffer: ReplayBuffer,
    rows: Literal["steps"] | RolloutForm = "steps",
    *,
    condition: Condition = None,
    columns: Sequence[str] | None = None,
    n_shards: int = 1,
    min_margin: float = 0.0,
) -> Any:
    """Return a `datasets.IterableDataset` of the steps that a buffer holds now, without a copy.

    The steps are held until the data set, and those made of it by `map` and so on, are deleted or
    the program ends: no step is evicted before it is read, and a repeated iteration reads the same
    steps. Writers can continue during this time. If the program is killed, the hold ends two
    minutes later. Workers of a `DataLoader` open the buffer by its URL, and do not end the hold.

    Args:
        buffer: The buffer.
        rows: Kind of example: `steps`, or a form of `RolloutRows`.
        condition: Condition that steps must match.
        columns: Typed fields and built-in columns to read, for `steps`. By default all fields, the
            keys, the reward, the flags and the JSON values.
        n_shards: Largest number of ranges of `seq` that workers read at the same time, for `steps`.
        min_margin: See `RolloutRows`.

    Raises:
        ArgumentError: An argument is invalid, or there is more than one shard of rollouts.
        ConditionError: The condition is malformed.
        CopyError: The buffer is one of `sqlbuffer.compat`. In an iteration: steps have left,
            because the role may not hold them or the program that made the data set has ended.
        FieldError: A column is unknown. In an iteration over rollouts: as in `RolloutRows`.
        MissingExtraError: `datasets` is not installed.
        TypeError: The database is in memory, so no other process can open it.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "replay.db")
        >>> buffer = ReplayBuffer(path, fields={"x": "float32"})
        >>> buffer.extend({"x": [0.5, 1.5]}, task_id="t").inserted
        2
        >>> [float(example["x"]) for example in to_hf(buffer)]
        [0.5, 1.5]
    """
    checked_buffer(buffer)
    checked_choice(rows, "rows", ("steps", *ROLLOUT_FORMS))
    checked_integer(n_shards, "n_shards", 1)
    if rows != "steps" and (n_shards != 1 or columns is not None):
        raise ArgumentError("n_shards and columns are for rows='steps': an episode is in one shard")
    try:
        from datasets import IterableDataset
    except ImportError:
        raise MissingExtraError(f"to_hf() needs datasets; run {install('hf')}") from None
    if rows == "steps":
        own, fields = example_columns(buffer.fields, columns)
        held = HeldStream(buffer, condition, fields)
        kwargs = {"held": held, "columns": (*own, *fields), "shards": held.pieces(n_shards)}
        return IterableDataset.from_generator(_steps, gen_kwargs=kwargs)
    own_rows = RolloutRows(buffer, rows, condition, min_margin)
    held = HeldStream(buffer, condition, ())
    kwargs = {"held": held, "rows": own_rows, "shards": held.pieces(1)}
    return IterableDataset.from_generator(_rollouts, gen_kwargs=kwargs)


# A data set keeps the arguments of its generator, and so the hold.
def _rollouts(
    held: HeldStream, rows: RolloutRows, shards: list[StreamPiece]
) -> Iterator[dict[str, Any]]:
    for piece in shards:
        yield from rows.of(piece)


def _steps(
    held: HeldStream, columns: tuple[str, ...], shards: list[StreamPiece]
) -> Iterator[dict[str, Any]]:
    for piece in shards:
        for batch in piece:
            values = [example_values(batch, name) for name in columns]
            for each in zip(*values, strict=True):
                yield dict(zip(columns, each, strict=True))


def example_values(batch: ColumnBatch, name: str) -> Sequence[Any]:
    """Return the value of each step of a batch: fields as arrays, JSON as the stored values."""
    if name in batch.fields:
        arrays = batch.fields[name]
        return [arrays[i] for i in range(len(batch))]
    if name not in PAYLOAD_COLUMNS:
        return optional_values(batch, name)
    pairs = zip(batch.column(name), batch.column("arrays"), strict=True)
    return [decode(text, raw) for text, raw in pairs]
