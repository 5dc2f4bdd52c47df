"""Begin a copy, and write it to its target, batch by batch, each with its progress."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    func,
    insert,
    select,
    text,
    update,
)

from sqlbuffer.config import DEFAULT_CONNECTION
from sqlbuffer.encoding.chunks import ChunkColumns, PackedChunk
from sqlbuffer.errors import CopyError, StorageBusyError, StorageReadOnlyError
from sqlbuffer.steps import uuid7
from sqlbuffer.storage import flow
from sqlbuffer.storage.buffers.catalog import read_config
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.sessions import INSERT_SESSION
from sqlbuffer.storage.buffers.tables import buffers, experiences, sessions
from sqlbuffer.storage.chunks import postgresql as chunks_postgresql
from sqlbuffer.storage.chunks import sqlite as chunks_sqlite
from sqlbuffer.storage.chunks.numbered_chunks import NumberedChunks, share_chunks
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.copies import postgresql, sqlite
from sqlbuffer.storage.copies.parts import (
    CopiedRange,
    SourceIdentity,
    SourceState,
    StepBatch,
    TableRows,
    converted,
    episode_table,
    overlay_tables,
    step_tables,
    time_text,
)
from sqlbuffer.storage.copies.source import CopySource, few_pages, newest_mark
from sqlbuffer.storage.copies.tables import copies
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import retried, translated
from sqlbuffer.storage.database.transactions import reading, snapshot
from sqlbuffer.storage.database.urls import Database, is_memory
from sqlbuffer.storage.dialects import by_database, writing
from sqlbuffer.storage.documents import add_documents
from sqlbuffer.storage.episodes import episode_ids, episodes, session_ids
from sqlbuffer.storage.holds import Hold
from sqlbuffer.storage.messages import IDS, share, share_lists
from sqlbuffer.storage.migrations.migrate import with_schema
from sqlbuffer.storage.rollout_stats import add_up
from sqlbuffer.storage.rows.layouts import CHUNKS, ROWS, layout_of
from sqlbuffer.storage.schema.expressions import utc_now

# A copied step is free: the leases and checkpoints of the source are not copied.
_LEASES = ("lease_id", "leased_until")


class RowSource(Protocol):
    """Source of the rows that a target writes."""

    @property
    def dialect(self) -> str:
        """The kind of the database whose forms the rows have."""

    @property
    def hold(self) -> Hold | None:
        """Hold on the rows in their database."""


@dataclass(frozen=True)
class TargetKeys:
    """Keys of episodes and sessions in the target.

    Attributes:
        episodes: Keys in the source, in ascending order, and keys in the target; 0 for none.
        sessions: Keys in the target by keys in the source.
        is_resumed: The copy was interrupted. Episodes may have been deleted in the source since.
        max_use: Number of uses after which a leased step leaves.
    """

    episodes: tuple[NDArray[np.int64], NDArray[np.int64]]
    sessions: dict[int, int]
    is_resumed: bool
    max_use: int | None

    def renamed(self, rows: TableRows) -> TableRows:
        """Return rows with the target's keys of their episodes and sessions."""
        values = dict(rows.values)
        if "episode_id" in values:
            values["episode_id"] = self._episode_ids(values["episode_id"])
        if "session_id" in values:
            values["session_id"] = [self.sessions.get(number) for number in values["session_id"]]
        for name in _LEASES:
            if name in values:
                values[name] = [None] * len(rows)
        if "used_up" in values:
            limit = self.max_use
            values["used_up"] = [limit is not None and n >= limit for n in values["n_uses"]]
        return TableRows(rows.table, values)

    def _episode_ids(self, source_ids: list[int | None]) -> list[int | None]:
        theirs, ours = self.episodes
        if not len(theirs) or source_ids.count(None) == len(source_ids):
            return [None] * len(source_ids)
        sources = np.array(
            [-1 if source_id is None else source_id for source_id in source_ids], np.int64
        )
        places = np.minimum(np.searchsorted(theirs, sources), len(theirs) - 1)
        target_ids = np.where(theirs[places] == sources, ours[places], 0)
        if self.is_resumed and (target_ids[sources >= 0] == 0).any():
            raise CopyError(
                "an episode of steps to copy was stored again under the same id while the copy was "
                "interrupted; drop the unfinished copy, and copy again"
            )
        return [number or None for number in target_ids.tolist()]


