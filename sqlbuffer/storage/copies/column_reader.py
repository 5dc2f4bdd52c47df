"""Read a range of steps as columns, under the hold of a copy."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from orjson import loads
from sqlalchemy import Connection, select

from sqlbuffer.codec.plain_values import dumps
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import decode_reals
from sqlbuffer.steps import ColumnBatch
from sqlbuffer.storage.copies.chunk_columns import PAYLOADS, chunk_columns, kept_steps
from sqlbuffer.storage.copies.copied_parts import CopiedRange
from sqlbuffer.storage.copies.copied_tables import TableRows
from sqlbuffer.storage.copies.source_steps import CopySource
from sqlbuffer.storage.copies.value_forms import utc_time
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.marks import late_values
from sqlbuffer.storage.rows.layouts import CHUNKS, layout_of

_REALS = {
    "reward_t": "reward", "adv_t": "advantage", "v_t": "value", "execute_time": "execute_time",
}  # fmt: skip
_SHOWN = {"adv_t": "advantage", "v_t": "value"}
# Maximum number of episodes that a statement names.
_KEYS_AT_ONCE = 1_000


class ColumnReader:
    """Reads the steps of a buffer as columns, with their current values.

    Args:
        source: The steps, and the hold on them.
        fields: Names of the typed fields to read; all by default.

    Attributes:
        n_read: Number of steps read so far, also of those that do not match.
    """

    def __init__(self, source: CopySource, fields: Sequence[str] | None = None) -> None:
        self.source, info = source, source.buffer.info
        self._layout = Layout(info.config.fields.specs, info.config.payloads.compression)
        self._fields = tuple(self._layout.specs) if fields is None else tuple(fields)
        self._steps = layout_of(info)
        self._sessions: dict[int, str] = {}
        self.n_read = 0

    def batch(self, copied: CopiedRange) -> tuple[ColumnBatch, int]:
        """Return the next steps behind the cursor, and the number that they end with.

        Raises:
            CopyError: Some of the steps have left.
            FieldError: A step is damaged.
        """
        batch, end, n_read = self.source.read(lambda connection: self._batch(connection, copied))
        self.n_read += n_read
        return batch, end

    def check_read(self, copied: CopiedRange, n_expected: int | None) -> None:
        """Check that all steps of a range were read, where missing ones would not show.

        Raises:
            CopyError: Some steps have left.
        """
        source, n_missing = self.source, (n_expected or 0) - self.n_read
        if n_missing > 0 and (source.hold is None or not source.read(source.hold.is_live)):
            raise source.missing(copied.low + 1, copied.high, f"{n_missing:,} of the ")

    def _batch(self, connection: Connection, copied: CopiedRange) -> tuple[ColumnBatch, int, int]:
        stored = self.source.batch_in(connection, copied)
        tables = {rows.table.name: rows for rows in stored.tables}
        main = tables[self._steps.table.name]
        keys = _episode_keys(connection, main.values["episode_id"])
        unknown = set(main.values["session_id"]) - self._sessions.keys() - {None}
        if unknown:
            self._sessions = self.source.session_keys_in(connection)
        if self._steps is CHUNKS:
            batch = chunk_columns(self._layout, tables, keys, self._sessions, self._fields)
        else:
            batch = row_columns(self._layout, tables, keys, self._sessions)
        is_kept = batch.seq > max(copied.cursor, copied.low)
        deleted = tables.get("deleted_steps")
        if deleted is not None and len(deleted):
            is_kept &= ~np.isin(batch.seq, np.array(deleted.numbers, np.int64))
        _Overlay(batch, tables, self._layout).apply()
        return kept_steps(batch, is_kept), stored.end, stored.n_read


def episode_pages(source: CopySource, copied: CopiedRange) -> Iterator[TableRows]:
    """Yield the episodes as they were when the last step of a range was stored."""
    after = -1

    def next_page(connection: Connection) -> TableRows | None:
        return next(source.episodes(connection, copied, after), None)

    while (page := source.read(next_page)) is not None:
        yield page
        after = page.numbers[-1]


def _episode_keys(connection: Connection, ids: Sequence[int | None]) -> dict[int, str]:
    wanted = sorted({id_ for id_ in ids if id_ is not None})
    found: dict[int, str] = {}
    for i in range(0, len(wanted), _KEYS_AT_ONCE):
        some = episodes.c.id.in_(wanted[i : i + _KEYS_AT_ONCE])
        found.update(
            (row.id, row.key)
            for row in connection.execute(select(episodes.c.id, episodes.c.key).where(some))
        )
    return found


def row_columns(
    layout: Layout,
    tables: Mapping[str, TableRows],
    episode_keys: Mapping[int, str],
    session_keys: Mapping[int, str],
) -> ColumnBatch:
    """Return the steps of rows; see `chunk_columns`."""
    own = tables["experiences"].values
    n = len(own["seq"])
    shared: dict[str, list[Any]] = {
        name: own[name]
        for name in ("task_id", "task_name", "agent_id", "pre_agent", "model_version")
    }
    shared["first_seq"] = own["seq"]
    shared["episode_id"] = list(map(episode_keys.get, own["episode_id"]))
    shared["session_id"] = list(map(session_keys.get, own["session_id"]))
    shared["inserted_at"] = list(map(utc_time, own["inserted_at"]))
    batch = ColumnBatch(np.array(own["seq"], np.int64), np.arange(n), shared, {})
    for name in ("t", "step"):
        batch.own[name] = np.array([-1 if v is None else v for v in own[name]], np.int64)
        _note_missing(batch, name, own[name])
    for name, shown in (*_REALS.items(), ("initial_priority", "priority")):
        batch.own[shown] = np.array(own[name], np.float64)  # None is NaN
        _note_missing(batch, shown, own[name])
    for name in ("terminated", "truncated"):
        batch.own[name] = np.array([value == 1 for value in own[name]], bool)
        _note_missing(batch, name, own[name])
    for name in (*PAYLOADS, "id"):
        if name == "id" or any(value is not None for value in own[name]):
            batch.own[name] = [_canonical(value) if name != "id" else value for value in own[name]]
    arrays = _blobs(layout, own, tables.get("payload_parts"))
    if any(value is not None for value in arrays):
        batch.own["arrays"] = arrays
    return batch


def _note_missing(batch: ColumnBatch, name: str, values: Sequence[Any]) -> None:
    missing = np.array([value is None for value in values], bool)
    if missing.any():
        batch.is_null[name] = missing


def _canonical(text: str | None) -> str | None:
    """Return JSON in the same form for both databases, with the keys in the same order."""
    return None if text is None else dumps(loads(text))


def _blobs(
    layout: Layout, own: Mapping[str, list[Any]], parts: TableRows | None
) -> list[bytes | None]:
    """Return the bytes that the JSON of each row refers to."""
    found = list(layout.expand(own["arrays"], own["seq"]))
    if parts is not None and len(parts):
        by_seq: dict[int, list[tuple[int, Any]]] = {}
        values = parts.values
        for seq, part, raw in zip(values["seq"], values["part"], values["bytes"], strict=True):
            by_seq.setdefault(seq, []).append((part, raw))
        for i, seq in enumerate(own["seq"]):
            if own["payload_bytes"][i] is not None:
                raws = [raw for _, raw in sorted(by_seq.get(seq, ()), key=lambda each: each[0])]
                found[i] = b"".join(map(bytes, filter(None, layout.expand(raws))))
    return [None if raw is None else bytes(raw) for raw in found]


class _Overlay:
    """Replaces values of steps by the values that they were given later."""

    def __init__(self, batch: ColumnBatch, tables: Mapping[str, TableRows], layout: Layout) -> None:
        self._batch, self._tables = batch, tables
        self._read = {name: spec for name, spec in layout.specs.items() if name in batch.fields}

    def apply(self) -> None:
        """Apply all of them."""
        batch = self._batch
        self._put_labels()
        self._untag_reals()
        for place, row in self._rows("step_ids"):
            batch.own["id"].given[place] = row["id"]
        for place, row in self._rows("priorities"):
            self._set("priority", place, row["priority"])
        for place, row in self._rows("quarantine"):
            self._list("quarantined_at")[place] = utc_time(row["quarantined_at"])
            self._list("quarantine_reason")[place] = row["reason"]
        for name in ("uses", "queue_items"):
            for place, row in self._rows(name):
                batch.own.setdefault("uses", np.zeros(len(batch), np.int64))[place] = row["n_uses"]

    def _writable(self, name: str) -> NDArray[Any]:
        fields = self._batch.fields
        if not fields[name].flags.writeable:
            fields[name] = fields[name].copy()
        values: NDArray[Any] = fields[name]
        return values

    def _put_labels(self) -> None:
        rows = self._tables.get("labels")
        if rows is None or not len(rows):
            return
        own = (rows.values[name] for name in ("seq", "reward_t", "adv_t", "v_t", "fields"))
        labels = list(zip(*own, strict=True))
        late = late_values(labels, self._read, self._places_of)
        for name, (places, reals) in late.reals.items():
            self._set(_SHOWN.get(name, name), places, reals)
        for name, (places, values) in late.fields.items():
            self._writable(name)[places] = values
        texts = rows.values["extra"]
        which, places = self._places_of(np.array(rows.numbers, np.int64))
        for row, place in zip(which.tolist(), places.tolist(), strict=True):
            if texts[row] is not None:
                self._list("extra")[place] = _canonical(texts[row])

    def _places_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which steps are there, and their places; see `late_values`."""
        seq = self._batch.seq
        places = np.searchsorted(seq, numbers)
        which = np.flatnonzero(np.append(seq, -1)[places] == numbers)
        return which, places[which]

    def _list(self, name: str) -> list[Any]:
        found: list[Any] = self._batch.own.setdefault(name, [None] * len(self._batch))
        return found

    def _rows(self, name: str) -> Any:
        """Yield the place of the step of each row of a table, and the row."""
        rows = self._tables.get(name)
        if rows is None or not len(rows):
            return
        which, places = self._places_of(np.array(rows.numbers, np.int64))
        for row, place in zip(which.tolist(), places.tolist(), strict=True):
            yield place, {name: values[row] for name, values in rows.values.items()}

    def _set(self, name: str, places: Any, values: Any) -> None:
        own, is_null = self._batch.own, self._batch.is_null
        if name not in own:
            own[name] = np.full(len(self._batch), np.nan)
            is_null[name] = np.ones(len(self._batch), bool)
        own[name][places] = values
        if name in is_null:
            is_null[name][places] = False

    def _untag_reals(self) -> None:
        """Remove numbers from `extra` that their columns cannot hold."""
        extras: list[Any] = self._batch.own.get("extra", [])
        for place, text in enumerate(extras):
            if text is None or '"$reals"' not in text:
                continue
            for name, value in decode_reals(text).items():
                self._set(_REALS[name], place, value)
            tree = loads(text)
            tree.pop("$reals", None)
            extras[place] = None if tree.pop("$none", False) else dumps(tree)
