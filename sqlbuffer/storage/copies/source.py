"""Read the source of a copy, a limited number of steps at a time."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from orjson import loads
from sqlalchemy import Connection, and_, func, select, text

from sqlbuffer.codec.plain_values import dumps
from sqlbuffer.encoding.chunks import step_rows
from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS, Layout
from sqlbuffer.encoding.records import decode_reals
from sqlbuffer.errors import CopyError, StorageBusyError
from sqlbuffer.fields import VARIABLE
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.steps import PAYLOADS, ColumnBatch, RaggedValues
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers, sessions
from sqlbuffer.storage.buffers.window import settled_seq
from sqlbuffer.storage.chunks.slices import StepColumns
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.copies import postgresql, sqlite
from sqlbuffer.storage.copies.parts import (
    CopiedRange,
    SourceIdentity,
    SourceState,
    StepBatch,
    TableRows,
    episode_table,
    overlay_tables,
    step_tables,
    time_text,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import reading, snapshot
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.documents import stored_documents
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.holds import HOLD_S, Hold
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.marks import late_values
from sqlbuffer.storage.messages import IDS, whole_lists, whole_payloads
from sqlbuffer.storage.rows.layouts import CHUNKS, ROWS, StepLayout, layout_of
from sqlbuffer.storage.rows.statements import in_window
from sqlbuffer.storage.schema.expressions import listed, utc_time
from sqlbuffer.storage.watermarks import is_standby, last_number

# A batch has at most this many rows or chunks, and ends behind the one that reaches this size.
MOST_ROWS, MOST_CHUNKS = 2_000, 512
BATCH_BYTES = 8 * 2**20
EPISODES_AT_ONCE = 2_000
# Seconds that a copy waits at its start for the writers under way.
SETTLING_S = 30.0
STANDBY_PAUSE_S = 0.1
# Columns of the buffer as a whole, in addition to its configuration.
BUFFER_COLUMNS = (
    "clock", "max_priority", "n_expired", "n_used_up", "n_other_session", "n_partial",
    "n_flat",
)  # fmt: skip
_FLAGS = sorted(
    {table.flag for layout in (ROWS, CHUNKS) for table in step_tables(layout) if table.flag}
)

T = TypeVar("T")
_COUNT = text(
    "SELECT count(*) FROM step_numbers WHERE buffer_id = :id AND seq > :low AND seq <= :high"
)

sizes = by_database(sqlite=sqlite.sizes, postgresql=postgresql.sizes)
read_rows = by_database(sqlite=sqlite.read_rows, postgresql=postgresql.read_rows)
few_pages = by_database(sqlite=sqlite.few_pages, postgresql=postgresql.few_pages)
read_episodes = by_database(sqlite=sqlite.read_episodes, postgresql=postgresql.read_episodes)


class CopySource:
    """Reads a buffer that is copied.

    Args:
        store: The buffer.
        node: Condition that copied steps must match.

    Attributes:
        store: The buffer where its steps are held.
        buffer: The buffer where its steps are read: the same one, or that on the standby.
        node: The condition.
        hold: Hold on the steps; None if there is none, as when the source cannot be written.
    """

    def __init__(self, store: OpenBuffer, node: Node) -> None:
        self.store, self.buffer, self.node = store, store.reading, node
        self.hold: Hold | None = None
        self._id, self._steps = store.info.id, layout_of(store.info)
        self._step_bytes = store.layout.size_bytes  # not compressed

    @property
    def dialect(self) -> str:
        """The kind of its database."""
        return self.buffer.engine.dialect.name

    def identity(self) -> SourceIdentity:
        """Return the identity of this buffer."""

        def look() -> SourceIdentity:
            statement = select(buffers.c.created_at, buffers.c.uuid).where(buffers.c.id == self._id)
            with translated(self.store.url), reading(self.store.engine) as connection:
                row = connection.execute(statement).one_or_none()
            if row is None:
                raise self.store.dropped()
            created, uuid = row
            shown = time_text(created) if isinstance(created, datetime) else str(created)
            condition = None if self.node == EVERYTHING else repr(self.node)
            info = self.store.info
            return SourceIdentity(
                self.store.shown_url, info.name, info.id, shown, condition, str(uuid)
            )

        return self.store.with_retries(look)

    def settled(self) -> int | None:
        """Return a number up to which all steps are there; None if that is the newest one.

        Raises:
            StorageBusyError: A transaction that writes does not end, or the standby is behind.
        """

        def look() -> int | None:
            buffer = self.store
            with translated(buffer.url):
                with reading(buffer.engine) as connection:
                    last, stands_by = connection.execute(
                        select(last_number(self._id), is_standby())
                    ).one()
                settled = settled_seq(buffer.engine, buffer.watermark, SETTLING_S)
                deadline = time.monotonic() + SETTLING_S
                # A standby knows more at a second read, a little later.
                while stands_by and settled == 0 < last and time.monotonic() < deadline:
                    time.sleep(STANDBY_PAUSE_S)
                    settled = settled_seq(buffer.engine, buffer.watermark)
            if stands_by and settled == 0 < last:
                raise StorageBusyError(
                    f"{buffer.shown_url}: a standby cannot tell which steps of buffer "
                    f"{buffer.info.name!r} are complete until later ones are committed; copy "
                    f"again, or copy from the primary"
                )
            if settled is not None and settled < last and not stands_by:
                raise StorageBusyError(
                    f"{buffer.shown_url}: a transaction that writes to buffer "
                    f"{buffer.info.name!r} did not end within {SETTLING_S:.0f} s; end it "
                    f"(`sqlbuffer doctor` names old ones), and copy again"
                )
            return settled

        up_to = self.store.with_retries(look)
        self.buffer.own_writes.catch_up_with_all()
        return up_to

    def state(self, connection: Connection, settled: int | None) -> SourceState:
        """Return the copied data, in a snapshot that was opened after `settled` was found."""
        window = self.buffer.window_in(connection)
        high = window.high if settled is None else min(settled, window.high)
        low, cursor = min(window.low, high), min(window.low, high)
        # Chunks are copied whole: the first one may begin below the window. A snapshot may be in
        # the middle of the numbers of one write.
        low_chunk, high_chunk = self.chunk_at(connection, low), self.chunk_at(connection, high)
        if low_chunk is not None and low_chunk[1] > low:
            cursor = low_chunk[0] - 1
        if high_chunk is not None:
            high = max(high, high_chunk[1])
        buffer = buffers.c
        state = connection.execute(
            select(*(buffer[name] for name in BUFFER_COLUMNS), sessions.c.key.label("session"))
            .outerjoin_from(buffers, sessions, buffer.session_id == sessions.c.id)
            .where(buffer.id == self._id)
        ).one()
        versions = connection.execute(
            select(sessions.c.key, sessions.c.current_version)
            .where(sessions.c.buffer_id == self._id)
            .order_by(sessions.c.id)
        )
        columns = {name: state._mapping[name] for name in BUFFER_COLUMNS}
        return SourceState(
            CopiedRange(low, high, cursor), columns, state.session,
            {row.key: row.current_version for row in versions},
            self.count(connection, low, high),
        )  # fmt: skip

    def count(self, connection: Connection, low: int, high: int) -> int | None:
        """Return the number of steps between two numbers, if missing ones would not show."""
        if self.buffer.info.config.retention.evict_by == "row":
            return None
        parameters = {"id": self._id, "low": low, "high": high}
        return int(connection.execute(_COUNT, parameters).scalar_one())

    def check_left(self, copied: CopiedRange, n_left: int | None) -> None:
        """Check that the source has all the steps that are still to be read.

        Args:
            copied: Range of those steps.
            n_left: Number of those steps, if whole tasks or episodes are evicted.

        Raises:
            CopyError: Some steps have left.
        """
        low = max(copied.cursor, copied.low)

        def check(connection: Connection) -> None:
            self._check_window(connection, low, copied.high)
            n_held = self.count(connection, low, copied.high)
            if n_left is not None and n_held != n_left:
                raise self.missing(low + 1, copied.high, f"{n_left - (n_held or 0):,} of the ")

        self.read(check)

    def newest(self, connection: Connection, up_to: int) -> tuple[int, str] | None:
        """Return the number of the newest chunk or row up to a number; see `newest_mark`."""
        return newest_mark(connection, self._id, up_to, self._steps)

    def check_same(self, number: int, mark: str) -> None:
        """Raise an error if the source has a different step under the number of a copied one.

        Raises:
            CopyError: The steps differ.
        """
        newest = self.read(partial(self.newest, up_to=number))
        if newest is not None and newest[0] == number and newest[1] != mark:
            raise CopyError(
                f"buffer {self.buffer.info.name!r} in {self.buffer.shown_url} has another step at "
                f"seq {number:,} than the unfinished copy: it was restored, or is another one; "
                f"drop the copy, and copy again"
            )

    def chunk_at(self, connection: Connection, seq: int) -> tuple[int, int] | None:
        """Return the first and last number of the last chunk that begins at or below a number."""
        chunk = chunks.c
        ends = connection.execute(
            select(chunk.first_seq, chunk.first_seq + chunk.n_steps - 1)
            .where(
                chunk.buffer_id == self._id,
                chunk.first_seq <= seq,
                chunk.first_seq > seq - MAX_CHUNK_STEPS,
            )
            .order_by(chunk.first_seq.desc())
            .limit(1)
        ).one_or_none()
        return None if ends is None else (ends[0], ends[1])

    def episodes(
        self, connection: Connection, copied: CopiedRange, after: int = -1
    ) -> Iterator[TableRows]:
        """Yield the episodes as they were when the last step of the range was stored.

        An episode with steps above the range was open then. One with only such steps is left out,
        and so are those up to a key (`after`).
        """
        begun_later = self._later_episodes(connection, copied.high)
        while True:
            page = read_episodes(connection, episode_table(), self._id, after, EPISODES_AT_ONCE)
            if not len(page):
                return
            after = page.numbers[-1]
            is_kept = [begun_later.get(number) != 0 for number in page.numbers]
            kept = page if all(is_kept) else page.where(is_kept)
            for i, number in enumerate(kept.numbers):
                if number in begun_later:
                    _reopen(kept, i, begun_later[number] if self._steps is CHUNKS else None)
            if len(kept):
                yield kept

    def _later_episodes(self, connection: Connection, high: int) -> dict[int, int]:
        """Return the first step above a number of each episode that has any."""
        step, number = self._steps.table.c, self._steps.number
        later = and_(step.buffer_id == self._id, step[number] > high, step.episode_id.is_not(None))
        first = func.min(step.t).label("first")
        firsts = connection.execute(
            select(step.episode_id, first).where(later).group_by(step.episode_id)
        )
        return {row.episode_id: row.first for row in firsts}

    def episode_names(self) -> Iterator[list[tuple[int, str, str]]]:
        """Return the key, the id and the task of each episode, in the order of their keys."""
        after = -1
        while True:
            page = self.read(
                partial(
                    read_episodes, table=episode_table(), buffer_id=self._id, after=after,
                    limit=EPISODES_AT_ONCE,
                )
            )  # fmt: skip
            if not len(page):
                return
            values = page.values
            yield list(zip(values["id"], values["key"], values["task_id"], strict=True))
            after = page.numbers[-1]

    def documents(self) -> list[tuple[str, int, str]]:
        """Return the documents of the buffer; see `stored_documents`."""
        return self.read(lambda connection: stored_documents(connection, self._id))

    def session_keys(self) -> dict[int, str]:
        """Return the sessions by their keys in this database."""
        return self.read(self.session_keys_in)

    def session_keys_in(self, connection: Connection) -> dict[int, str]:
        """Return the result of `session_keys`, in a transaction."""
        session = sessions.c
        keys = connection.execute(
            select(session.id, session.key).where(session.buffer_id == self._id)
        )
        return {row.id: row.key for row in keys}

    def batch(self, copied: CopiedRange) -> StepBatch:
        """Return the next steps behind the cursor.

        Raises:
            CopyError: Some of the steps have left.
        """
        return self.read(partial(self.batch_in, copied=copied))

    def read(self, read: Callable[[Connection], T]) -> T:
        """Run a function in one snapshot and return its result."""
        self.buffer.own_writes.catch_up()

        def look() -> T:
            buffer = self.buffer
            with translated(buffer.url), snapshot(buffer.engine, in_order=True) as connection:
                connection.begin()
                with few_pages(connection):
                    return read(connection)

        return self.buffer.with_retries(look)

    def batch_in(self, connection: Connection, copied: CopiedRange) -> StepBatch:
        """Return the result of `batch`, in a transaction."""
        begin, low = copied.cursor, max(copied.cursor, copied.low)
        self._check_there(connection, low, copied.high)
        most = MOST_CHUNKS if self._steps is CHUNKS else MOST_ROWS
        step_sizes = sizes(connection, self._id, begin, copied.high, most, self._steps)
        n_bytes = np.cumsum([max(size, n * self._step_bytes) for _, n, size in step_sizes])
        n_taken = min(int(np.searchsorted(n_bytes, BATCH_BYTES)) + 1, len(step_sizes))
        is_last = n_taken == len(step_sizes) < most
        last = None if is_last else step_sizes[n_taken - 1]
        end = copied.high if last is None else last[0] + last[1] - 1
        batch = StepBatch(begin, end)
        flags = self._flags(connection)
        for table in (*step_tables(self._steps), *overlay_tables()):
            if table.flag is None:
                rows = read_rows(connection, table, self._id, begin, end)
                batch.tables.append(self._whole(connection, rows))
            elif flags[table.flag]:
                batch.tables.append(read_rows(connection, table, self._id, low, end))
        batch.n_steps = batch.n_read = self._n_steps(batch, low)
        if self.node != EVERYTHING:
            matching = resolve_labels(self.node, bool(flags["has_labels"]))
            steps = self._steps.of(self._id)
            where = and_(in_window(self._id, low, matching, steps), steps.c.seq <= end)
            seqs = connection.scalars(select(steps.c.seq).where(where))
            batch.keep(set(seqs))
        return batch

    def _whole(self, connection: Connection, rows: TableRows) -> TableRows:
        """Return rows with whole messages in place of ids."""
        values = rows.values
        if "payloads" in values:
            whole = whole_payloads(connection, self._id, values["payloads"])
            return replace(rows, values={**values, "payloads": whole})
        if IDS not in values:
            return rows
        ids = [listed(numbers) for numbers in values[IDS]]
        shared = [i for i, numbers in enumerate(ids) if numbers]
        lists = whole_lists(connection, self._id, [(ids[i], values["messages"][i]) for i in shared])
        for i, messages in zip(shared, lists, strict=True):
            values["messages"][i] = messages
        return rows.without(IDS)

    def _n_steps(self, batch: StepBatch, low: int) -> int:
        """Return the number of steps of a batch above a number."""
        by_name = {rows.table.name: rows for rows in batch.tables}
        if "experiences" in by_name:
            return len(by_name["experiences"])
        chunk_rows = by_name["chunks"]
        spans = zip(chunk_rows.numbers, chunk_rows.values["n_steps"], strict=True)
        n_whole = sum(first + n - 1 - max(low, first - 1) for first, n in spans)
        deleted = by_name.get("deleted_steps")
        n_deleted = 0 if deleted is None else len(deleted)
        return int(n_whole) - n_deleted

    def _flags(self, connection: Connection) -> dict[str, bool]:
        names = sorted({table.flag for table in overlay_tables() if table.flag} | {*_FLAGS})
        statement = select(*(buffers.c[name] for name in names)).where(buffers.c.id == self._id)
        flags = connection.execute(statement).one()
        return {name: bool(flags._mapping[name]) for name in names}

    def _check_there(self, connection: Connection, low: int, high: int) -> None:
        """Raise an error unless the steps above a number are held, or in the window."""
        if self.hold is None or not self.hold.is_live(connection):
            self._check_window(connection, low, high)

    def _check_window(self, connection: Connection, low: int, high: int) -> None:
        window = self.buffer.window_in(connection)
        if window.evict_by == "row" and window.low > low and low < high:
            raise self.missing(low + 1, min(window.low, high))

    def missing(self, first: int, last: int, some: str = "") -> CopyError:
        """Return the error for steps that have left."""
        why = (
            "the source cannot be written, so the copy could not hold them"
            if self.hold is None
            else f"a copy that does not continue within {HOLD_S:.0f} s no longer holds them"
        )
        return CopyError(
            f"{some}steps {first:,} to {last:,} of buffer {self.buffer.info.name!r} left "
            f"{self.buffer.shown_url} before they were copied ({why}); drop the unfinished copy, "
            f"and copy again"
        )


def newest_mark(
    connection: Connection, buffer_id: int, up_to: int, steps: StepLayout
) -> tuple[int, str] | None:
    """Return the number of the newest chunk or row up to a number, and a mark unique to it."""
    columns, name = steps.table.c, steps.number
    statement = (
        select(columns[name], columns[steps.mark])
        .where(columns.buffer_id == buffer_id, columns[name] <= up_to)
        .order_by(columns[name].desc())
        .limit(1)
    )
    row = connection.execute(statement).one_or_none()
    if row is None:
        return None
    number, mark = row
    return number, time_text(mark) if isinstance(mark, datetime) else str(mark)


def _reopen(copied_episodes: TableRows, i: int, next_t: int | None) -> None:
    """Change an episode back to its state while it was open."""
    for name in ("length", "return", "reward", "first_seq", "last_seq", "final_arrays", "ended_at"):
        copied_episodes.values[name][i] = None
    copied_episodes.values["status"][i] = "open"
    copied_episodes.values["is_implied"][i] = False
    if next_t is not None:
        copied_episodes.values["next_t"][i] = next_t


def range_pieces(
    source: CopySource, copied: CopiedRange, n: int
) -> list[tuple[CopiedRange, int | None]]:
    """Return at most n ranges of similar numbers of steps, which together are the range.

    Each chunk is in one of them only. Next to each range is its number of steps, if missing ones
    would not show.
    """

    def look(connection: Connection) -> list[tuple[CopiedRange, int | None]]:
        low, high = copied.low, copied.high
        n_ranges = min(n, high - low)
        ends: list[int] = []
        for i in range(1, n_ranges):
            end = low + (high - low) * i // n_ranges
            chunk = source.chunk_at(connection, end)
            if chunk is not None and chunk[1] > end:
                end = chunk[1]
            if low < end < high and end not in ends:
                ends.append(end)
        starts = [low, *ends]
        cursors = [copied.cursor, *ends]
        stops = [*ends, high]
        pieces = [CopiedRange(*piece) for piece in zip(starts, stops, cursors, strict=True)]
        return [(piece, source.count(connection, piece.low, piece.high)) for piece in pieces]

    return source.read(look) if copied.low < copied.high else []


_REALS = {"advantage": "adv_t", "value": "v_t", "priority": "initial_priority"}
_CHUNK_FLAGS = ("terminated", "truncated")


class ChunkContent(NamedTuple):
    """The bytes of a chunk; see `PackedChunk`."""

    n_steps: int
    records: bytes
    block_steps: int
    offsets: Any
    layout: int


def chunk_columns(
    layout: Layout,
    tables: Mapping[str, TableRows],
    episode_names: "Mapping[int, EpisodeNames]",
    session_keys: Mapping[int, str],
    wanted: Sequence[str],
) -> ColumnBatch:
    """Return the steps of chunks, also the deleted ones.

    Args:
        layout: The typed fields.
        tables: The rows of `chunks` and of `chunk_data` of the same chunks, in order.
        episode_names: The ids of the episodes that they name, and the groups and parents of these.
        session_keys: The ids of the sessions that they name.
        wanted: Names of the typed fields to return.

    Raises:
        FieldError: A step is damaged.
    """
    columns, data = tables["chunks"].values, tables["chunk_data"].values
    steps = StepColumns({**columns, **data})
    seq = np.array(columns["first_seq"], np.int64)[steps.run_of] + steps.place
    shared: dict[str, list[Any]] = {
        name: columns[name]
        for name in ("first_seq", "task_id", "task_name", "agent_id", "pre_agent", "model_version")
    }
    shared |= _shared_names(columns, episode_names, session_keys)
    batch = ColumnBatch(
        seq, steps.run_of, shared, {"id": steps.ids(), "step": steps.steps(), "t": steps.ts()}
    )
    _note_missing(batch, "t", batch.own["t"] < 0)
    reals: dict[str, Any] = {"execute_time": steps.times(), "reward": steps.rewards()}
    reals |= {name: steps.reals(column) for name, column in _REALS.items()}
    for name, values in reals.items():
        if values is not None:
            batch.own[name] = values
            # A NaN is in the JSON of its step, so NaN here means that there is no number.
            _note_missing(batch, name, np.isnan(values))
    for name in _CHUNK_FLAGS:
        batch.own[name], is_missing = steps.flags(name)
        _note_missing(batch, name, is_missing)
    _add_payloads(batch, steps, layout, data["payload_arrays"])
    if wanted:
        names = ("records", "block_steps", "offsets", "layout")
        stored = zip(columns["n_steps"], *(data[name] for name in names), strict=True)
        contents = [
            ChunkContent(n, records, size, None if offsets is None else listed(offsets), number)
            for n, records, size, offsets, number in stored
        ]
        records, tails = _field_bytes(layout, contents)
        batch.fields.update(typed_columns(layout, records, tails, wanted))
    return batch


def _note_missing(batch: ColumnBatch, name: str, is_missing: NDArray[np.bool_]) -> None:
    if is_missing.any():
        batch.is_null[name] = is_missing


def _add_payloads(
    batch: ColumnBatch, steps: StepColumns, layout: Layout, arrays: Sequence[Any]
) -> None:
    """Add the payloads of the steps that have some."""
    n, columns = len(batch), batch.own
    for place, (tree, run) in enumerate(zip(steps.payloads(), steps.run_of.tolist(), strict=True)):
        if tree is None:
            continue
        start, size = tree.pop("arrays", (0, 0))
        if size:
            raw = layout.expand([arrays[run][start : start + size]])[0]
            columns.setdefault("arrays", [None] * n)[place] = raw
        for name, part in tree.items():
            columns.setdefault(name, [None] * n)[place] = dumps(part)


def _field_bytes(
    layout: Layout, contents: Sequence[ChunkContent]
) -> tuple[NDArray[Any], list[Any] | None]:
    """Return the record of each step, and its values of varying length as bytes."""
    size = layout.size_bytes
    parts: list[Any] = []
    tails: list[Any] = []
    for chunk in contents:
        if (
            not layout.has_tails
            and chunk.layout == layout.number
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
    layout: Layout, records: NDArray[Any], tails: Sequence[bytes] | None, names: Sequence[str]
) -> dict[str, Any]:
    """Return typed fields: arrays of shape (n, *shape), and `RaggedValues`.

    Args:
        layout: The typed fields.
        records: The record of each step, shape (n,).
        tails: Values of varying length of each step.
        names: Names of the fields to return.
    """
    columns: dict[str, Any] = layout.columns_of(
        records, [name for name in names if not layout.specs[name].is_variable]
    )
    starts = np.zeros(len(records), np.int64)
    for name, spec in layout.specs.items():
        if not spec.is_variable:
            continue
        others = int(np.prod([n for n in spec.shape if n != VARIABLE], dtype=np.int64))
        items = records[name].astype(np.int64) * others
        ends = starts + items * spec.dtype.itemsize
        if name in names:
            spans = zip(tails or (), starts.tolist(), ends.tolist(), strict=True)
            raw = b"".join([tail[start:end] for tail, start, end in spans])
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(items)])
            columns[name] = RaggedValues(np.frombuffer(raw, spec.dtype), offsets, spec.shape)
        starts = ends
    return {name: columns[name] for name in names}


def kept_steps(batch: ColumnBatch, is_kept: NDArray[np.bool_]) -> ColumnBatch:
    """Return the steps of a batch whose flag is set."""
    if is_kept.all():
        return batch
    return batch.take(np.flatnonzero(is_kept))


_SHOWN_REALS = {
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
        names = _episode_names(connection, main.values["episode_id"])
        unknown = set(main.values["session_id"]) - self._sessions.keys() - {None}
        if unknown:
            self._sessions = self.source.session_keys_in(connection)
        if self._steps is CHUNKS:
            batch = chunk_columns(self._layout, tables, names, self._sessions, self._fields)
        else:
            batch = row_columns(self._layout, tables, names, self._sessions)
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


class EpisodeNames(NamedTuple):
    """The ids of users for an episode, its group and its parent."""

    key: str | None = None
    group_id: str | None = None
    parent_id: str | None = None


def _episode_names(connection: Connection, ids: Sequence[int | None]) -> dict[int, EpisodeNames]:
    """Return the ids of users for episodes, and their groups and parents."""
    known_ids = sorted({id_ for id_ in ids if id_ is not None})
    names: dict[int, EpisodeNames] = {}
    columns = select(episodes.c.id, episodes.c.key, episodes.c.group_id, episodes.c.parent_id)
    for i in range(0, len(known_ids), _KEYS_AT_ONCE):
        some = episodes.c.id.in_(known_ids[i : i + _KEYS_AT_ONCE])
        for id_, *of_episode in connection.execute(columns.where(some)):
            names[id_] = EpisodeNames(*of_episode)
    return names


def _shared_names(
    columns: Mapping[str, Sequence[Any]],
    episode_names: "Mapping[int, EpisodeNames]",
    session_keys: Mapping[int, str],
) -> dict[str, list[Any]]:
    """Return the ids of users and the times, by columns of rows or chunks."""
    names = [EpisodeNames() if id_ is None else episode_names[id_] for id_ in columns["episode_id"]]
    return {
        "episode_id": [of_episode.key for of_episode in names],
        "group_id": [of_episode.group_id for of_episode in names],
        "parent_id": [of_episode.parent_id for of_episode in names],
        "session_id": list(map(session_keys.get, columns["session_id"])),
        "inserted_at": list(map(utc_time, columns["inserted_at"])),
    }


def row_columns(
    layout: Layout,
    tables: Mapping[str, TableRows],
    episode_names: "Mapping[int, EpisodeNames]",
    session_keys: Mapping[int, str],
) -> ColumnBatch:
    """Return the steps of rows; see `chunk_columns`."""
    columns = tables["experiences"].values
    n = len(columns["seq"])
    shared: dict[str, list[Any]] = {
        name: columns[name]
        for name in ("task_id", "task_name", "agent_id", "pre_agent", "model_version")
    }
    shared["first_seq"] = columns["seq"]
    shared |= _shared_names(columns, episode_names, session_keys)
    batch = ColumnBatch(np.array(columns["seq"], np.int64), np.arange(n), shared, {})
    for name in ("t", "step"):
        batch.own[name] = np.array([-1 if v is None else v for v in columns[name]], np.int64)
        _note_missing_values(batch, name, columns[name])
    for name, shown in (*_SHOWN_REALS.items(), ("initial_priority", "priority")):
        batch.own[shown] = np.array(columns[name], np.float64)  # None is NaN
        _note_missing_values(batch, shown, columns[name])
    for name in ("terminated", "truncated"):
        batch.own[name] = np.array([value == 1 for value in columns[name]], bool)
        _note_missing_values(batch, name, columns[name])
    for name in (*PAYLOADS, "id"):
        if name == "id" or any(value is not None for value in columns[name]):
            batch.own[name] = [
                _canonical(value) if name != "id" else value for value in columns[name]
            ]
    arrays = _blobs(layout, columns, tables.get("payload_parts"))
    if any(value is not None for value in arrays):
        batch.own["arrays"] = arrays
    return batch


def _note_missing_values(batch: ColumnBatch, name: str, values: Sequence[Any]) -> None:
    missing = np.array([value is None for value in values], bool)
    if missing.any():
        batch.is_null[name] = missing


def _canonical(text: str | None) -> str | None:
    """Return JSON in the same form for both databases, with the keys in the same order."""
    return None if text is None else dumps(loads(text))


def _blobs(
    layout: Layout, columns: Mapping[str, list[Any]], parts: TableRows | None
) -> list[bytes | None]:
    """Return the bytes that the JSON of each row refers to."""
    blobs = list(layout.expand(columns["arrays"], columns["seq"]))
    if parts is not None and len(parts):
        by_seq: dict[int, list[tuple[int, Any]]] = {}
        values = parts.values
        for seq, part, raw in zip(values["seq"], values["part"], values["bytes"], strict=True):
            by_seq.setdefault(seq, []).append((part, raw))
        for i, seq in enumerate(columns["seq"]):
            if columns["payload_bytes"][i] is not None:
                raws = [
                    raw for _, raw in sorted(by_seq.get(seq, ()), key=lambda numbered: numbered[0])
                ]
                blobs[i] = b"".join(map(bytes, filter(None, layout.expand(raws))))
    return [None if raw is None else bytes(raw) for raw in blobs]


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
        columns = (rows.values[name] for name in ("seq", "reward_t", "adv_t", "v_t", "fields"))
        labels = list(zip(*columns, strict=True))
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
        values: list[Any] = self._batch.own.setdefault(name, [None] * len(self._batch))
        return values

    def _rows(self, name: str) -> Any:
        """Yield the place of the step of each row of a table, and the row."""
        rows = self._tables.get(name)
        if rows is None or not len(rows):
            return
        which, places = self._places_of(np.array(rows.numbers, np.int64))
        for row, place in zip(which.tolist(), places.tolist(), strict=True):
            yield place, {name: values[row] for name, values in rows.values.items()}

    def _set(self, name: str, places: Any, values: Any) -> None:
        columns, is_null = self._batch.own, self._batch.is_null
        if name not in columns:
            columns[name] = np.full(len(self._batch), np.nan)
            is_null[name] = np.ones(len(self._batch), bool)
        columns[name][places] = values
        if name in is_null:
            is_null[name][places] = False

    def _untag_reals(self) -> None:
        """Remove numbers from `extra` that their columns cannot hold."""
        extras: list[Any] = self._batch.own.get("extra", [])
        for place, extra in enumerate(extras):
            if extra is None or '"$reals"' not in extra:
                continue
            for name, value in decode_reals(extra).items():
                self._set(_SHOWN_REALS[name], place, value)
            tree = loads(extra)
            tree.pop("$reals", None)
            extras[place] = None if tree.pop("$none", False) else dumps(tree)