write_rows = by_database(sqlite=sqlite.write_rows, postgresql=postgresql.write_rows)
stored_episode_ids = by_database(sqlite=sqlite.episode_ids, postgresql=postgresql.episode_ids)
take_numbers = by_database(sqlite=sqlite.take_numbers, postgresql=postgresql.take_numbers)
before_batch = by_database(sqlite=sqlite.before_batch, postgresql=postgresql.before_batch)
after_batch = by_database(sqlite=sqlite.after_batch, postgresql=postgresql.after_batch)
wait_for_writers = by_database(
    sqlite=sqlite.wait_for_writers, postgresql=postgresql.wait_for_writers
)

# Rows never leave an unfinished copy, because it is not complete. The configuration has the limits
# that apply later.
_NO_LIMITS = {
    **dict.fromkeys(("max_capacity", "max_episodes", "max_age_s", "max_bytes")),
    "keep_episodes": 2**62,
}
_FORGET_TASKS = text("DELETE FROM tasks WHERE buffer_id = :id")
_COUNT_TASKS = text(
    "INSERT INTO tasks (buffer_id, task_id, n_rows, last_seq) "
    "SELECT buffer_id, task_id, count(*), max(seq) FROM step_numbers "
    "WHERE buffer_id = :id GROUP BY buffer_id, task_id"
)
_COUNT_EPISODES = text(
    "UPDATE episodes SET n_rows = g.n FROM (SELECT episode_id, count(*) AS n FROM step_numbers "
    "WHERE buffer_id = :id AND episode_id IS NOT NULL GROUP BY episode_id) AS g "
    "WHERE episodes.id = g.episode_id"
)
_COUNT_STEPS = text("SELECT count(*) FROM step_numbers WHERE buffer_id = :id")
_FORGET_QUEUED = text(
    "DELETE FROM queue_items WHERE buffer_id = :id AND seq > :low AND seq <= :high"
)
_DROP_EPISODES = text(
    "DELETE FROM episodes WHERE buffer_id = :id AND id NOT IN (SELECT episode_id FROM step_numbers "
    "WHERE buffer_id = :id AND episode_id IS NOT NULL)"
)


@dataclass(frozen=True)
class CopyProgress:
    """Progress of a copy.

    Attributes:
        range: The copied steps, with the number at which it continues.
        n_steps: Steps copied so far.
        is_finished: The copy is complete.
        n_left: Steps still to read, if whole tasks or episodes are evicted.
        hold_id: Its hold on the source.
    """

    range: CopiedRange
    n_steps: int
    is_finished: bool
    n_left: int | None
    hold_id: str | None


