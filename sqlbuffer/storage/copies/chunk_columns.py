"""The steps of chunks as columns."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.plain_json import dumps
from sqlbuffer.encoding.packed_chunk import execute_times, step_rows
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields.declarations import VARIABLE
from sqlbuffer.steps.column_batch import ColumnBatch, RaggedValues, StepIds
from sqlbuffer.storage.copies.copied_tables import TableRows
from sqlbuffer.storage.copies.value_forms import parsed_list, utc_time

PAYLOADS = ("state", "actions", "messages", "extra")
_REALS = {"adv_t": "advantage", "v_t": "value"}
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
    counts = np.array(own["n_steps"], np.int64)
    run_of = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    places = np.arange(len(run_of)) - starts[run_of]
    seq = np.array(own["first_seq"], np.int64)[run_of] + places
    shared: dict[str, list[Any]] = {
        name: own[name]
        for name in ("first_seq", "task_id", "task_name", "agent_id", "pre_agent", "model_version")
    }
    shared["episode_id"] = list(map(episode_keys.get, own["episode_id"]))
    shared["session_id"] = list(map(session_keys.get, own["session_id"]))
    shared["inserted_at"] = list(map(utc_time, own["inserted_at"]))
    batch = ColumnBatch(seq, run_of, shared, {})
    columns = _Columns(batch, counts, starts, places)
    columns.add_places(own)
    columns.add_times(own)
    columns.add_rewards(own["reward_t"], data["rewards"])
    for name, shown in _REALS.items():
        columns.add_reals(shown, own[name])
    columns.add_reals("priority", own["initial_priority"])
    for name in _FLAGS:
        columns.add_flags(name, own[name])
    columns.add_payloads(layout, data["payloads"], data["payload_arrays"])
    if wanted:
        stored = zip(own["n_steps"], data["records"], data["block_steps"], data["offsets"],
                     strict=True)  # fmt: skip
        chunks = [
            ChunkContent(n, records, size, None if offsets is None else _listed(offsets))
            for n, records, size, offsets in stored
        ]
        records, tails = _field_bytes(layout, chunks)
        batch.fields.update(typed_columns(layout, records, tails, wanted))
    return batch


def _listed(value: Any) -> Any:
    return parsed_list(value) if isinstance(value, str) else value


class _Columns:
    """Adds the columns of chunks to a batch."""

    def __init__(
        self,
        batch: ColumnBatch,
        counts: NDArray[np.int64],
        starts: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> None:
        self._batch, self._counts, self._starts, self._places = batch, counts, starts, places

    def _span(self, run: int) -> slice:
        start = int(self._starts[run])
        return slice(start, start + int(self._counts[run]))

    def add_places(self, own: Mapping[str, list[Any]]) -> None:
        """Add `id`, `t` and `step`."""
        batch, places = self._batch, self._places
        ts = own["t"]
        first_t = np.array([-1 if t is None else t for t in ts], np.int64)[batch.run_of]
        has_t = first_t >= 0
        t = np.where(has_t, first_t + places, -1)
        batch.own["t"] = t
        if not has_t.all():
            batch.is_null["t"] = ~has_t
        step = np.array(own["step"], np.int64)[batch.run_of] + places
        for run, steps in enumerate(own["steps"]):
            if steps is not None:
                step[self._span(run)] = _listed(steps)
        batch.own["step"] = step
        batch.own["id"] = StepIds(list(map(str, own["id"])), batch.run_of, places, {})

    def add_times(self, own: Mapping[str, list[Any]]) -> None:
        """Add `execute_time`."""
        runs = self._batch.run_of
        first, last = (np.array(own[name], np.float64) for name in ("first_time", "last_time"))
        found = execute_times(first[runs], last[runs], self._counts[runs], self._places)
        given = {run: times for run, times in enumerate(own["times"]) if times is not None}
        for run, times in given.items():
            found[self._span(run)] = np.array(_listed(times), np.float64)
        self._add("execute_time", found)

    def add_rewards(self, listed: list[Any], packed: list[Any]) -> None:
        """Add `reward`, from the packed bytes if there are any, otherwise from the lists."""
        parts = []
        for n, own, raw in zip(self._counts.tolist(), listed, packed, strict=True):
            if isinstance(raw, (bytes, memoryview)) and len(raw) == 8 * n:
                parts.append(np.frombuffer(raw, ">f8"))
            else:
                parts.append(_reals(own, n))
        found = np.concatenate([np.empty(0), *parts]).astype(np.float64)
        self._add("reward", found)

    def add_reals(self, name: str, listed: list[Any]) -> None:
        """Add a column of numbers, if a chunk has any."""
        if any(own is not None for own in listed):
            counts = self._counts.tolist()
            parts = [_reals(own, n) for own, n in zip(listed, counts, strict=True)]
            self._add(name, np.concatenate(parts))

    def _add(self, name: str, values: NDArray[np.float64]) -> None:
        # A NaN is in the JSON of its step, so NaN here means that there is no number.
        self._batch.own[name] = values
        missing = np.isnan(values)
        if missing.any():
            self._batch.is_null[name] = missing

    def add_flags(self, name: str, column: list[Any]) -> None:
        """Add a column of flags: an empty list means all False, None means no flags."""
        n = len(self._batch)
        values, missing = np.zeros(n, bool), np.zeros(n, bool)
        for run, own in enumerate(column):
            if own is None:
                missing[self._span(run)] = True
            elif len(own) > 2 or (len(own) and not isinstance(own, str)):
                flags = _listed(own)
                values[self._span(run)] = [flag is True for flag in flags]
                missing[self._span(run)] = [flag is None for flag in flags]
        self._batch.own[name] = values
        if missing.any():
            self._batch.is_null[name] = missing

    def add_payloads(self, layout: Layout, column: list[Any], arrays: list[Any]) -> None:
        """Add the payloads of the steps that have some."""
        n, own = len(self._batch), self._batch.own
        for run, texts in enumerate(column):
            if texts is None:
                continue
            trees = parsed_list(texts)
            for place, tree in enumerate(trees, int(self._starts[run])):
                if tree is None:
                    continue
                start, size = tree.pop("arrays", (0, 0))
                if size:
                    raw = layout.expand([arrays[run][start : start + size]])[0]
                    own.setdefault("arrays", [None] * n)[place] = raw
                for name, part in tree.items():
                    own.setdefault(name, [None] * n)[place] = dumps(part)


def _reals(values: Any, n: int) -> NDArray[np.float64]:
    if values is None:
        return np.full(n, np.nan)
    return np.array(_listed(values), np.float64)


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
