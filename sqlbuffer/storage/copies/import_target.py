"""Write imported steps, with their numbers, to a buffer that is restored."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, select, text

from sqlbuffer.config import DEFAULT_CONNECTION
from sqlbuffer.encoding.chunks import PackedChunk
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.chunks import postgresql as chunks_postgresql
from sqlbuffer.storage.chunks import sqlite as chunks_sqlite
from sqlbuffer.storage.chunks.numbered_chunk import NumberedChunk
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.copies.copied_parts import SourceIdentity, SourceState, StepBatch
from sqlbuffer.storage.copies.copied_tables import (
    TableRows,
    episode_table,
    overlay_tables,
    step_tables,
)
from sqlbuffer.storage.copies.copy_target import CopyProgress, CopyTarget
from sqlbuffer.storage.copies.source_steps import few_pages
from sqlbuffer.storage.copies.value_forms import time_text
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.episodes import keys
from sqlbuffer.storage.holds.hold import Hold
from sqlbuffer.storage.migrations.schema_presence import with_schema
from sqlbuffer.storage.rows.layouts import CHUNKS, ROWS

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
    """The keys of a row that identify its episode and session."""

    agent_id: str
    episode_key: str | None
    model_version: int | None
    session_key: str | None
    task_id: str


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
            given = zip(uses["seq"], uses["n_uses"], uses["used_up"], strict=True)
            connection.execute(
                _SET_USES,
                [{"id": self._id, "seq": s, "n_uses": n, "used_up": u} for s, n, u in given],
            )
        self._target.refuse_others(connection)

    def _with_free_ids(
        self, connection: Connection, steps: RestoredSteps, batch: StepBatch
    ) -> list[tuple[int, datetime | None, PackedChunk]]:
        """Return chunks whose ids no other chunk has; steps of a renamed chunk keep their ids.

        Two chunks have the same id in a file if a step was stored again after it was deleted.
        """
        own = select(chunks.c.id).where(
            chunks.c.buffer_id == self._id,
            chunks.c.id.in_([chunk.id for _, _, chunk in steps.chunks]),
        )
        taken = set(connection.execute(own).scalars())
        gone = set(steps.overlays.get("deleted_steps", {}).get("seq", ()))
        given = steps.overlays.get("step_ids", {"seq": [], "id": []})
        ids = dict(zip(given["seq"], given["id"], strict=True))
        found = []
        for first_seq, time, chunk in steps.chunks:
            if chunk.id in taken:
                for place in range(chunk.n_steps):
                    if first_seq + place not in gone:
                        ids.setdefault(first_seq + place, f"{chunk.id}/{place}")
                chunk = replace(chunk, id=uuid7())
            taken.add(chunk.id)
            found.append((first_seq, time, chunk))
        if len(ids) > len(given["seq"]):
            batch.tables = [rows for rows in batch.tables if rows.table.name != "step_ids"]
            table = next(table for table in step_tables(CHUNKS) if table.name == "step_ids")
            batch.tables.append(TableRows(table, {"seq": list(ids), "id": list(ids.values())}))
        return found

    def _write_chunks(
        self, connection: Connection, placed: Sequence[tuple[int, datetime | None, PackedChunk]]
    ) -> None:
        own = [chunk for _, _, chunk in placed]
        episodes = keys.episode_ids(connection, self._id, own, {})
        sessions = keys.session_ids(connection, self._id, own)
        numbered = [
            NumberedChunk(chunk, first_seq, episode, session, None, self._time(time))
            for (first_seq, time, chunk), episode, session in zip(
                placed, episodes, sessions, strict=True
            )
        ]
        _insert_chunks(connection, self._id, numbered)

    def _time(self, time: datetime | None) -> Any:
        return time_text(time) if self._is_sqlite and time is not None else time

    def _rows(self, connection: Connection, values: dict[str, list[Any]]) -> TableRows:
        own = dict(values)
        named = [
            own["task_id"], own.pop("episode_key"), own.pop("session_key"), own["agent_id"],
            own["model_version"],
        ]  # fmt: skip
        found = [
            _Keyed(agent, episode, version, session, task)
            for task, episode, session, agent, version in zip(*named, strict=True)
        ]
        own["episode_id"] = keys.episode_ids(connection, self._id, found, {})
        own["session_id"] = keys.session_ids(connection, self._id, found)
        return TableRows(step_tables(ROWS)[0], own)