class CopyTarget:
    """Writes to the buffer that a copy is made in.

    Args:
        buffer: The buffer.
        source: Source of the copy.
    """

    def __init__(self, buffer: OpenBuffer, source: RowSource) -> None:
        self.buffer, self._source = buffer, source
        self._id = buffer.info.id

    def progress(self, identity: SourceIdentity) -> CopyProgress | None:
        """Return the progress of the copy; None if it has not begun.

        Raises:
            CopyError: The buffer holds another copy, which is unfinished.
        """

        def look() -> CopyProgress | None:
            statement = select(copies).where(copies.c.buffer_id == self._id)
            with translated(self.buffer.url), reading(self.buffer.engine) as connection:
                row = connection.execute(statement).one_or_none()
            if row is None:
                return None
            stored = SourceIdentity(
                identity.database, row.source_buffer, row.source_id, row.source_created_at,
                row.condition,
            )  # fmt: skip
            if stored != identity and row.finished_at is not None:
                return None
            if stored != identity:
                of = f"of buffer {row.source_buffer!r} in {row.source_database}"
                raise CopyError(
                    f"buffer {self.buffer.info.name!r} in {self.buffer.shown_url} holds an "
                    f"unfinished copy {of}, with another source or condition; complete it, copy "
                    f"into another buffer, or drop this one"
                )
            copied = CopiedRange(row.low_seq, row.high_seq, row.copied_seq)
            n_left = None if row.n_expected is None else row.n_expected - row.n_read
            return CopyProgress(
                copied, row.n_steps, row.finished_at is not None, n_left, row.hold_id
            )

        return self.buffer.with_retries(look)

    def begin(
        self,
        connection: Connection,
        identity: SourceIdentity,
        state: SourceState,
        pages: Iterable[TableRows],
    ) -> None:
        """Write the data of the buffer as a whole, and refuse other writers from now on.

        Raises:
            CopyError: The buffer is not empty.
            StorageBusyError: Another process has begun a copy.
        """
        wait_for_writers(connection, self._id)
        self.buffer.lock(connection)
        begun = select(copies.c.buffer_id).where(copies.c.buffer_id == self._id)
        if connection.execute(begun).one_or_none() is not None:
            raise self._copied_by_others()
        self._check_empty(connection)
        copied = state.range
        started = {
            "buffer_id": self._id,
            "source_database": identity.database,
            "source_buffer": identity.name,
            "source_id": identity.buffer_id,
            "source_created_at": identity.created_at,
            "condition": identity.condition,
            "low_seq": copied.low,
            "high_seq": copied.high,
            "copied_seq": copied.cursor,
            "n_steps": 0,
            "n_read": 0,
            "n_expected": state.n_expected,
            "hold_id": None if self._source.hold is None else self._source.hold.id,
        }
        connection.execute(insert(copies).values(started))
        take_numbers(connection, self._id, copied.high)
        for key, version in state.sessions.items():
            connection.execute(INSERT_SESSION, {"buffer_id": self._id, "key": key})
            is_session = (sessions.c.buffer_id == self._id) & (sessions.c.key == key)
            connection.execute(update(sessions).where(is_session).values(current_version=version))
        current = select(sessions.c.id).where(
            sessions.c.buffer_id == self._id, sessions.c.key == state.session
        )
        columns = {
            **state.columns,
            **_NO_LIMITS,
            "session_id": connection.execute(current).scalar_one_or_none(),
            "low_seq": copied.low,
            "clean_seq": copied.low,
            "is_copying": True,
        }
        self._update(connection, columns)
        for page in pages:
            rows = page.without("id")
            rows.values["n_rows"] = [None if n is None else 0 for n in rows.values["n_rows"]]
            write_rows(connection, self._id, self._converted(rows))

    def is_empty(self) -> bool:
        """Return whether the buffer never had a step."""
        return self.buffer.read(lambda connection: self._noun_in(connection) is None)

    def _check_empty(self, connection: Connection) -> None:
        noun = self._noun_in(connection)
        if noun is not None:
            raise CopyError(
                f"buffer {self.buffer.info.name!r} in {self.buffer.shown_url} has {noun} "
                f"already; copy into an empty buffer, for example under another name"
            )

    def _noun_in(self, connection: Connection) -> str | None:
        """Return what the buffer has; None if it is empty."""
        for table, noun in ((experiences, "rows"), (chunks, "steps"), (episodes, "episodes")):
            # For all steps, also those that have left the window; like text, they are not
            # rewritten.
            rows = connection.execute(
                text(f"SELECT 1 FROM {table.name} WHERE buffer_id = :id LIMIT 1"), {"id": self._id}
            )
            if rows.one_or_none() is not None:
                return noun
        return None

    def keys(self, source: CopySource, *, is_resumed: bool) -> TargetKeys:
        """Return the keys of episodes and sessions here, by their keys in the source.

        Args:
            source: The source.
            is_resumed: The copy was interrupted. Episodes may have been deleted in the source
                since.
        """
        theirs: list[NDArray[np.int64]] = []
        ours: list[NDArray[np.int64]] = []
        for page in source.episode_names():
            target_ids = self._episode_ids([(key, task) for _, key, task in page])
            theirs.append(np.array([number for number, _, _ in page], np.int64))
            ours.append(np.array([number or 0 for number in target_ids], np.int64))
        empty = np.empty(0, np.int64)
        of_episodes = np.concatenate([empty, *theirs]), np.concatenate([empty, *ours])
        max_use = self.buffer.info.config.sampling.max_use
        return TargetKeys(of_episodes, self._session_ids(source), is_resumed, max_use)

    def _episode_ids(self, names: list[tuple[str, str]]) -> list[int | None]:
        def look() -> list[int | None]:
            with translated(self.buffer.url), reading(self.buffer.engine) as connection:
                connection.begin()
                return stored_episode_ids(connection, self._id, names)

        return self.buffer.with_retries(look)

    def _session_ids(self, source: CopySource) -> dict[int, int]:
        def look() -> dict[str, int]:
            statement = select(sessions.c.key, sessions.c.id).where(
                sessions.c.buffer_id == self._id
            )
            with translated(self.buffer.url), reading(self.buffer.engine) as connection:
                return {row.key: row.id for row in connection.execute(statement)}

        by_key = self.buffer.with_retries(look)
        keys = source.session_keys()
        return {number: by_key[key] for number, key in keys.items() if key in by_key}

    def write(self, connection: Connection, batch: StepBatch, keys: TargetKeys) -> None:
        """Write a batch.

        Raises:
            StorageBusyError: Another process continues the same copy.
        """
        self.advance(connection, batch)
        for rows in batch.tables:
            if rows.table.name == "queue_items":
                # Triggers have inserted the steps there, as unused ones.
                parameters = {"id": self._id, "low": batch.begin, "high": batch.end}
                connection.execute(_FORGET_QUEUED, parameters)
            self.write_rows(connection, keys.renamed(rows))
        self.refuse_others(connection)

    def advance(self, connection: Connection, batch: StepBatch) -> None:
        """Store that a batch is written, and allow this transaction to write steps.

        Raises:
            StorageBusyError: Another process continues the same copy.
        """
        advanced = connection.execute(
            update(copies)
            .where(copies.c.buffer_id == self._id, copies.c.copied_seq == batch.begin)
            .values(
                copied_seq=batch.end,
                n_steps=copies.c.n_steps + batch.n_steps,
                n_read=copies.c.n_read + batch.n_read,
            )
        )
        if advanced.rowcount != 1:
            raise self._copied_by_others()
        # Other transactions never see values that change back before the end of this one.
        self._update(connection, {**_NO_LIMITS, **dict.fromkeys(batch.flags, True)}, False)
        before_batch(connection, self._id)

    def write_rows(self, connection: Connection, rows: TableRows) -> None:
        """Write rows of a table, given in the form of their source database."""
        write_rows(connection, self._id, self._shared(connection, self._converted(rows)))

    def _shared(self, connection: Connection, rows: TableRows) -> TableRows:
        """Return rows with the ids of shared messages, if the buffer shares them."""
        if not self.buffer.shares_messages or not len(rows):
            return rows
        values, numbers = dict(rows.values), rows.numbers
        if "payloads" in values:
            values["payloads"] = share_lists(connection, self._id, numbers, values["payloads"])
        elif "messages" in values:
            texts = zip(numbers, values["messages"], strict=True)
            lists = share(connection, self._id, texts)
            values["messages"] = [
                text if one is None else one.own
                for text, one in zip(values["messages"], lists, strict=True)
            ]
            values[IDS] = [None if one is None else one.ids for one in lists]
        return TableRows(rows.table, values)

    def refuse_others(self, connection: Connection) -> None:
        """Refuse other writers again, after `advance`."""
        after_batch(connection, self._id)
        self._update(connection, {}, True)

    def _copied_by_others(self) -> StorageBusyError:
        return StorageBusyError(
            f"another process copies into buffer {self.buffer.info.name!r} of "
            f"{self.buffer.shown_url} as well, or has cleared it; wait until it has ended, and "
            f"copy again"
        )

    def newest(self, up_to: int) -> tuple[int, str] | None:
        """Return the newest chunk or row that was copied; see `newest_mark`."""

        def look() -> tuple[int, str] | None:
            with translated(self.buffer.url), reading(self.buffer.engine) as connection:
                return newest_mark(connection, self._id, up_to, layout_of(self.buffer.info))

        return self.buffer.with_retries(look)

    def note_hold(self, connection: Connection) -> None:
        """Store the current hold of the copy on its source."""
        hold_id = None if self._source.hold is None else self._source.hold.id
        statement = update(copies).where(copies.c.buffer_id == self._id)
        connection.execute(statement.values(hold_id=hold_id))

    def finish(
        self, connection: Connection, documents: Sequence[tuple[str, int, str]] = ()
    ) -> None:
        """Store all counts and the documents of the source, and allow other writers."""
        self.buffer.lock(connection)
        parameters = {"id": self._id}
        done = connection.execute(
            update(copies)
            .where(copies.c.buffer_id == self._id, copies.c.finished_at.is_(None))
            .values(finished_at=utc_now())
            .returning(copies.c.condition)
        ).one_or_none()
        if done is None:
            return
        if done.condition is not None:
            connection.execute(_DROP_EPISODES, parameters)
        add_documents(connection, self._id, documents)
        config = read_config(connection, self._id)
        counts: dict[str, Any] = {"deletions": buffers.c.deletions + 1}
        if config.retention.evict_by != "row":
            connection.execute(_FORGET_TASKS, parameters)
            if config.retention.evict_by == "task":
                connection.execute(_COUNT_TASKS, parameters)
            else:
                connection.execute(_COUNT_EPISODES, parameters)
            held = select(func.count()).where(
                episodes.c.buffer_id == self._id, episodes.c.n_rows > 0
            )
            counts["live_rows"] = connection.execute(_COUNT_STEPS, parameters).scalar_one()
            counts["live_episodes"] = connection.execute(held).scalar_one()
        self._update(connection, counts, False)
        add_up(connection, self._id)
        # Sets the start counts of the rate limiter, and the columns that repeat the configuration.
        flow.set_policy(connection, self._id, config.flow.rate_limiter)

    def _update(
        self, connection: Connection, columns: dict[str, Any], is_copying: bool | None = None
    ) -> None:
        values = columns if is_copying is None else {**columns, "is_copying": is_copying}
        connection.execute(update(buffers).where(buffers.c.id == self._id).values(values))

    def _converted(self, rows: TableRows) -> TableRows:
        source, target = self._source.dialect, self.buffer.engine.dialect.name
        forms = dict(zip(rows.table.columns, rows.table.forms, strict=True))
        values = {
            name: converted(values_of_column, forms[name], source, target)
            for name, values_of_column in rows.values.items()
        }
        return TableRows(rows.table, values)


