"""The steps of chunks as columns."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.plain_values import dumps
from sqlbuffer.encoding.chunks import step_rows
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields import VARIABLE
from sqlbuffer.steps import ColumnBatch, RaggedValues
from sqlbuffer.storage.chunks.step_columns import StepColumns
from sqlbuffer.storage.copies.copied_tables import TableRows
from sqlbuffer.storage.copies.value_forms import utc_time
from sqlbuffer.storage.schema.column_types import listed

PAYLOADS = ("state", "actions", "messages", "extra")
_REALS = {"advantage": "adv_t", "value": "v_t", "priority": "initial_priority"}
_FLAGS = ("terminated", "truncated")


class ChunkContent(NamedTuple):
    """The bytes of a chunk; see `PackedChunk`."""

    n_steps: int
    records: bytes
    block_steps: int
    offsets: Any


def chunk_columns(
    layout: Layout,
    tables: Mapping[str, TableRows],
    episode_keys: Mapping[int, str],
    session_keys: Mapping[int, str],
    wanted: Sequence[str],
) -> ColumnBatch:
    """Return the steps of chunks, also the deleted ones.

    Args:
        layout: The typed fields.
        tables: The rows of `chunks` and of `chunk_data` of the same chunks, in order.
        episode_keys: The ids of the episodes that they name.
        session_keys: The ids of the sessions that they name.
        wanted: Names of the typed fields to return.

    Raises:
        FieldError: A step is damaged.
    """
    own, data = tables["chunks"].values, tables["chunk_data"].values
    of = StepColumns({**own, **data})
    seq = np.array(own["first_seq"], np.int64)[of.run_of] + of.place
    shared: dict[str, list[Any]] = {
        name: own[name]
        for name in ("first_seq", "task_id", "task_name", "agent_id", "pre_agent", "model_version")
    }
    shared["episode_id"] = list(map(episode_keys.get, own["episode_id"]))
    shared["session_id"] = list(map(session_keys.get, own["session_id"]))
    shared["inserted_at"] = list(map(utc_time, own["inserted_at"]))
    batch = ColumnBatch(seq, of.run_of, shared, {"id": of.ids(), "step": of.steps(), "t": of.ts()})
    _note_missing(batch, "t", batch.own["t"] < 0)
    reals: dict[str, Any] = {"execute_time": of.times(), "reward": of.rewards()}
    reals |= {name: of.reals(column) for name, column in _REALS.items()}
    for name, values in reals.items():
        if values is not None:
            batch.own[name] = values
            # A NaN is in the JSON of its step, so NaN here means that there is no number.
            _note_missing(batch, name, np.isnan(values))
    for name in _FLAGS:
        batch.own[name], is_missing = of.flags(name)
        _note_missing(batch, name, is_missing)
    _add_payloads(batch, of, layout, data["payload_arrays"])
    if wanted:
        stored = zip(own["n_steps"], data["records"], data["block_steps"], data["offsets"],
                     strict=True)  # fmt: skip
        chunks = [
            ChunkContent(n, records, size, None if offsets is None else listed(offsets))
            for n, records, size, offsets in stored
        ]
        records, tails = _field_bytes(layout, chunks)
        batch.fields.update(typed_columns(layout, records, tails, wanted))
    return batch


def _note_missing(batch: ColumnBatch, name: str, is_missing: NDArray[np.bool_]) -> None:
    if is_missing.any():
        batch.is_null[name] = is_missing


def _add_payloads(
    batch: ColumnBatch, of: StepColumns, layout: Layout, arrays: Sequence[Any]
) -> None:
    """Add the payloads of the steps that have some."""
    n, own = len(batch), batch.own
    for place, (tree, run) in enumerate(zip(of.payloads(), of.run_of.tolist(), strict=True)):
        if tree is None:
            continue
        start, size = tree.pop("arrays", (0, 0))
        if size:
            raw = layout.expand([arrays[run][start : start + size]])[0]
            own.setdefault("arrays", [None] * n)[place] = raw
        for name, part in tree.items():
            own.setdefault(name, [None] * n)[place] = dumps(part)


def _field_bytes(
    layout: Layout, chunks: Sequence[ChunkContent]
) -> tuple[NDArray[Any], list[Any] | None]:
    """Return the record of each step, and its values of varying length as bytes."""
    size = layout.size_bytes
    parts: list[Any] = []
    tails: list[Any] = []
    for chunk in chunks:
        if (
            not layout.has_tails
            and chunk.offsets is None
            and len(chunk.records) == chunk.n_steps * size
        ):
            parts.append(chunk.records)
        else:
            rows = step_rows(layout, chunk, np.arange(chunk.n_steps))
            parts += [row[:size] for row in rows]
            tails += [row[size:] for row in rows]
    joined = bytearray(b"").join(parts)
    records = np.frombuffer(joined, layout.record) if size else np.empty(0, layout.record)
    return records, tails if layout.has_tails else None


def typed_columns(
    layout: Layout, records: NDArray[Any], tails: Sequence[bytes] | None, wanted: Sequence[str]
) -> dict[str, Any]:
    """Return typed fields: arrays of shape (n, *shape), and `RaggedValues`.

    Args:
        layout: The typed fields.
        records: The record of each step, shape (n,).
        tails: Values of varying length of each step.
        wanted: Names of the fields to return.
    """
    found: dict[str, Any] = layout.columns_of(
        records, [name for name in wanted if not layout.specs[name].is_variable]
    )
    starts = np.zeros(len(records), np.int64)
    for name, spec in layout.specs.items():
        if not spec.is_variable:
            continue
        others = int(np.prod([n for n in spec.shape if n != VARIABLE], dtype=np.int64))
        items = records[name].astype(np.int64) * others
        ends = starts + items * spec.dtype.itemsize
        if name in wanted:
            spans = zip(tails or (), starts.tolist(), ends.tolist(), strict=True)
            raw = b"".join([tail[start:end] for tail, start, end in spans])
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(items)])
            found[name] = RaggedValues(np.frombuffer(raw, spec.dtype), offsets, spec.shape)
        starts = ends
    return {name: found[name] for name in wanted}


def kept_steps(batch: ColumnBatch, is_kept: NDArray[np.bool_]) -> ColumnBatch:
    """Return the steps of a batch whose flag is set."""
    if is_kept.all():
        return batch
    return batch.take(np.flatnonzero(is_kept))
