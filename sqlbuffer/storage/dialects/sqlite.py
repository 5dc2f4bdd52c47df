"""Whole operations as SQLite does them."""

import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.engine import URL

from sqlbuffer.encoding.records import Record
from sqlbuffer.errors import StorageFullError
from sqlbuffer.storage.buffers.live_count import BLOCK
from sqlbuffer.storage.database.engine import BUSY_TIMEOUT_S, is_memory
from sqlbuffer.storage.database.errors import NO_BUFFER, translate
from sqlbuffer.storage.database.sizes import shown_size
from sqlbuffer.storage.database.sqlite_connections import opened_file
from sqlbuffer.storage.database.transactions import BEGIN, Begin
from sqlbuffer.storage.database.urls import sqlite_path
from sqlbuffer.storage.database.wal import READERS_WAIT_S, spare_writer, wal_path
from sqlbuffer.storage.database.writer_lock import writer_lock
from sqlbuffer.storage.priorities.blocks import Blocks, Changes, Kept, summary
from sqlbuffer.storage.rows.sqlite import remove_rows
from sqlbuffer.storage.rows.tables import experiences
from sqlbuffer.storage.writing.reservation import ReservedSeqs, WriteId

_COLUMNS = (
    "buffer_id",
    "seq",
    "episode_id",
    "session_id",
    *(name for name in Record._fields if not name.endswith("_key")),
)
_INSERT = (
    f"INSERT INTO experiences ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
)
# What a deletion on a full disk takes besides: blocks of the file system, a few pages.
_SPARE_BYTES = 2**18
# With a null among its arguments max() is null.
_DRAW = (
    "UPDATE buffers SET next_seq = next_seq + :n, "
    "max_priority = coalesce(max(max_priority, :given), max_priority, :given) WHERE id = :id "
    "RETURNING next_seq, CASE WHEN has_priorities THEN coalesce(max_priority, 1.0) END"
)
_SEAL = (
    "INSERT INTO priority_blocks (buffer_id, block, n_rows, weight_sum, max_priority, "
    "min_priority) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, block) DO UPDATE "
    "SET n_rows = excluded.n_rows, weight_sum = excluded.weight_sum, "
    "max_priority = excluded.max_priority, min_priority = excluded.min_priority, "
    "max_is_loose = 0, min_is_loose = 0"
)
# Who has a row in priorities is held. What is not has null for a priority: told apart here it would
# double the time.
_HELD = (
    "SELECT j.value, p.rowid, coalesce(p.priority, (SELECT coalesce(e.initial_priority, 1.0) "
    "FROM experiences e WHERE e.buffer_id = :id AND e.seq = j.value)) FROM json_each(:seqs) j "
    "LEFT JOIN priorities p ON p.buffer_id = :id AND p.seq = j.value "
    "WHERE j.value > (SELECT low_seq FROM v_windows WHERE buffer_id = :id)"
)
_UPDATE = "UPDATE priorities SET priority = ? WHERE rowid = ?"
_ADD = "INSERT INTO priorities (buffer_id, seq, priority) VALUES (?, ?, ?)"
_BLOCKS = (
    "SELECT k.block, k.weight_sum, k.max_priority, coalesce(k.min_priority, 9e999), "
    "k.max_is_loose, k.min_is_loose FROM json_each(:blocks) j "
    "CROSS JOIN priority_blocks k ON k.buffer_id = :id AND k.block = j.value"
)
_CHANGE = (
    "UPDATE priority_blocks SET weight_sum = ?, max_priority = ?, min_priority = ?, "
    "max_is_loose = ?, min_is_loose = ? WHERE block = ? AND buffer_id = ?"
)
_FORGET = "DELETE FROM priority_blocks WHERE buffer_id = ? AND block = ?"
_RAISE = (
    "UPDATE buffers SET max_priority = :largest WHERE id = :id "
    "AND (max_priority IS NULL OR max_priority < :largest)"
)
_EVICT = (
    "DELETE FROM experiences WHERE buffer_id = :id "
    "AND seq <= (SELECT max(seq) FROM experiences WHERE buffer_id = :id) - :n"
)
# What was held when it left the window. Not with each row: it is looked for from the first one on.
_EVICT_UNHELD = (
    "DELETE FROM experiences WHERE buffer_id = :id "
    "AND seq <= (SELECT low_seq FROM v_windows WHERE buffer_id = :id) "
    "AND NOT EXISTS (SELECT 1 FROM queue_items q WHERE q.buffer_id = :id "
    "AND q.seq = experiences.seq AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
)
# After rows that plain SQL has written; the library's own writes fill one block after the other.
BLOCKS_AT_ONCE = 16
_NEXT_BLOCK = (
    f"SELECT max(w.low_seq / {BLOCK} + 1, coalesce("
    "(SELECT max(k.block) + 1 FROM row_blocks k WHERE k.buffer_id = w.buffer_id), 0)), "
    f"w.low_seq / {BLOCK} FROM v_windows w WHERE w.buffer_id = :id AND w.evict_unit = 'row'"
)
_COUNT = (
    "INSERT INTO row_blocks (buffer_id, block, n_rows) SELECT :id, j.value, (SELECT count(*) "
    f"FROM experiences e WHERE e.buffer_id = :id AND e.seq >= j.value * {BLOCK} "
    f"AND e.seq < (j.value + 1) * {BLOCK}) FROM json_each(:blocks) j"
)
_EPISODE, _SESSION = Record._fields.index("episode_key"), Record._fields.index("session_key")


