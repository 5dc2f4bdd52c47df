"""Steps of files as they are stored again, with their numbers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from orjson import loads

from sqlbuffer.codec.plain_json import dumps
from sqlbuffer.codec.scalar_tags import tag_float
from sqlbuffer.config.buffer_config import BufferConfig
from sqlbuffer.encoding.column_chunks import pack_ranges
from sqlbuffer.encoding.given_columns import GivenColumns
from sqlbuffer.encoding.packed_chunk import execute_times, stored_times
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.step_payloads import PayloadParts, collected_payload
from sqlbuffer.interchange.parquet.arrow_schema import StepSchema, load_pyarrow
from sqlbuffer.interchange.parquet.arrow_values import (
    field_values,
    integers,
    reals,
    texts,
    times,
    whole,
)
from sqlbuffer.interchange.parquet.step_runs import StepRuns
from sqlbuffer.steps.ids import is_uuid
from sqlbuffer.storage.copies.import_target import RestoredSteps
from sqlbuffer.storage.copies.value_forms import time_text
from sqlbuffer.storage.rows.payload_parts import PART_BYTES, split

PAYLOADS = ("state", "actions", "messages", "extra")
REALS = {
    "reward": "reward_t", "advantage": "adv_t", "value": "v_t", "execute_time": "execute_time",
}  # fmt: skip
FLAGS = ("terminated", "truncated")


class StepTable:
    """Steps of a file by the names of built-in columns; those that the file lacks are null.

    Args:
        table: The steps.
        schema: Meaning of the columns.
    """

    def __init__(self, table: Any, schema: StepSchema) -> None:
        self.n, self._table = len(table), table
        self._names = {own: name for name, own in schema.built_in.items()}
        self.specs = schema.specs

    def __contains__(self, name: str) -> bool:
        """Return whether there is a value in a column."""
        own = self._names.get(name)
        return own is not None and self._table[own].null_count < self.n

    def column(self, name: str) -> Any:
        """Return a built-in column."""
        return self._table[self._names[name]]

    def texts(self, name: str) -> list[Any]:
        """Return the values of a built-in column as a list."""
        if name not in self:
            return [None] * self.n
        return (times if name.endswith("_at") else texts)(self.column(name))

    def reals(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return numbers, and flags of missing ones."""
        if name in self:
            return reals(self.column(name))
        return np.full(self.n, np.nan), np.ones(self.n, bool)

    def field(self, name: str) -> Any:
        """Return the values of a typed field; see `field_values`."""
        return field_values(self.specs[name], self._table[name])

    def stored_reals(self, name: str, tags: list[dict[str, Any]] | None) -> NDArray[np.float64]:
        """Return numbers as their column holds them, NaN for none; see `encode_real`.

        Args:
            name: The column.
            tags: Receives values that it cannot hold, NaN and -0.0; None if there are none.
        """
        values, missing = self.reals(name)
        if tags is not None:
            for i in np.flatnonzero(_are_odd(values, missing)).tolist():
                tags[i][REALS[name]] = tag_float(float(values[i]))
        values[missing] = np.nan
        return values + 0.0  # no -0.0

    def listed_reals(self, name: str, tags: list[dict[str, Any]] | None) -> list[Any]:
        """Return what `stored_reals` does, None for none."""
        return _or_none(self.stored_reals(name, tags))

    def flags(self, name: str) -> NDArray[np.bool_] | None:
        """Return flags that every step has; None where some have none."""
        if name not in self or self.column(name).null_count:
            return None
        found: NDArray[np.bool_] = whole(self.column(name)).to_numpy(zero_copy_only=False)
        return found

    def has_odd_reals(self) -> bool:
        """Return whether numbers are among them that a column cannot hold."""
        return any(name in self and _are_odd(*self.reals(name)).any() for name in REALS)

    def payloads(self, tags: list[dict[str, Any]] | None) -> dict[str, list[Any]]:
        """Return the JSON of each part, and `arrays`; tagged numbers are in `extra`."""
        found = {name: self.texts(name) for name in (*PAYLOADS, "arrays")}
        for i, own in enumerate(tags or ()):
            if own:
                text = found["extra"][i]
                tree = {"$none": True} if text is None else loads(text)
                found["extra"][i] = dumps({**tree, "$reals": own})
        return found