_insert_chunks = by_database(
    sqlite=chunks_sqlite.insert_chunks, postgresql=chunks_postgresql.insert_chunks
)
_INSERT_NOTHING = text("INSERT INTO copies SELECT * FROM copies WHERE false")
_SET_USES = text(
    "UPDATE queue_items SET n_uses = :n_uses, used_up = :used_up "
    "WHERE buffer_id = :id AND seq = :seq"
)


@dataclass
class RestoredSteps:
    """Steps of one range of numbers as they are restored.

    Attributes:
        begin: Number below these steps.
        end: Number of the last of these steps.
        n_steps: Number of steps.
        chunks: Chunks, each with the number of its first step and the time when it was written.
        rows: Columns of `experiences` instead, with `episode_key` and `session_key`.
        overlays: Columns of other tables by name; their values have the forms of SQLite.
    """

    begin: int
    end: int
    n_steps: int
    chunks: Sequence[tuple[int, datetime | None, PackedChunk]] = ()
    rows: dict[str, list[Any]] | None = None
    overlays: dict[str, dict[str, list[Any]]] = field(default_factory=dict)


class _Keyed(NamedTuple):
    """The keys of a row that identify its episode."""

    agent_id: str
    episode_key: str | None
    model_version: int | None
    task_id: str
    group_key: str | None = None
    parent_key: str | None = None


