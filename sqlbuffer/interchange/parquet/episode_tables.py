"""Episodes as Arrow tables."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from orjson import loads

from sqlbuffer.codec.plain_json import dumps
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.interchange.manifest import named_damage
from sqlbuffer.interchange.parquet.arrow_schema import METADATA_KEY, field_type, load_pyarrow
from sqlbuffer.interchange.parquet.arrow_tables import field_array
from sqlbuffer.interchange.parquet.arrow_values import field_values, nulls, times
from sqlbuffer.storage.copies.chunk_columns import typed_columns
from sqlbuffer.storage.copies.copied_tables import TableRows
from sqlbuffer.storage.copies.scratch_lists import ScratchLists
from sqlbuffer.storage.copies.value_forms import time_text, utc_time

EPISODES_AT_ONCE = 2_000
# The columns by their names in the table of episodes.
_NAMES = {
    "key": "episode_id", "task_id": "task_id", "agent_id": "agent_id", "status": "status",
    "length": "length", "return": "episode_return", "reward": "reward", "first_seq": "first_seq",
    "last_seq": "last_seq", "model_version": "model_version", "meta": "meta",
    "started_at": "started_at", "ended_at": "ended_at", "next_t": "next_t",
}  # fmt: skip


def episode_schema(observations: Mapping[str, FieldSpec], metadata: Mapping[str, Any]) -> Any:
    """Return the Arrow schema of episodes.

    Args:
        observations: Fields of an observation. The final observation of an episode is in columns
            `final_<field>`.
        metadata: Metadata of the buffer.
    """
    pa = load_pyarrow()
    time = pa.timestamp("us", tz="UTC")
    kinds = {
        **dict.fromkeys(("length", "first_seq", "last_seq", "model_version", "next_t"), pa.int64()),
        **dict.fromkeys(("episode_return", "reward"), pa.float64()),
        **dict.fromkeys(("started_at", "ended_at"), time),
    }
    columns = [pa.field(name, kinds.get(name, pa.string())) for name in _NAMES.values()]
    columns += [
        pa.field(f"final_{n}", field_type(s), metadata={"spec": json.dumps(s.to_json())})
        for n, s in observations.items()
    ]
    return pa.schema(columns, metadata={METADATA_KEY: json.dumps(metadata)})


def episode_tables(
    page: TableRows, observations: Layout, schema: Any, seen: ScratchLists | None
) -> Any:
    """Return a page of episodes as an Arrow table.

    Args:
        page: Rows of the table of episodes.
        observations: How the final observation is packed.
        schema: Of `episode_schema`.
        seen: The id and the task of those that are wanted; None: all are.
    """
    pa = load_pyarrow()
    if seen is not None:
        keys = zip(page.values["key"], page.values["task_id"], strict=True)
        page = page.where([key in seen for key in keys])
    own = page.values
    n = len(page)
    # For an open episode, changes by annotations are already in the rewards of its steps.
    returns = [
        None if status == "open" else value
        for status, value in zip(own["status"], own["return"], strict=True)
    ]
    values: dict[str, Any] = {
        **{shown: own[name] for name, shown in _NAMES.items()},
        "episode_return": returns,
        "meta": [None if text is None else dumps(loads(text)) for text in own["meta"]],
        "started_at": list(map(utc_time, own["started_at"])),
        "ended_at": list(map(utc_time, own["ended_at"])),
    }
    columns = [pa.array(values[name], schema.field(name).type) for name in _NAMES.values()]
    if observations.specs:
        raw = observations.expand(own["final_arrays"])
        size = observations.size_bytes
        heads = bytearray(b"").join([bytes(size) if r is None else r[:size] for r in raw])
        records = (
            np.frombuffer(heads, observations.record) if n else np.empty(0, observations.record)
        )
        tails = [b"" if r is None else bytes(r[size:]) for r in raw]
        nulls = np.array([r is None for r in raw], bool)
        found = typed_columns(observations, records, tails, list(observations.specs))
        columns += [field_array(observations.specs[name], found[name], nulls) for name in found]
    return pa.Table.from_arrays(columns, schema=schema)


def stored_episodes(
    path: Path, observations: Layout, *, has_counts: bool
) -> Iterator[dict[str, list[Any]]]:
    """Yield pages of the columns of the table of episodes, in the forms of SQLite.

    Args:
        path: The file that `episode_tables` filled.
        observations: How the final observation is packed.
        has_counts: The buffer counts the steps that are left of each episode.
    """
    import pyarrow.parquet as pq

    with named_damage(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(batch_size=EPISODES_AT_ONCE):
            table = load_pyarrow().Table.from_batches([batch])
            page: dict[str, list[Any]] = {
                name: table[shown].to_pylist()
                for name, shown in _NAMES.items()
                if not name.endswith("_at")
            }
            for name in ("started_at", "ended_at"):
                found = times(table[_NAMES[name]])
                page[name] = [None if time is None else time_text(time) for time in found]
            page["n_rows"] = [0 if has_counts else None] * len(table)
            page["final_arrays"] = _packed(table, observations)
            yield page


def _packed(table: Any, observations: Layout) -> list[Any]:
    specs = observations.specs
    if not specs:
        return [None] * len(table)
    values = {name: field_values(spec, table[f"final_{name}"]) for name, spec in specs.items()}
    missing = nulls(table[f"final_{next(iter(specs))}"]).tolist()
    rows = observations.compress(observations.pack(values, len(table)))
    return [
        None if is_none or row is None else bytes(row)
        for is_none, row in zip(missing, rows, strict=True)
    ]
