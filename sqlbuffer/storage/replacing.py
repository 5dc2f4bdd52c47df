"""Replace the bytes of stored steps in place; for `sqlbuffer.compat.memmap` alone.

Stored steps are immutable for everyone else. The chunks are not rewritten: new values are in
`replaced_steps`, `payload_changes` says what was changed, and the change log names the steps. A
step is read, changed and written whole, so this module also reads the steps of episodes as bytes.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.config import DEFAULT_CONFIG, BufferConfig
from sqlbuffer.encoding.chunks import comparable_values
from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS, Layout
from sqlbuffer.storage.buffers.catalog import SLOTS
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.chunks.numbered_chunks import values_json
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.store import BufferStore

# An episode, whose task has the same id; its first and its last t.
Run = tuple[str, int, int]


# Episodes are mostly read whole. SQLite stores a thousand steps of 100 bytes in two thirds of the
# time that chunks of two pages take.
EPISODE_CHUNK_BYTES = 2**15


def open_store(
    url: str, name: str, config: BufferConfig = DEFAULT_CONFIG, *, create: bool | None
) -> BufferStore:
    """Open a buffer, and make one whose steps may be replaced where `create` allows it."""
    store = BufferStore.open(url, name, config, create=create, layout=SLOTS)
    layout = store.layout
    n_bytes = max(layout.chunk_bytes, EPISODE_CHUNK_BYTES)
    store.layout = Layout(layout.specs, layout.compression, n_bytes)
    return store


def is_replaceable(store: BufferStore) -> bool:
    """Return True for a buffer whose steps may be replaced."""
    return store.info.layout == SLOTS


class StoredSpan(NamedTuple):
    """Consecutive steps in their stored form.

    Attributes:
        run: Index of their run.
        t: Place of the first one in the episode.
        seq: Number of the first one.
        n_steps: Number of steps.
        records: Their typed fields, one step after the other.
        may_have_changed: Steps of the buffer may have been replaced or deleted since.
    """

    run: int
    t: int
    seq: int
    n_steps: int
    records: Any
    may_have_changed: bool


# A whole chunk is not cut: `substr` copies it, which takes a third of the time on PostgreSQL.
# In this order: each run is looked up by its episode, and its steps by the index of episodes.
_SPANS_SQLITE = (
    "SELECT f.run, f.t + f.place, f.first_seq + f.place, f.last - f.place + 1, "
    "CASE WHEN f.place = 0 AND f.last = f.n_steps - 1 THEN d.records "
    "ELSE substr(d.records, f.place * f.size + 1, (f.last - f.place + 1) * f.size) END, "
    "(SELECT has_changes OR has_deleted FROM buffers WHERE id = :id) FROM ("
    "SELECT r.key AS run, c.key, c.t, c.first_seq, c.n_steps, "
    "max(json_extract(r.value, '$[1]') - c.t, 0) AS place, "
    "min(json_extract(r.value, '$[2]') - c.t, c.n_steps - 1) AS last, :size AS size "
    "FROM json_each(:runs) r "
    "CROSS JOIN episodes e ON e.buffer_id = :id AND e.key = json_extract(r.value, '$[0]') "
    "AND e.task_id = e.key "
    "CROSS JOIN chunks c ON c.buffer_id = :id AND c.episode_id = e.id "
    f"AND c.t > json_extract(r.value, '$[1]') - {MAX_CHUNK_STEPS} "
    "AND c.t <= json_extract(r.value, '$[2]') "
    "AND c.t + c.n_steps > json_extract(r.value, '$[1]') ORDER BY r.key, c.t"
    ") f CROSS JOIN chunk_data d ON d.key = f.key"
)
# Each run is looked up alone, by the index of episodes, with any statistics of the tables.
_SPANS_POSTGRESQL = (
    "SELECT f.run, f.t + f.place, f.first_seq + f.place, f.last - f.place + 1, "
    "(SELECT CASE WHEN f.place = 0 AND f.last = f.n_steps - 1 THEN d.records "
    "ELSE substr(d.records, f.place * f.size + 1, (f.last - f.place + 1) * f.size) END "
    "FROM chunk_data d WHERE d.buffer_id = f.buffer_id AND d.first_seq = f.first_seq LIMIT 1), "
    "(SELECT has_changes OR has_deleted FROM buffers WHERE id = %s) FROM ("
    "SELECT r.n::integer - 1 AS run, c.*, greatest(r.first - c.t, 0) AS place, "
    "least(r.last - c.t, c.n_steps - 1) AS last, %s::integer AS size "
    "FROM unnest(%b::text[], %b::integer[], %b::integer[]) "
    "WITH ORDINALITY AS r(key, first, last, n) CROSS JOIN LATERAL ("
    "SELECT x.id FROM episodes x WHERE x.buffer_id = %s AND x.key = r.key AND x.task_id = r.key "
    "OFFSET 0) AS e CROSS JOIN LATERAL ("
    "SELECT x.buffer_id, x.first_seq, x.t, x.n_steps FROM chunks x "
    "WHERE x.buffer_id = %s AND x.episode_id = e.id "
    f"AND x.t > r.first - {MAX_CHUNK_STEPS} AND x.t <= r.last AND x.t + x.n_steps > r.first "
    "OFFSET 0) AS c ORDER BY r.n, c.t OFFSET 0) AS f"
)
_CHANGED_SQLITE = (
    "SELECT r.seq, r.record FROM json_each(:spans) j CROSS JOIN replaced_steps r "
    "ON r.buffer_id = :id AND r.seq >= json_extract(j.value, '$[0]') "
    "AND r.seq < json_extract(j.value, '$[1]') "
    "UNION ALL SELECT x.seq, NULL FROM json_each(:spans) j CROSS JOIN deleted_steps x "
    "ON x.buffer_id = :id AND x.seq >= json_extract(j.value, '$[0]') "
    "AND x.seq < json_extract(j.value, '$[1]')"
)
_CHANGED_POSTGRESQL = (
    "SELECT c.seq, c.record FROM unnest(%s::bigint[], %s::bigint[]) AS j(first, after) "
    "CROSS JOIN LATERAL (SELECT r.seq, r.record FROM replaced_steps r "
    "WHERE r.buffer_id = %s AND r.seq >= j.first AND r.seq < j.after OFFSET 0) AS c "
    "UNION ALL "
    "SELECT c.seq, NULL FROM unnest(%s::bigint[], %s::bigint[]) AS j(first, after) "
    "CROSS JOIN LATERAL (SELECT x.seq FROM deleted_steps x "
    "WHERE x.buffer_id = %s AND x.seq >= j.first AND x.seq < j.after OFFSET 0) AS c"
)
_HELD_SQLITE = (
    "SELECT j.value, EXISTS ("
    "SELECT 1 FROM chunks c WHERE c.buffer_id = :id AND c.episode_id = e.id) "
    "FROM json_each(:keys) j CROSS JOIN episodes e ON e.buffer_id = :id "
    "AND e.key = j.value AND e.task_id = j.value"
)
# The offset keeps PostgreSQL from joining with the whole buffer if it has no statistics.
_HELD_POSTGRESQL = (
    "SELECT r.key, EXISTS ("
    "SELECT 1 FROM chunks c WHERE c.buffer_id = %s AND c.episode_id = e.id LIMIT 1 OFFSET 0) "
    "FROM unnest(%s::text[]) AS r(key) CROSS JOIN LATERAL ("
    "SELECT x.id FROM episodes x WHERE x.buffer_id = %s AND x.key = r.key AND x.task_id = r.key "
    "OFFSET 0) AS e"
)
_REPLACE_SQLITE = (
    "INSERT INTO replaced_steps (record, fields, reward_t, terminated, truncated, buffer_id, seq) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, seq) DO UPDATE "
    "SET record = excluded.record, fields = excluded.fields, reward_t = excluded.reward_t, "
    "terminated = excluded.terminated, truncated = excluded.truncated"
)
_NOTE_SQLITE = (
    "INSERT INTO payload_changes (buffer_id, seq, fields, n_changes) "
    "SELECT :id, j.value, :fields, 1 FROM json_each(:seqs) j WHERE true "
    "ON CONFLICT (buffer_id, seq) DO UPDATE SET fields = excluded.fields, "
    "n_changes = n_changes + 1, changed_at = excluded.changed_at"
)
_REPLACE_POSTGRESQL = (
    "SELECT sqlbuffer_replace_v1(%s::integer, %b::bigint[], %b::bytea[], %b::text[], "
    "%b::double precision[], %b::boolean[], %b::boolean[], %s)"
)


def _spans_sqlite(
    connection: Connection, buffer_id: int, runs: Sequence[Run], size: int
) -> Sequence[StoredSpan]:
    parameters = {"id": buffer_id, "runs": orjson.dumps(runs).decode(), "size": size}
    spans: Sequence[StoredSpan] = (
        driver_of(connection).execute(_SPANS_SQLITE, parameters).fetchall()
    )
    return spans


def _spans_postgresql(
    connection: Connection, buffer_id: int, runs: Sequence[Run], size: int
) -> Sequence[StoredSpan]:
    keys, first, last = (list(column) for column in zip(*runs, strict=True))
    parameters = (buffer_id, size, keys, first, last, buffer_id, buffer_id)
    spans: Sequence[StoredSpan] = (
        driver_of(connection).execute(_SPANS_POSTGRESQL, parameters).fetchall()
    )
    return spans


def _changed_sqlite(
    connection: Connection, buffer_id: int, spans: Sequence[tuple[int, int]]
) -> Sequence[tuple[int, Any]]:
    parameters = {"id": buffer_id, "spans": json.dumps(spans)}
    rows: Sequence[tuple[int, Any]]
    rows = driver_of(connection).execute(_CHANGED_SQLITE, parameters).fetchall()
    return rows


def _changed_postgresql(
    connection: Connection, buffer_id: int, spans: Sequence[tuple[int, int]]
) -> Sequence[tuple[int, Any]]:
    first, after = (list(column) for column in zip(*spans, strict=True))
    parameters = (first, after, buffer_id) * 2
    rows: Sequence[tuple[int, Any]]
    rows = driver_of(connection).execute(_CHANGED_POSTGRESQL, parameters).fetchall()
    return rows


def _held_sqlite(connection: Connection, buffer_id: int, keys: Sequence[str]) -> Sequence[Any]:
    parameters = {"id": buffer_id, "keys": json.dumps(keys)}
    rows: Sequence[Any] = driver_of(connection).execute(_HELD_SQLITE, parameters).fetchall()
    return rows


def _held_postgresql(connection: Connection, buffer_id: int, keys: Sequence[str]) -> Sequence[Any]:
    parameters = (buffer_id, list(keys), buffer_id)
    rows: Sequence[Any] = driver_of(connection).execute(_HELD_POSTGRESQL, parameters).fetchall()
    return rows


def _replace_sqlite(
    connection: Connection, buffer_id: int, seqs: Sequence[int], columns: Any, names: str
) -> None:
    driver = driver_of(connection)
    driver.execute(
        "UPDATE buffers SET has_changes = 1 WHERE id = ? AND NOT has_changes", (buffer_id,)
    )
    driver.executemany(_REPLACE_SQLITE, zip(*columns, [buffer_id] * len(seqs), seqs, strict=True))
    parameters = {"id": buffer_id, "fields": names, "seqs": json.dumps(list(seqs))}
    driver.execute(_NOTE_SQLITE, parameters)


def _replace_postgresql(
    connection: Connection, buffer_id: int, seqs: Sequence[int], columns: Any, names: str
) -> None:
    parameters = (buffer_id, list(seqs), *(list(column) for column in columns), names)
    driver_of(connection).execute(_REPLACE_POSTGRESQL, parameters)


_spans = by_database(sqlite=_spans_sqlite, postgresql=_spans_postgresql)
_changed = by_database(sqlite=_changed_sqlite, postgresql=_changed_postgresql)
_held = by_database(sqlite=_held_sqlite, postgresql=_held_postgresql)
_replace = by_database(sqlite=_replace_sqlite, postgresql=_replace_postgresql)


class ReplaceableSteps:
    """The steps of a buffer as bytes, which can be replaced in place.

    Args:
        buffer: A buffer of `open_store`.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self._buffer = buffer

    def spans(self, runs: Sequence[Run]) -> Sequence[StoredSpan]:
        """Return the stored spans of runs of steps, in the order of the runs and of t."""
        buffer_id, size = self._buffer.info.id, self._buffer.layout.size_bytes
        return self._buffer.read(lambda connection: _spans(connection, buffer_id, runs, size))

    def changed(self, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, Any]]:
        """Return (seq, record) of replaced steps, and (seq, None) of deleted ones.

        Args:
            spans: For each span its first seq, and the one after its last.
        """
        buffer_id = self._buffer.info.id
        return self._buffer.read(lambda connection: _changed(connection, buffer_id, spans))

    def held_episodes(self, keys: Sequence[str]) -> dict[str, bool]:
        """Return those of episodes, whose tasks have the same ids, that are listed.

        Each has True if it has steps.
        """
        buffer_id = self._buffer.info.id
        rows = self._buffer.read(lambda connection: _held(connection, buffer_id, keys))
        return {key: bool(has_steps) for key, has_steps in rows}

    def replace(
        self,
        seqs: Sequence[int],
        rows: NDArray[Any],
        outcomes: Sequence[Sequence[Any]],
        names: Sequence[str],
    ) -> None:
        """Replace the contents of steps; `payload_changes` and the change log record that.

        The caller has read the steps in the same transaction, and keeps others from changing them.

        Args:
            seqs: The steps, each once; the buffer has all of them.
            rows: Their typed fields, structured, of shape (n,).
            outcomes: Their rewards, and whether they terminated and truncated their episodes.
            names: The changed fields, for the record.
        """
        if not seqs:
            return
        buffer = self._buffer
        raw, size = rows.tobytes(), buffer.layout.size_bytes
        records = [raw[i * size : (i + 1) * size] for i in range(len(rows))]
        columns = (records, _scalars(buffer, rows), *outcomes)

        def work(connection: Connection) -> None:
            _replace(connection, buffer.info.id, seqs, columns, ", ".join(names))
            log_change(connection, buffer.info.id, "replaced", seqs, buffer.origin)

        buffer.write(work)


def _scalars(buffer: OpenBuffer, rows: NDArray[Any]) -> Sequence[str | None]:
    """Return the JSON of the scalar fields of each step, which conditions compare."""
    scalars = sorted(name for name, spec in buffer.layout.specs.items() if spec.column)
    keys = [f'"{name}":' for name in scalars]
    lists = [_texts(rows[name]) for name in scalars]
    texts = [
        f"{{{','.join(map(str.__add__, keys, values))}}}" for values in zip(*lists, strict=True)
    ]
    return texts or [None] * len(rows)


def _texts(values: NDArray[np.generic]) -> list[str]:
    """Return the JSON of each number, as a chunk has it."""
    comparable = comparable_values(values)
    if isinstance(comparable, list):
        return [orjson.dumps(value).decode() for value in comparable]
    listed = values_json(comparable)
    return listed[1:-1].split(",") if listed and len(comparable) else []