def _are_odd(values: NDArray[np.float64], missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = ~missing & (
        np.isnan(values) | ((values == 0.0) & np.signbit(values))
    )
    return found


def sorted_by_seq(table: Any) -> Any:
    """Return steps in the order of their numbers."""
    seq = integers(table["seq"])
    return table if (np.diff(seq) > 0).all() else table.take(np.argsort(seq, kind="stable"))


def own_schema(noted: Mapping[str, Any], config: BufferConfig) -> StepSchema:
    """Return the columns of an export.

    Args:
        noted: Metadata of its files.
        config: The settings of the buffer.
    """
    return StepSchema(noted["built_in"], dict(config.fields.specs))


def restored_steps(
    table: Any, schema: StepSchema, layout: Layout, begin: int, config: BufferConfig
) -> RestoredSteps:
    """Return the steps of a row group as they are stored.

    Args:
        table: The row group, with all columns of an export.
        schema: Its columns.
        layout: How typed fields are packed in the buffer.
        begin: All of its numbers are above this one.
        config: The settings of the buffer.
    """
    table = sorted_by_seq(table)
    seq = integers(table["seq"])
    found = RestoredSteps(begin, int(seq[-1]), len(seq))
    _add_overlays(found, StepTable(table, schema), seq, config)
    if config.fields.specs:
        _add_chunks(found, table, schema, layout, seq)
    else:
        _add_rows(found, StepTable(table, schema), layout, seq)
    return found


def _add_overlays(
    found: RestoredSteps, steps: StepTable, seq: NDArray[np.int64], config: BufferConfig
) -> None:
    if "uses" in steps:
        uses = integers(steps.column("uses"))
        at, most = np.flatnonzero(uses), config.sampling.max_use
        own = {"seq": seq[at].tolist(), "n_uses": uses[at].tolist()}
        if len(at) and config.leases.enabled:
            own["used_up"] = [most is not None and n >= most for n in own["n_uses"]]
            found.overlays["queue_items"] = own
        elif len(at):
            found.overlays["uses"] = own
    if "quarantined_at" in steps:
        times, reasons = steps.texts("quarantined_at"), steps.texts("quarantine_reason")
        at = np.array([i for i, time in enumerate(times) if time is not None], np.int64)
        found.overlays["quarantine"] = {
            "seq": seq[at].tolist(),
            "reason": [reasons[i] for i in at.tolist()],
            "quarantined_at": [time_text(times[i]) for i in at.tolist()],
        }


def _add_rows(
    found: RestoredSteps, steps: StepTable, layout: Layout, seq: NDArray[np.int64]
) -> None:
    tags: list[dict[str, Any]] = [{} for _ in range(steps.n)]
    numbers = {own: steps.listed_reals(name, tags) for name, own in REALS.items()}
    payloads = steps.payloads(tags)
    arrays: list[Any] = payloads.pop("arrays")
    sizes: list[Any] = [None] * steps.n
    parts: dict[str, list[Any]] = {"seq": [], "part": [], "bytes": []}
    for i, raw in enumerate(arrays):
        if raw is not None and len(raw) > PART_BYTES:
            own = list(split(raw, layout))
            parts["seq"] += [int(seq[i])] * len(own)
            parts["part"] += range(len(own))
            parts["bytes"] += map(bytes, own)
            sizes[i], arrays[i] = len(raw), None
    found.rows = {
        "seq": seq.tolist(),
        **{
            name: steps.texts(name)
            for name in (
                "id", "task_id", "task_name", "agent_id", "pre_agent", "step", "t",
                "model_version", *FLAGS,
            )
        },
        "episode_key": steps.texts("episode_id"),
        "session_key": steps.texts("session_id"),
        **payloads,
        **numbers,
        "initial_priority": steps.listed_reals("priority", None),
        "arrays": list(layout.compress(arrays)),
        "payload_bytes": sizes,
        "inserted_at": [time_text(time) for time in steps.texts("inserted_at")],
    }  # fmt: skip
    for name in FLAGS:
        found.rows[name] = [None if flag is None else int(flag) for flag in found.rows[name]]
    if parts["seq"]:
        found.overlays["payload_parts"] = parts


def _add_chunks(
    found: RestoredSteps,
    table: Any,
    schema: StepSchema,
    layout: Layout,
    seq: NDArray[np.int64],
) -> None:
    runs = StepRuns(seq, integers(table[_name_of(schema, "first_seq")]))
    if runs.has_gaps:
        table = table.take(runs.source)
        found.overlays["deleted_steps"] = {"seq": runs.seq[runs.is_filled].tolist()}
    steps = StepTable(table, schema)
    tags: list[dict[str, Any]] | None = None
    if steps.has_odd_reals():
        tags = [{} for _ in range(steps.n)]
    reward, times = steps.stored_reals("reward", tags), steps.stored_reals("execute_time", tags)
    more = {
        own: steps.listed_reals(name, tags)
        for name, own in (("advantage", "adv_t"), ("value", "v_t"))
        if name in steps
    }
    flags = {name: steps.flags(name) for name in FLAGS}
    more.update(
        {name: steps.texts(name) for name in FLAGS if name in steps and flags[name] is None}
    )
    given = GivenColumns(
        n_steps=steps.n,
        fields={name: steps.field(name) for name in layout.specs},
        reward=None if np.isnan(reward).all() else reward,
        reward_tags={},
        terminated=flags["terminated"],
        truncated=flags["truncated"],
        ids=None,
        task_id=runs.firsts(steps.column("task_id")),
        agent_id=runs.firsts(steps.column("agent_id")),
        model_version=runs.firsts(steps.column("model_version")),
        session_id=runs.firsts(steps.column("session_id")),
        steps=runs.continued(integers(steps.column("step"))),
        priority=steps.listed_reals("priority", None) if "priority" in steps else None,
        payloads=(),
        more_keys={
            "task_name": runs.firsts(steps.column("task_name")),
            "pre_agent": runs.firsts(steps.column("pre_agent")),
            "episode_key": runs.firsts(steps.column("episode_id")),
        },
        more_values=more,
        encoded=_encoded(steps, tags, runs.is_filled, is_any=bool(np.isnan(reward).any())),
    )
    chunks = pack_ranges(layout, given, runs.ranges)
    _place_chunks(found, steps, runs, chunks, times)


def _name_of(schema: StepSchema, built_in: str) -> str:
    return next(name for name, own in schema.built_in.items() if own == built_in)


def _encoded(
    steps: StepTable,
    tags: list[dict[str, Any]] | None,
    is_filled: NDArray[np.bool_],
    *,
    is_any: bool,
) -> list[Any] | None:
    """Return the payload of each step; None where no step has one, unless there is to be a list."""
    if tags is None and not any(name in steps for name in PAYLOADS):
        return [None] * steps.n if is_any else None
    payloads = steps.payloads(tags)
    each = zip(*(payloads[name] for name in (*PAYLOADS, "arrays")), strict=True)
    return [
        None
        if filled
        else collected_payload(PayloadParts(own[0], own[1], own[2], own[3], own[4] or b""))
        for filled, own in zip(is_filled.tolist(), each, strict=True)
    ]


def _place_chunks(
    found: RestoredSteps,
    steps: StepTable,
    runs: StepRuns,
    chunks: list[Any],
    times: NDArray[np.float64],
) -> None:
    """Give chunks their ids, numbers, places in episodes and times."""
    ids, ts = runs.firsts(steps.column("id")), runs.firsts(steps.column("t"))
    inserted = runs.firsts(steps.column("inserted_at"))
    spans = _spans(runs, times)
    placed = []
    for i, chunk in enumerate(chunks):
        offset = int(runs.place[runs.held[i]])
        changes: dict[str, Any] = {"t": None if ts[i] is None else ts[i] - offset, **spans[i]}
        own, _, place = str(ids[i]).rpartition("/")
        if is_uuid(own) and place == str(offset):
            changes["id"] = own
        placed.append((int(runs.first_seq[i]), inserted[i], replace(chunk, **changes)))
    found.chunks = placed
    _add_ids(found, steps, runs)


def _add_ids(found: RestoredSteps, steps: StepTable, runs: StepRuns) -> None:
    """Store the ids that are not that of the chunk with the place of the step."""
    import pyarrow.compute as pc

    pa = load_pyarrow()
    chunk_ids = pa.array([chunk.id for _, _, chunk in found.chunks], pa.string())
    made = pc.binary_join_element_wise(
        chunk_ids.take(pa.array(runs.run_of)), pa.array(runs.place).cast(pa.string()), "/"
    )
    given = whole(steps.column("id"))
    is_other = pc.not_equal(made, given).to_numpy(zero_copy_only=False).astype(bool)
    at = np.flatnonzero(is_other & ~runs.is_filled)
    if len(at):
        own = given.take(pa.array(at)).to_pylist()
        found.overlays["step_ids"] = {"seq": runs.seq[at].tolist(), "id": own}


def _spans(runs: StepRuns, values: NDArray[np.float64]) -> list[Mapping[str, Any]]:
    """Return the times of each chunk: the first and last time if the others are evenly between
    them.
    """
    begins, ends = runs.begins, np.append(runs.begins[1:], len(values))
    first, last = values[begins], values[ends - 1]
    counts = (ends - begins)[runs.run_of]
    expected = execute_times(first[runs.run_of], last[runs.run_of], counts, runs.place)
    is_same = (values == expected) | (np.isnan(values) & np.isnan(expected))
    are_even = np.logical_and.reduceat(is_same & ~runs.is_filled, begins)
    found: list[Mapping[str, Any]] = []
    ends_of = zip(_or_none(first), _or_none(last), strict=True)
    for i, (start, end, span) in enumerate(
        zip(begins.tolist(), ends.tolist(), ends_of, strict=True)
    ):
        if are_even[i]:
            found.append({"first_time": span[0], "last_time": span[1], "times": None})
        else:
            first_time, last_time, listed = stored_times(_or_none(values[start:end]))
            found.append({"first_time": first_time, "last_time": last_time, "times": listed})
    return found


def _or_none(values: NDArray[np.float64]) -> list[Any]:
    return [None if value != value else value for value in values.tolist()]