def check_may_restore(url: Database) -> None:
    """Raise unless this role may restore a buffer, before one is made that it may not drop.

    Raises:
        BufferNotFoundError, SchemaMissingError: The database is still to be made.
        StorageReadOnlyError: The role is not that of the owner.
    """
    resolved = resolve_url(url)

    def insert_nothing(engine: Engine) -> None:
        with translated(resolved), writing(engine) as connection:
            connection.execute(_INSERT_NOTHING)

    with_schema(url, resolved, DEFAULT_CONNECTION.retry_s, insert_nothing)


class ImportTarget:
    """Writes to a buffer that is restored from files.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer, self._id = buffer, buffer.info.id
        self._target = CopyTarget(buffer, self)
        self._is_sqlite = buffer.engine.dialect.name == "sqlite"

    @property
    def dialect(self) -> str:
        """The database in whose forms the values are given."""
        return "sqlite"

    @property
    def hold(self) -> Hold | None:
        """None: files need no hold."""
        return None

    def progress(self, identity: SourceIdentity) -> CopyProgress | None:
        """Return the progress of an import; None if it has not begun."""
        return self._target.progress(identity)

    def begin(
        self,
        identity: SourceIdentity,
        state: SourceState,
        pages: Iterable[dict[str, list[Any]]],
    ) -> None:
        """Write the data of the buffer as a whole, and its episodes.

        Args:
            identity: Identity of the files.
            state: State of the buffer that was exported.
            pages: Columns of the table of episodes; read once.

        Raises:
            CopyError: The buffer is not empty.
        """
        # Read before the transaction: a transaction that is repeated needs them again.
        rows = [TableRows(episode_table(), page) for page in pages]
        self.buffer.write(partial(self._target.begin, identity=identity, state=state, pages=rows))

    def finish(self) -> None:
        """Store all counts, and allow other writers."""
        self.buffer.write(self._target.finish)

    def write(self, steps: RestoredSteps) -> None:
        """Write steps, in one transaction with the progress of the import."""

        def work(connection: Connection) -> None:
            with few_pages(connection):
                self._write(connection, steps)

        self.buffer.write(work)

    def _write(self, connection: Connection, steps: RestoredSteps) -> None:
        tables = {table.name: table for table in (*step_tables(CHUNKS), *overlay_tables())}
        uses = steps.overlays.get("queue_items")
        batch = StepBatch(steps.begin, steps.end, steps.n_steps, steps.n_steps)
        batch.tables = [
            TableRows(tables[name], values)
            for name, values in steps.overlays.items()
            if name != "queue_items"
        ]
        placed = self._with_free_ids(connection, steps, batch) if steps.chunks else []
        self._target.advance(connection, batch)
        if placed:
            self._write_chunks(connection, placed)
        if steps.rows is not None:
            self._target.write_rows(connection, self._rows(connection, steps.rows))
        for rows in batch.tables:
            self._target.write_rows(connection, rows)
        if uses is not None:
            counts = zip(uses["seq"], uses["n_uses"], uses["used_up"], strict=True)
            connection.execute(
                _SET_USES,
                [{"id": self._id, "seq": s, "n_uses": n, "used_up": u} for s, n, u in counts],
            )
        self._target.refuse_others(connection)

    def _with_free_ids(
        self, connection: Connection, steps: RestoredSteps, batch: StepBatch
    ) -> list[tuple[int, datetime | None, PackedChunk]]:
        """Return chunks whose ids no other chunk has; steps of a renamed chunk keep their ids.

        Two chunks have the same id in a file if a step was stored again after it was deleted.
        """
        statement = select(chunks.c.id).where(
            chunks.c.buffer_id == self._id,
            chunks.c.id.in_([chunk.id for _, _, chunk in steps.chunks]),
        )
        taken = set(connection.execute(statement).scalars())
        gone = set(steps.overlays.get("deleted_steps", {}).get("seq", ()))
        step_ids = steps.overlays.get("step_ids", {"seq": [], "id": []})
        ids = dict(zip(step_ids["seq"], step_ids["id"], strict=True))
        renamed = []
        for first_seq, time, chunk in steps.chunks:
            if chunk.id in taken:
                for place in range(chunk.n_steps):
                    if first_seq + place not in gone:
                        ids.setdefault(first_seq + place, f"{chunk.id}/{place}")
                chunk = replace(chunk, id=uuid7())
            taken.add(chunk.id)
            renamed.append((first_seq, time, chunk))
        if len(ids) > len(step_ids["seq"]):
            batch.tables = [rows for rows in batch.tables if rows.table.name != "step_ids"]
            table = next(table for table in step_tables(CHUNKS) if table.name == "step_ids")
            batch.tables.append(TableRows(table, {"seq": list(ids), "id": list(ids.values())}))
        return renamed

    def _write_chunks(
        self, connection: Connection, placed: Sequence[tuple[int, datetime | None, PackedChunk]]
    ) -> None:
        firsts, times, packed = zip(*placed, strict=True)
        inserted = ChunkColumns.of(packed)
        numbered = NumberedChunks(
            inserted,
            firsts,
            episode_ids(connection, self._id, inserted, None),
            session_ids(connection, self._id, inserted.column("session_key")),
            None,
            list(map(self._time, times)),
        )
        if self.buffer.shares_messages:
            numbered = share_chunks(connection, self._id, numbered)
        _insert_chunks(connection, self._id, numbered)

    def _time(self, time: datetime | None) -> Any:
        return time_text(time) if self._is_sqlite and time is not None else time

    def _rows(self, connection: Connection, values: dict[str, list[Any]]) -> TableRows:
        columns = dict(values)
        names = [
            columns["agent_id"], columns.pop("episode_key"), columns["model_version"],
            columns["task_id"],
        ]  # fmt: skip
        keyed = [_Keyed(*values) for values in zip(*names, strict=True)]
        columns["episode_id"] = episode_ids(connection, self._id, keyed, None)
        columns["session_id"] = session_ids(connection, self._id, columns.pop("session_key"))
        return TableRows(step_tables(ROWS)[0], columns)


def take_hold(source: CopySource) -> None:
    """Hold the steps of a source, if it can be written.

    Writers under way may not see the hold yet.

    Raises:
        CopyError: The source is itself an unfinished copy or import.
    """
    _check_finished(source.store)
    source.hold = Hold(source.store)
    try:
        source.hold.take()
    except StorageReadOnlyError:
        source.hold = None


def _check_finished(buffer: OpenBuffer) -> None:
    """Raise an error if a buffer is an unfinished copy: its steps would look complete."""
    statement = select(copies).where(
        copies.c.buffer_id == buffer.info.id, copies.c.finished_at.is_(None)
    )

    def look() -> Any:
        with translated(buffer.url), reading(buffer.engine) as connection:
            return connection.execute(statement).one_or_none()

    copy = buffer.with_retries(look)
    if copy is not None:
        raise CopyError(
            f"buffer {buffer.info.name!r} in {buffer.shown_url} is an unfinished copy or import of "
            f"{copy.source_buffer!r} in {copy.source_database}: it has {copy.n_steps:,} steps, "
            f"and is at seq {copy.copied_seq:,} of {copy.high_seq:,}; copy or import again to "
            f"complete it, or drop it"
        )


def resume_copy(source: CopySource, target: CopyTarget, progress: CopyProgress) -> None:
    """Continue with the hold of an unfinished copy, or with a new one if that has ended.

    Raises:
        CopyError: Steps have left in between, or the source is a different buffer now.
    """
    copied = progress.range
    newest = target.newest(copied.cursor)
    if newest is not None:
        source.check_same(*newest)
    if progress.hold_id is not None:
        source.hold = Hold(source.store, progress.hold_id)
        if source.hold.extend(max(copied.cursor, copied.low)):
            return
    take_hold(source)
    source.settled()
    source.check_left(copied, progress.n_left)
    target.buffer.write(target.note_hold)


def begin_copy(source: CopySource, target: CopyTarget, identity: SourceIdentity) -> None:
    """Write the data of the buffer as a whole, and its episodes.

    All of it is of one state of the source, in one transaction of the target.
    """
    take_hold(source)
    settled = source.settled()
    buffer, once = target.buffer, target.buffer.once()
    has_begun = False

    def begin_at_once() -> None:
        nonlocal has_begun
        if has_begun:
            return  # the source was lost at the end of its transaction
        with translated(source.buffer.url), snapshot(source.buffer.engine) as there:
            state = source.state(there, settled)
            pages = _translated(source.episodes(there, state.range), source.buffer.url)
            if is_memory(source.buffer.url):  # two buffers may share one connection
                pages = list(pages)
                there.rollback()
            once.run(
                buffer.engine,
                buffer.options.durability,
                lambda here: target.begin(here, identity, state, pages),
            )
            has_begun = True

    def forget_connections() -> None:
        source.buffer.forget_connections()
        buffer.forget_connections()

    # Both transactions again, whichever database was lost.
    retried(begin_at_once, buffer.options.retry_s, forget_connections)


def _translated(pages: Iterable[TableRows], url: URL) -> Iterable[TableRows]:
    with translated(url):
        yield from pages