def lock_path(url: URL) -> Path | None:
    """Return the file that writers of a database queue on; None where there is no file."""
    if url.get_backend_name() != "sqlite" or is_memory(url):
        return None
    return Path(f"{sqlite_path(url)}.lock")


class SQLite:
    """The operations that PostgreSQL does otherwise; `postgresql.PostgreSQL` has the same ones."""

    @contextmanager
    def writing(
        self, engine: Engine, durability: str | None = None, query: str | None = None
    ) -> Iterator[Connection]:
        """A transaction that writes, alone: committed at the end of the block, rolled back on an
        exception.
        """
        path = lock_path(engine.url)
        options = {BEGIN: Begin(writes=True, durability=durability, query=query)}
        with (
            writer_lock(path, BUSY_TIMEOUT_S),
            engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            if path is not None:
                spare_writer(connection, path)
            yield connection

    def make_room(self, engine: Engine) -> str:
        """Move the log into the file where the disk is almost full, so that a deletion can use the
        space of the log. Return what to do if that is not enough.

        Before the deletion: one that fails leaves the log longer, and takes what was freed.
        """
        path, lock = sqlite_path(engine.url), lock_path(engine.url)
        if lock is None:
            return "free memory and delete again"
        n_bytes = path.stat().st_size
        advice = f"delete fewer rows at a time, or free {shown_size(n_bytes)} on the disk of {path}"
        log = wal_path(path)
        if not log.exists() or shutil.disk_usage(path.parent).free > n_bytes + log.stat().st_size:
            return advice
        with (
            writer_lock(lock, BUSY_TIMEOUT_S),
            opened_file(path, isolation_level=None, timeout=READERS_WAIT_S) as file,
        ):
            ((n_needed,),) = file.execute(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            )
            try:
                ((is_busy, _, _),) = file.execute("PRAGMA wal_checkpoint(RESTART)")
            except sqlite3.Error as error:
                if not isinstance(translate(error, engine.url), StorageFullError):
                    raise
                missing = shown_size(n_needed - n_bytes + _SPARE_BYTES)
                return (
                    f"to delete rows takes {missing} more: remove or move other files on the disk "
                    f"of {path}, then delete again"
                )
        if is_busy:
            return (
                "an open read transaction keeps the log from being used again: end it "
                "(`sqlbuffer doctor` names its process), then delete again"
            )
        return advice

    @contextmanager
    def claiming(self, engine: Engine, durability: str | None, query: str) -> Iterator[Connection]:
        """A transaction that claims rows of a queue; see `Begin.query`."""
        with self.writing(engine, durability, query) as connection:
            yield connection

    @contextmanager
    def at_once(self, engine: Engine) -> Iterator[Connection]:
        """A connection whose statements are each its own transaction: they only read, and few
        rows (see `transactions.AT_ONCE`).
        """
        with engine.connect() as connection:
            yield connection

    @contextmanager
    def hurried(self, engine: Engine, wait_s: float = 0.0) -> Iterator[Connection]:
        """A transaction that writes what can be left out as well: it waits for others so long at
        most.

        Raises:
            StorageBusyError: Another writer is at work.
        """
        path = lock_path(engine.url)
        options = {BEGIN: Begin(writes=True)}
        with (
            writer_lock(path, wait_s),
            engine.connect().execution_options(**options) as connection,
        ):
            driver: Any = connection.connection.driver_connection
            driver.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
            try:
                with connection.begin():
                    if path is not None:
                        spare_writer(connection, path)
                    yield connection
            finally:
                driver.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")

    @contextmanager
    def snapshot(self, engine: Engine, query: str | None = None) -> Iterator[Connection]:
        """A transaction that reads one state of the database throughout; see `Begin.query`."""
        options = {BEGIN: Begin(snapshot=True, query=query)}
        with engine.connect().execution_options(**options) as connection:
            if query is not None:
                connection.begin()
            yield connection

    def reserve_seqs(
        self,
        connection: Connection,
        buffer_id: int,
        ids: Sequence[str],
        priorities: Sequence[float | None] | None = None,
        note: WriteId | None = None,
    ) -> ReservedSeqs:
        """Return which ids the buffer holds, and numbers for the others; note the priorities that
        these are given.
        """
        low = connection.exec_driver_sql(
            "SELECT low_seq FROM v_windows WHERE buffer_id = ?", (buffer_id,)
        ).scalar_one_or_none()
        if low is None:
            raise sqlite3.IntegrityError(f"{NO_BUFFER} with buffer_id {buffer_id}")
        found = connection.exec_driver_sql(
            "SELECT id, seq FROM experiences WHERE buffer_id = ? AND id IN (SELECT value FROM "
            "json_each(?))",
            (buffer_id, json.dumps(list(ids))),
        ).all()
        # A row that has left the window gives its id free.
        remove_rows(connection, buffer_id, [seq for _, seq in found if seq <= low])
        held = {id_ for id_, seq in found if seq > low}
        n = len(ids) - len(held)
        given = [
            priority
            for id_, priority in zip(ids, priorities or (), strict=False)
            if priority is not None and id_ not in held
        ]
        end, priority = connection.exec_driver_sql(
            _DRAW, {"n": n, "given": max(given, default=None), "id": buffer_id}
        ).one()
        return ReservedSeqs(held, list(range(end - n, end)), priority=priority)

    def free_episode(
        self, connection: Connection, buffer_id: int, key: str, task_id: str
    ) -> tuple[str, int | None] | None:
        """Make the id of an ended episode free whose steps have all left; return the status and
        length of one that is not free.
        """
        found = connection.exec_driver_sql(
            "SELECT id, status, length FROM episodes "
            "WHERE buffer_id = ? AND key = ? AND task_id = ?",
            (buffer_id, key, task_id),
        ).one_or_none()
        if found is None:
            return None
        number, status, length = found
        is_held = connection.exec_driver_sql(
            "SELECT 1 FROM experiences WHERE buffer_id = ? AND episode_id = ? "
            "AND +seq > (SELECT low_seq FROM v_windows WHERE buffer_id = ?) LIMIT 1",
            (buffer_id, number, buffer_id),
        ).one_or_none()
        if status == "open" or is_held:
            return status, length
        connection.exec_driver_sql("DELETE FROM episodes WHERE id = ?", (number,))
        return None

    def lock(self, connection: Connection, buffer_id: int) -> None:
        """Hold the row of a buffer: nobody else writes meanwhile."""

    def note_write(self, buffer_id: int, write_id: str, keep_s: float) -> str | None:
        """Return None: a connection to a file is not lost."""
        return None

    def insert(
        self,
        connection: Connection,
        buffer_id: int,
        seqs: Sequence[int],
        records: Sequence[Record],
        episode_ids: Sequence[int | None],
        session_ids: Sequence[int | None],
        priority: float | None = None,
        *,
        guarded: bool = True,
    ) -> None:
        """Write the records under their numbers; those that were given no priority have this one.

        Without a savepoint: inside one each row's trigger walks the journal in memory from its
        start, and 10,000 rows at capacity take six times as long.
        """
        parameters = [
            (
                buffer_id, seq, episode_id, session_id, *record[:_EPISODE],
                *record[_SESSION + 1 : -1],
                priority if record.initial_priority is None else record.initial_priority,
            )
            for seq, record, episode_id, session_id in zip(
                seqs, records, episode_ids, session_ids, strict=True
            )
        ]  # fmt: skip
        connection.exec_driver_sql(_INSERT, parameters)
        self.evict(connection, buffer_id)
        if seqs and seqs[0] // BLOCK < (seqs[-1] + 1) // BLOCK:
            self._count_rows(connection, buffer_id, (seqs[-1] + 1) // BLOCK)

    @staticmethod
    def _count_rows(connection: Connection, buffer_id: int, end_block: int) -> None:
        """Count the rows of blocks that are full now."""
        found = connection.exec_driver_sql(_NEXT_BLOCK, {"id": buffer_id}).one_or_none()
        if found is None:
            return
        next_block, cut_block = found
        blocks = range(next_block, min(end_block, next_block + BLOCKS_AT_ONCE))
        connection.exec_driver_sql(_COUNT, {"id": buffer_id, "blocks": json.dumps([*blocks])})
        connection.exec_driver_sql(
            "DELETE FROM row_blocks WHERE buffer_id = ? AND block <= ?", (buffer_id, cut_block)
        )

    def evict(self, connection: Connection, buffer_id: int) -> None:
        """Evict what is too much after a batch; what others write leaves by triggers."""
        state = text(
            "SELECT evict_unit, live_rows - max_capacity, live_episodes - max_episodes, has_queue, "
            "max_capacity FROM buffers WHERE id = :id"
        )
        rows = select(experiences.c.seq).where(experiences.c.buffer_id == buffer_id)
        while True:
            unit, rows_over, episodes_over, has_queue, capacity = connection.execute(
                state, {"id": buffer_id}
            ).one()
            if has_queue:
                connection.exec_driver_sql(_EVICT_UNHELD, {"id": buffer_id})
            elif unit == "row" and capacity is not None:
                connection.exec_driver_sql(_EVICT, {"id": buffer_id, "n": capacity})
            victims = None
            if unit == "task" and (rows_over or 0) > 0:
                victims = self._oldest_task(connection, buffer_id, rows)
            elif unit == "episode" and (episodes_over or 0) > 0:
                victims = self._oldest_episode(connection, buffer_id, rows)
            if victims is None:
                if unit == "row" or (rows_over or 0) <= 0:
                    return
                victims = rows.order_by(experiences.c.seq).limit(rows_over)
            remove_rows(connection, buffer_id, list(connection.execute(victims).scalars()))

    @staticmethod
    def _oldest_task(connection: Connection, buffer_id: int, rows: Any) -> Any:
        """Select the rows of the task whose last write is oldest; None where there is one task."""
        oldest = text("SELECT task_id FROM tasks WHERE buffer_id = :id ORDER BY last_seq LIMIT 2")
        found = connection.execute(oldest, {"id": buffer_id}).scalars().all()
        return rows.where(experiences.c.task_id == found[0]) if len(found) == 2 else None

    @staticmethod
    def _oldest_episode(connection: Connection, buffer_id: int, rows: Any) -> Any:
        """Select the rows of the ended episode that began first; None where all are open."""
        oldest = text(
            "SELECT id FROM episode_states WHERE buffer_id = :id AND n_rows > 0 "
            "AND status <> 'open' ORDER BY id LIMIT 1"
        )
        found = connection.execute(oldest, {"id": buffer_id}).scalar()
        return None if found is None else rows.where(experiences.c.episode_id == found)

    def update_priorities(
        self, connection: Connection, of: Blocks, seqs: Sequence[int], priorities: Sequence[float]
    ) -> int:
        """Set the priorities of those rows that the buffer holds; return how many."""
        # Past SQLAlchemy, which takes as long as the statements themselves.
        driver: Any = connection.connection.driver_connection
        listed = json.dumps(list(seqs))
        asked = driver.execute(_HELD, {"id": of.buffer_id, "seqs": listed})
        found = [row for row in asked if row[2] is not None]
        if not found:
            self._check_there(connection, of.buffer_id)
            return 0
        given = dict(zip(seqs, priorities, strict=True))
        held, places, old = zip(*found, strict=True)
        new = [given[seq] for seq in held]
        rows = list(zip(held, places, new, strict=True))
        driver.executemany(_UPDATE, [(p, place) for _, place, p in rows if place is not None])
        driver.executemany(
            _ADD, [(of.buffer_id, seq, p) for seq, place, p in rows if place is None]
        )
        self._change_blocks(driver, of, of.changes(np.array(held), np.array(old), np.array(new)))
        driver.execute(_RAISE, {"id": of.buffer_id, "largest": max(new)})
        return len(rows)

    @staticmethod
    def _check_there(connection: Connection, buffer_id: int) -> None:
        found = connection.exec_driver_sql("SELECT 1 FROM buffers WHERE id = ?", (buffer_id,))
        if found.first() is None:
            raise sqlite3.IntegrityError(f"{NO_BUFFER} with buffer_id {buffer_id}")

    @staticmethod
    def _change_blocks(driver: sqlite3.Connection, of: Blocks, changes: Changes) -> None:
        listed = json.dumps(changes.block.tolist())
        found = driver.execute(_BLOCKS, {"id": of.buffer_id, "blocks": listed}).fetchall()
        if not found:
            return
        kept = of.changed(Kept.of(found), changes)
        columns = [column.tolist() for column in (*kept[1:], kept.block)]
        columns[2] = [None if least == np.inf else least for least in columns[2]]
        rows = [(*row, of.buffer_id) for row in zip(*columns, strict=True)]
        driver.executemany(_CHANGE, rows)
        for block in kept.block[of.are_lost(kept)].tolist():
            driver.execute(_FORGET, (of.buffer_id, block))

    def seal(self, connection: Connection, of: Blocks, blocks: Sequence[int], settled: int) -> int:
        """Add up those of the blocks of priorities that no row can come to and that lie in the
        window; delete what has left it. Return how many were added up.
        """
        found = connection.exec_driver_sql(
            "SELECT w.low_seq, b.clean_seq FROM v_windows w JOIN buffers b ON b.id = w.buffer_id "
            "WHERE b.id = ?",
            (of.buffer_id,),
        ).one_or_none()
        if found is None:
            return 0
        low, clean_seq = found
        self._clean(connection, of, low, clean_seq)
        size = of.size
        summaries = [
            summary(block, self._priorities(connection, of, block), of.alpha)
            for block in blocks
            if max(block * size, 1) > low and (block + 1) * size <= settled + 1
        ]
        if summaries:
            connection.exec_driver_sql(_SEAL, [(of.buffer_id, *found) for found in summaries])
        return len(summaries)

    @staticmethod
    def _clean(connection: Connection, of: Blocks, low: int, clean_seq: int) -> None:
        size = of.size
        cleaned = min(low + 1, clean_seq + of.n_cleaned) // size * size - 1
        if cleaned <= clean_seq:
            return
        for table, key, first, last in (
            ("priorities", "seq", clean_seq, cleaned),
            ("priority_blocks", "block", clean_seq // size, cleaned // size),
        ):
            connection.exec_driver_sql(
                f"DELETE FROM {table} WHERE buffer_id = ? AND {key} >= ? AND {key} <= ?",
                (of.buffer_id, first, last),
            )
        connection.exec_driver_sql(
            "UPDATE buffers SET clean_seq = ? WHERE id = ?", (cleaned, of.buffer_id)
        )

    @staticmethod
    def _priorities(connection: Connection, of: Blocks, block: int) -> NDArray[np.float64]:
        """Return the priorities of the rows of a block."""
        found = connection.exec_driver_sql(
            "SELECT coalesce(p.priority, e.initial_priority, 1.0) FROM experiences e "
            "LEFT JOIN priorities p ON p.buffer_id = e.buffer_id AND p.seq = e.seq "
            "WHERE e.buffer_id = ? AND e.seq >= ? AND e.seq < ?",
            (of.buffer_id, block * of.size, (block + 1) * of.size),
        )
        return np.fromiter(found.scalars(), np.float64)

    def wrote(
        self, engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: int | None = None
    ) -> None:
        """Look after what eviction leaves behind: nothing, the file uses its pages again."""

    def settled(self, engine: Engine, buffer_id: int, wait_s: float = 0.0) -> int | None:
        """Return a seq up to which no row can appear any more; None: writers come one at a time and
        leave none behind.
        """
        return None
